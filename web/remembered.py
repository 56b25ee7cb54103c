"""Regressions that began before the runs that are looked at: open until their series is as good as before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from sqlalchemy.exc import SQLAlchemyError

from opgauge.harness.judge.changepoint import EDGE, LEAST_POINTS
from opgauge.harness.result.result import Status
from opgauge.harness.store.open_regressions import OpenRegression, list_open, replace_open
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.level import GRAVE, Level
from opgauge.web.observe import log
from opgauge.web.reader import RECENT, Reader, Recent
from opgauge.web.regression import LEAST_RATIO, Regression, RegressionState, timed

EARLIER = f"found earlier: it began before the last {RECENT} runs"
"""Detail of such a regression."""


def remembered(
    reader: Reader, recent: Recent, found: Sequence[Regression], until: Collection[str] | None = None
) -> list[Regression]:
    """Regressions that were open when they were found last, and are not among `found`: open, or fixed since.

    Those that are open now are stored. One whose beginning is still looked at, and is not found any more, was none.
    until: runs that had come; a regression that began with another one is left as it is.
    """
    listed = list_open(reader.engine, reader.project)
    kept = {one.key: one for one in listed if until is None or one.run in until}
    runs = {run.id: run for run in reader.runs()} if kept else {}
    known = {one.key: one for one in found}
    again = {
        key: _state_of(recent, one, runs.get(one.before), runs.get(one.run))
        for key, one in kept.items()
        if key not in known and (one.case_id, one.implementation, one.device) in recent.series
    }
    gone = {key for key, one in again.items() if one is None}
    gone |= {key for key in kept.keys() & known.keys() if known[key].state is not RegressionState.OPEN}
    new = {key: _stored(one) for key, one in known.items() if one.state is RegressionState.OPEN}
    added = [one for key, one in new.items() if kept.get(key) != one]
    if added or gone:
        try:
            replace_open(reader.writing, added, gone)
        except SQLAlchemyError as error:
            log.warning("open regressions were not stored", fault=str(error))
    return [one for one in again.values() if one is not None]


def _stored(one: Regression) -> OpenRegression:
    series = (one.case.case_id, one.implementation, one.device.slug)
    return OpenRegression(one.key, one.run.project, *series, one.kind, one.before.id, one.run.id, one.before_ns)


def _state_of(recent: Recent, one: OpenRegression, before: RunInfo | None, run: RunInfo | None) -> Regression | None:
    """How a regression stands; None if it is history or was none."""
    if before is None or run is None:  # deleted
        return None
    levels = recent.series[one.case_id, one.implementation, one.device]
    ahead = next((place for place, level in enumerate(levels) if level.run.key == run.key), 0)
    if one.kind == "broken":
        back, is_known, now_ns = _first_right(levels), ahead > 0, None
    else:
        limit_ns = LEAST_RATIO * (one.before_ns or 0.0)
        back, is_known = _first_fast(levels, limit_ns), len(timed(levels[:ahead])) >= LEAST_POINTS
        now_ns = median([time for _, time in timed(levels)][-EDGE:] or [0.0])
    if is_known or (back is not None and back.run.key == levels[0].run.key):
        return None
    return Regression(
        recent.cases[one.case_id],
        one.implementation,
        recent.devices[one.device],
        kind=one.kind,
        before=before,
        run=run,
        state=RegressionState.OPEN if back is None else RegressionState.FIXED,
        detail=EARLIER,
        ratio=now_ns / one.before_ns if now_ns and one.before_ns else None,
        before_ns=one.before_ns,
        after_ns=now_ns,
        fixed_in=None if back is None else back.run,
        series=tuple(level.median_ns for level in levels),
        key=one.key,
    )


def _first_right(levels: Sequence[Level]) -> Level | None:
    """The first level that is right after the last failure; None if the newest is none."""
    last = next((place for place in reversed(range(len(levels))) if levels[place].status in GRAVE), -1)
    return next((level for level in levels[last + 1 :] if level.status == Status.OK), None)


def _first_fast(levels: Sequence[Level], limit_ns: float) -> Level | None:
    """The first level of the last ones below a limit; None if the median of the newest is not."""
    known = timed(levels)
    if not known or median([time for _, time in known][-EDGE:]) >= limit_ns:
        return None
    last = next((place for place in reversed(range(len(known))) if known[place][1] >= limit_ns), -1)
    return known[min(last + 1, len(known) - 1)][0]
