"""Regressions: series that got slower and stayed so, or that broke, and what looks like one in the latest runs.

A change point needs runs after it and is confirmed; the latest runs are suspected as soon as they lie outside the
recent distribution of their series. All is computed from the series whenever they change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from math import log, sqrt

from opgauge.harness.gate.waiver import Waiver
from opgauge.harness.judge.changepoint import EDGE, LEAST_POINTS, ChangePoint, SeriesChanges, analyse_series
from opgauge.harness.judge.departure import Departure, find_departure
from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import PEERS
from opgauge.harness.store.acknowledgements import Acknowledgement
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo
from opgauge.web.level import GRAVE, Level, SeriesKey
from opgauge.web.reader import Reader, Recent

LEAST_RATIO = 1.02
"""Least change of a stored series that counts: the drift of a host is of that size."""


class RegressionState(StrEnum):
    """State of a regression: confirmed by several runs and open, suspected by the latest, acknowledged or fixed."""

    OPEN = "open"
    SUSPECTED = "suspected"
    ACKNOWLEDGED = "acknowledged"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Regression:
    """A series that got worse.

    kind: slower or broken. before, run: last good and first bad run. ratio: time after over time before, and limit: the
    ratio that the series explains by itself, for suspected ones. fixed_in: run in which it recovered.
    acknowledgement: of a person, by the form of the page or in the waiver file. key: for addresses; it stays when more
    runs move the beginning. seen: when the last of the runs started that it takes to find it. ended: last run of the
    series, if newer commits were measured on the device without it: whether it recovered is unknown.
    """

    case: CaseInfo
    implementation: str
    device: DeviceInfo
    kind: str
    before: RunInfo
    run: RunInfo
    state: RegressionState
    detail: str = ""
    ratio: float | None = None
    before_ns: float | None = None
    after_ns: float | None = None
    fixed_in: RunInfo | None = None
    acknowledgement: Acknowledgement | Waiver | None = None
    series: tuple[float | None, ...] = ()
    limit: float | None = None
    key: str = ""
    seen: datetime | None = None
    ended: RunInfo | None = None

    @property
    def series_key(self) -> SeriesKey:
        """The series that got worse."""
        return self.case.case_id, self.implementation, self.device.slug

    def key_at(self, run: RunInfo) -> str:
        """Key of a regression of this series that begins with a run."""
        text = f"{self.case.case_id} {self.implementation} {self.device.slug} {self.kind} {run.id}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def timed(levels: Iterable[Level]) -> list[tuple[Level, float]]:
    """Levels with a time."""
    return [(level, level.median_ns) for level in levels if level.median_ns]


def change_points(levels: Sequence[Level], least_ratio: float = LEAST_RATIO) -> list[tuple[Level, Level, ChangePoint]]:
    """Change points of a series, each with the runs before and after it."""
    known = timed(levels)
    found = changes_of([time for _, time in known], least_ratio).points
    return [(known[point.index - 1][0], known[point.index][0], point) for point in found]


def changes_of(times: Sequence[float], least_ratio: float = LEAST_RATIO) -> SeriesChanges:
    """Change points and trend of times; none where even the extremes differ by less."""
    if not times or max(times) < least_ratio * min(times):
        return SeriesChanges()
    return _found(tuple(times), least_ratio)


@lru_cache(8192)
def _found(times: tuple[float, ...], least_ratio: float) -> SeriesChanges:
    """Cached, as a new run changes the series of one device only."""
    return analyse_series(times, least_ratio=least_ratio)


def find_regressions(recent: Recent) -> list[Regression]:
    """Regressions of all implementations but peers, without keys and acknowledgements."""
    found = []
    for key, levels in recent.series.items():
        newest, last = recent.last_run.get(key[2], levels[-1].run), levels[-1].run
        ended = None if newest.key == last.key else last
        found += [replace(one, ended=ended) if one.fixed_in is None else one for one in _of_series(recent, key, levels)]
    return found


def by_state(recent: Recent, found: Iterable[Regression]) -> list[Regression]:
    """Regressions by state, those of the newest commits first."""
    order, places = list(RegressionState), {run.key: place for place, run in enumerate(recent.runs)}

    def rank(one: Regression) -> tuple[int, int, float]:
        return order.index(one.state), -places.get(one.run.key, 0), -(one.ratio or 99.0)

    return sorted(found, key=rank)


@dataclass(frozen=True, slots=True)
class Improvement:
    """A series that got faster.

    before, run: last run before and first after it. is_confirmed: by several runs. is_regained: the series was as fast
    before it got slower.
    """

    case: CaseInfo
    implementation: str
    device: DeviceInfo
    before: RunInfo
    run: RunInfo
    ratio: float
    before_ns: float
    after_ns: float
    is_confirmed: bool
    is_regained: bool
    series: tuple[float | None, ...] = ()


def known_improvements(reader: Reader, recent: Recent) -> list[Improvement]:
    """Improvements of the reader's recent runs, computed once for each state of the data."""
    return reader.cache.get("improvements", lambda: find_improvements(recent))


def find_improvements(recent: Recent) -> list[Improvement]:
    """Series of all implementations but peers whose present level is faster than the one before, newest first."""
    places = {run.key: place for place, run in enumerate(recent.runs)}
    found = [one for key, levels in recent.series.items() if (one := _improvement(recent, key, levels))]
    return sorted(found, key=lambda one: (-places.get(one.run.key, 0), one.ratio))


