"""Slow drifts: series that got slower little by little, which no change point and no single run shows."""

from __future__ import annotations

from dataclasses import dataclass

from opgauge.harness.result.summary import PEERS
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.devices import DeviceInfo
from opgauge.web.reader import Reader, Recent
from opgauge.web.regression import changes_of, timed

LEAST_DRIFT = 1.05
"""Least ratio of the end of a trend to its beginning that is listed: hosts drift by a few percent."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A series with a slow trend upwards. before, run: first and last run of the series. ratio: along the trend."""

    case: CaseInfo
    implementation: str
    device: DeviceInfo
    before: RunInfo
    run: RunInfo
    ratio: float
    series: tuple[float | None, ...]


def known_drifts(reader: Reader, recent: Recent) -> list[Drift]:
    """Drifts of the reader's recent runs, computed once for each state of the data."""
    return reader.cache.get("drifts", lambda: find_drifts(recent))


def find_drifts(recent: Recent) -> list[Drift]:
    """Series of all implementations but peers that got slower along a trend, the largest drift first."""
    found = []
    for (case_id, implementation, slug), levels in recent.series.items():
        known = timed(levels)
        if implementation in PEERS or not known:
            continue
        ratio = changes_of([time for _, time in known]).trend
        if ratio >= LEAST_DRIFT:
            where = (recent.cases[case_id], implementation, recent.devices[slug])
            times = tuple(level.median_ns for level in levels)
            found.append(Drift(*where, known[0][0].run, known[-1][0].run, ratio, times))
    return sorted(found, key=lambda one: -one.ratio)
