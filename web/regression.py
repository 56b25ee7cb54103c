"""Regressions: series that got slower at a run and stayed so, or that broke.

Nothing of this is stored: it is found in the series of the recent runs whenever they change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import lru_cache

from opgauge.harness.gate.waiver import Waiver
from opgauge.harness.judge.changepoint import ChangePoint, find_change_points
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import PEERS
from opgauge.harness.store import queries
from opgauge.harness.store.queries import Acknowledgement, CaseInfo, RunInfo
from opgauge.web.reader import GRAVE, DeviceInfo, Level, Reader, Recent, SeriesKey
from opgauge.web.waivers import Excuses

LEAST_RATIO = 1.02
"""Smaller changes of a stored series are passed over: the host's own drift is of that size."""


class State(StrEnum):
    """How a regression stands."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Regression:
    """A series that got worse.

    kind: slower or broken. before, run: the last run that was good, the first that is not.
    ratio: time after over time before. fixed_in: the run since which it is good again.
    acknowledgement: who answers for it, by a form of the pages or by the waiver file.
    """

    case: CaseInfo
    implementation: str
    device: DeviceInfo
    kind: str
    before: RunInfo
    run: RunInfo
    state: State
    detail: str = ""
    ratio: float | None = None
    before_ns: float | None = None
    after_ns: float | None = None
    fixed_in: RunInfo | None = None
    acknowledgement: Acknowledgement | Waiver | None = None
    series: tuple[float | None, ...] = ()

    @property
    def key(self) -> str:
        """For addresses: what got worse, and when."""
        text = f"{self.case.case_id} {self.implementation} {self.device.slug} {self.kind} {self.run.id}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def timed(levels: Iterable[Level]) -> list[tuple[Level, float]]:
    """The levels that have a time."""
    return [(level, level.median_ns) for level in levels if level.median_ns]


def change_points(levels: Sequence[Level], least_ratio: float = LEAST_RATIO) -> list[tuple[Level, Level, ChangePoint]]:
    """Change points of a series, each with the runs before and after it."""
    known = timed(levels)
    times = [time for _, time in known]
    if not times or max(times) < least_ratio * min(times):
        return []
    found = _found(tuple(times), least_ratio)
    return [(known[point.index - 1][0], known[point.index][0], point) for point in found]


@lru_cache(8192)
def _found(times: tuple[float, ...], least_ratio: float) -> tuple[ChangePoint, ...]:
    """Kept: a new run changes the series of one device."""
    return find_change_points(times, least_ratio=least_ratio)


def known_regressions(reader: Reader) -> list[Regression]:
    """All of the recent runs, made once for each day and state of the data."""
    today = datetime.now(UTC).date()

    def make() -> list[Regression]:
        given = queries.list_acknowledgements(reader.engine)
        return find_regressions(reader.recent(), given, today, reader.excuses())

    return reader.cache.get(("regressions", today), make)


def find_regressions(
    recent: Recent, given: Sequence[Acknowledgement], today: date, excuses: Excuses | None = None
) -> list[Regression]:
    """Those of our own implementations: open first, then acknowledged, then fixed; newest first."""
    found = [one for key, levels in recent.series.items() for one in _of_series(recent, key, levels)]
    judged = [_acknowledged(one, given, today, excuses or Excuses()) for one in found]
    order = list(State)
    return sorted(judged, key=lambda one: (order.index(one.state), -one.run.started.timestamp(), -(one.ratio or 99.0)))


def _of_series(recent: Recent, key: SeriesKey, levels: Sequence[Level]) -> Iterator[Regression]:
    case_id, implementation, slug = key
    if implementation in PEERS:
        return
    where = (recent.cases[case_id], implementation, recent.devices[slug])
    times = tuple(level.median_ns for level in levels)
    changes = change_points(levels)
    for place, (before, after, point) in enumerate(changes):
        if point.ratio < 1:
            continue
        back = next((later[1] for later in changes[place + 1 :] if _is_back(point, later[2])), None)
        yield Regression(
            *where,
            kind="slower",
            before=before.run,
            run=after.run,
            state=State.FIXED if back else State.OPEN,
            ratio=point.ratio,
            before_ns=point.before,
            after_ns=point.after,
            fixed_in=back.run if back else None,
            series=times,
        )
    yield from _breaks(where, levels, times)


def _is_back(point: ChangePoint, later: ChangePoint) -> bool:
    """Whether at least half of what was lost is regained."""
    return later.after <= (point.before + point.after) / 2


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
    state = State.OPEN if fixed is None else State.FIXED
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


def _acknowledged(found: Regression, given: Sequence[Acknowledgement], today: date, excuses: Excuses) -> Regression:
    if found.state is not State.OPEN:
        return found
    for one in given:
        same = (one.case_id, one.implementation, one.device) == (
            found.case.case_id,
            found.implementation,
            found.device.name,
        )
        if same and one.verdict == found.kind and one.until >= today and _is_expected(found, one):
            return replace(found, state=State.ACKNOWLEDGED, acknowledgement=one)
    subject = Subject(found.case.op, found.case.name, found.case.case_id, found.implementation, found.device.name)
    waiver = excuses.find(subject, found.kind, found.ratio, today)
    return replace(found, state=State.ACKNOWLEDGED, acknowledgement=waiver) if waiver else found


def _is_expected(found: Regression, given: Acknowledgement) -> bool:
    return given.expected_ratio is None or found.ratio is None or found.ratio <= given.expected_ratio