def _improvement(recent: Recent, key: SeriesKey, levels: Sequence[Level]) -> Improvement | None:
    case_id, implementation, slug = key
    if implementation in PEERS:
        return None
    where = (recent.cases[case_id], implementation, recent.devices[slug])
    times = tuple(level.median_ns for level in levels)
    late, changes = departure(levels), change_points(levels)
    step = late or next(reversed(changes), None)
    if step is None or step[2].ratio >= 1:
        return None
    first, second, found = step
    fastest = min((point.before for _, _, point in changes), default=found.before)
    return Improvement(
        *where,
        first.run,
        second.run,
        found.ratio,
        found.before,
        found.after,
        is_confirmed=late is None,
        is_regained=fastest < LEAST_RATIO * found.after,
        series=times,
    )


def departure(levels: Sequence[Level]) -> tuple[Level, Level, Departure] | None:
    """The latest levels that depart from those before, with the level before them and their first."""
    known = timed(levels)
    changes = change_points(levels)
    start = 0
    if changes:
        start = next(place for place, (level, _) in enumerate(known) if level is changes[-1][1])
    times = [time for _, time in known[start:]]
    # a series that is too short for change points has nothing else to say of older runs
    most = EDGE - 1 if len(known) >= LEAST_POINTS else len(times) - 1
    found = find_departure(times, most, _within(known[-1][0])) if len(times) > 1 else None
    if found is None:
        return None
    place = start + found.index
    return known[place - 1][0], known[place][0], found


def _within(level: Level) -> float:
    """Relative spread between the processes of a run, 0 for one process."""
    if level.blocks < 2 or not (level.low_ns and level.high_ns):
        return 0.0
    return log(level.high_ns / level.low_ns) / (2 * sqrt(level.blocks))


def _of_series(recent: Recent, key: SeriesKey, levels: Sequence[Level]) -> Iterator[Regression]:
    case_id, implementation, slug = key
    if implementation in PEERS:
        return
    where = (recent.cases[case_id], implementation, recent.devices[slug])
    times = tuple(level.median_ns for level in levels)
    changes, known = change_points(levels), timed(levels)
    for place, (before, after, point) in enumerate(changes):
        if point.ratio < 1:
            continue
        left = list(_left_of(place, [time for _, time in known], [one for _, _, one in changes]))
        fixed = next((later for later, ratio in left if ratio < LEAST_RATIO), None)
        later, ratio = min(left, key=lambda one: one[1], default=(place, point.ratio))
        yield Regression(
            *where,
            kind="slower",
            before=before.run,
            run=after.run,
            state=RegressionState.OPEN if fixed is None else RegressionState.FIXED,
            detail="" if fixed is not None or later == place else f"{point.ratio:.3g}× until a part was regained",
            ratio=point.ratio if fixed is not None else ratio,
            before_ns=point.before,
            after_ns=point.after if fixed is not None else changes[later][2].after,
            fixed_in=None if fixed is None else changes[fixed][1].run,
            series=times,
            seen=max(level.run.started for level, _ in known[point.index : point.index + EDGE]),
        )
    late = departure(levels)
    if late is not None and late[2].ratio >= LEAST_RATIO:
        before, first, found = late
        yield Regression(
            *where,
            kind="slower",
            before=before.run,
            run=first.run,
            state=RegressionState.SUSPECTED,
            ratio=found.ratio,
            before_ns=found.before,
            after_ns=found.after,
            series=times,
            limit=found.limit,
        )
    yield from _breaks(where, levels, times)


def _left_of(place: int, times: Sequence[float], points: Sequence[ChangePoint]) -> Iterator[tuple[int, float]]:
    """Later change points that regain half of a step or more, and what is left of it without the runs in between."""
    bounds = [0, *(point.index for point in points), len(times)]
    levels = [times[start:end] for start, end in pairwise(bounds)]
    before, loss = levels[place], points[place]
    for later in range(place + 1, len(points)):
        if points[later].after <= (loss.before + loss.after) / 2:
            found = changes_of([*before, *levels[later + 1]]).points
            is_left = any(point.ratio > 1 and abs(point.index - len(before)) < EDGE for point in found)
            yield later, points[later].after / loss.before if is_left else 1.0


def _breaks(
    where: tuple[CaseInfo, str, DeviceInfo], levels: Sequence[Level], times: tuple[float | None, ...]
) -> Iterator[Regression]:
    good: Level | None = None
    broken: tuple[Level, Level] | None = None
    for level in levels:
        if level.status in GRAVE and good is not None and broken is None:
            broken = (good, level)
        elif level.status == Status.OK:
            if broken is not None:
                yield _broken(where, broken, times, level)
            good, broken = level, None
    if broken is not None:
        yield _broken(where, broken, times, None)


def _broken(
    where: tuple[CaseInfo, str, DeviceInfo],
    broken: tuple[Level, Level],
    times: tuple[float | None, ...],
    fixed: Level | None,
) -> Regression:
    state = RegressionState.OPEN if fixed is None else RegressionState.FIXED
    before, after = broken
    fixed_in = None if fixed is None else fixed.run
    return Regression(
        *where,
        kind="broken",
        before=before.run,
        run=after.run,
        state=state,
        detail=after.status,
        fixed_in=fixed_in,
        series=times,
    )
