"""Several runs beside one base: a row per case and implementation, a comparison per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.compared_trial import TrialKey
from opgauge.web.comparison import Compared, RunComparison, judge_runs
from opgauge.web.reader import Reader

MOST_HEADS = 8
"""Runs beside the base; more do not fit a screen."""


class SideBySide(NamedTuple):
    """A case by one implementation on one device. places: of its comparison in each of `judged`, None if it is in none.

    words: verdicts and kinds of the comparisons. largest: of their ratios, 0 where the base or all runs have no time.
    """

    case: CaseInfo
    implementation: str
    device: str
    base_ns: float | None
    judged: Sequence[RunComparison]
    places: Sequence[int | None]
    words: frozenset[str]
    largest: float

    @property
    def cells(self) -> list[Compared | None]:
        """The comparison in each run; made for the rows that are shown only."""
        found = zip(self.judged, self.places, strict=True)
        return [None if place is None else one[place] for one, place in found]


def side_by_side(reader: Reader, base: RunInfo, heads: Sequence[RunInfo]) -> list[SideBySide]:
    """Compare each of `heads` with the base; rows with a broken cell first, then by the largest ratio."""
    judged = [judge_runs(reader, base, head) for head in heads]
    found: dict[TrialKey, list[int | None]] = {}
    for column, one in enumerate(judged):
        for place, pair in enumerate(one.pairs):
            places = found.get(pair.key)
            if places is None:
                places = found[pair.key] = [None] * len(heads)
            places[column] = place
    return sorted([_row(key, judged, places) for key, places in found.items()], key=_order)


def _row(key: TrialKey, judged: Sequence[RunComparison], places: Sequence[int | None]) -> SideBySide:
    known = [(one, place) for one, place in zip(judged, places, strict=True) if place is not None]
    words = frozenset([one.words[place] for one, place in known])
    largest = max([one.ratios[place] or 0.0 for one, place in known])
    first, place = known[0]
    pair = first.pairs[place]
    return SideBySide(
        pair.known.case, *key[1:], pair.base.median_ns if pair.base else None, judged, places, words, largest
    )


def _order(row: SideBySide) -> tuple[bool, float, str]:
    return "broken" not in row.words, -row.largest, row.case.name
