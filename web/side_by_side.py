"""Several runs beside one base: a row per case and implementation, a comparison per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.comparison import Compared, compare_runs
from opgauge.web.reader import Reader

MOST_HEADS = 8
"""Runs beside the base; more do not fit a screen."""


class SideBySide(NamedTuple):
    """A case by one implementation on one device. cells: its comparison in each run, None where it is on no side.

    words: verdicts and kinds of the cells. largest: ratio of the cells, 0 where the base or all runs have no time.
    """

    case: CaseInfo
    implementation: str
    device: str
    base_ns: float | None
    cells: tuple[Compared | None, ...]
    words: frozenset[str]
    largest: float


def side_by_side(reader: Reader, base: RunInfo, heads: Sequence[RunInfo]) -> list[SideBySide]:
    """Compare each of `heads` with the base; rows with a broken cell first, then by the largest ratio."""
    found: dict[tuple[str, str, str], list[Compared | None]] = {}
    for place, head in enumerate(heads):
        for one in compare_runs(reader, base, head):
            key = (one.case.case_id, one.implementation, one.device)
            cells = found.get(key)
            if cells is None:
                cells = found[key] = [None] * len(heads)
            cells[place] = one
    return sorted(map(_row, found.values()), key=_order)


def _row(cells: Sequence[Compared | None]) -> SideBySide:
    known = [cell for cell in cells if cell is not None]
    first = known[0]
    times = [cell.base_ns for cell in known if cell.base_ns]
    words = frozenset([cell.word for cell in known])
    largest = max([cell.ratio or 0.0 for cell in known])
    base_ns = times[0] if times else None
    return SideBySide(first.case, first.implementation, first.device, base_ns, tuple(cells), words, largest)


def _order(row: SideBySide) -> tuple[bool, float, str]:
    return "broken" not in row.words, -row.largest, row.case.name
