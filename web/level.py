"""Levels of a series: one run of a case by one implementation on a device, over its processes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from opgauge.harness.result.result import Status
from opgauge.harness.store.past import Past, PastTime
from opgauge.harness.store.queries import StoredPoint
from opgauge.harness.store.run_queries import RunInfo

GRAVE = (Status.WRONG, Status.ERROR, Status.TIMEOUT, Status.OUT_OF_MEMORY)
"""Statuses of a failed trial."""
_OK = str(Status.OK)


class Level(NamedTuple):
    """One run in a series: worst status, median and range of the medians of its processes.

    by_block: those medians by process, if there are several.
    """

    run: RunInfo
    status: str
    median_ns: float | None
    low_ns: float | None
    high_ns: float | None
    blocks: int
    by_block: tuple[tuple[int, float], ...] = ()


SeriesKey = tuple[str, str, str]
"""Case id, implementation, slug of the device."""


def level_of(run: RunInfo, points: Sequence[StoredPoint | Past | PastTime]) -> Level:
    """The processes of one trial as one level."""
    first = points[0]
    if len(points) == 1 and first.status == _OK:
        time = first.median_ns or None
        return Level(run, first.status, time, time, time, 1)
    bad = [one.status for one in points if one.status in GRAVE]
    status = bad[0] if bad else first.status
    by_block = tuple((one.block, one.median_ns) for one in points if one.median_ns and one.status == _OK)
    if not by_block or bad:
        return Level(run, status, None, None, None, len(points))
    times = [time for _, time in by_block]
    return Level(run, status, median(times), min(times), max(times), len(times), by_block)
