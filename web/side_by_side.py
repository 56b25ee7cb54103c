"""Several runs beside one base: a row per case and implementation, a comparison per run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.comparison import Compared, compare_runs
from opgauge.web.reader import Reader

MOST_HEADS = 8
"""Runs beside the base; more do not fit a screen."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A case by one implementation on one device. cells: its comparison in each run, None where it is on no side.

    words: verdicts and kinds of the cells.
    """

    case: CaseInfo
    implementation: str
    device: str
    base_ns: float | None
    cells: tuple[Compared | None, ...]
    words: frozenset[str]

    @property
    def has_ratio(self) -> bool:
        """Whether the base and at least one run have a time."""
        return any(cell is not None and cell.ratio for cell in self.cells)


def side_by_side(reader: Reader, base: RunInfo, heads: Sequence[RunInfo]) -> list[SideBySide]:
    """Compare each of `heads` with the base; rows with a broken cell first, then by the largest ratio."""
    found: dict[tuple[str, str, str], list[Compared | None]] = {}
    for place, head in enumerate(heads):
        for one in compare_runs(reader, base, head):
            key = (one.case.case_id, one.implementation, one.device)
            found.setdefault(key, [None] * len(heads))[place] = one
    return sorted((_row(cells) for cells in found.values()), key=_order)


def _row(cells: Iterable[Compared | None]) -> SideBySide:
    listed = tuple(cells)
    known = [cell for cell in listed if cell is not None]
    first = known[0]
    return SideBySide(
        first.case,
        first.implementation,
        first.device,
        next((cell.base_ns for cell in known if cell.base_ns), None),
        listed,
        frozenset([cell.word for cell in known]),
    )


def _order(row: SideBySide) -> tuple[bool, float, str]:
    largest = max((cell.ratio or 0.0 for cell in row.cells if cell is not None), default=0.0)
    return "broken" not in row.words, -largest, row.case.name
