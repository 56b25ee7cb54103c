"""Trends over the history: time of an op over all its cases, memory and kernel launches of a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median, stdev
from typing import Any

from opgauge.harness.counting import counted
from opgauge.harness.judge.student import quantile
from opgauge.harness.result.summary import OPTIMIZED
from opgauge.harness.store.past import Past
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.charts import as_json, trace
from opgauge.web.history_figure import Timeline
from opgauge.web.reader import Recent
from opgauge.web.text import bytes_unit

CONFIDENCE = 0.95
"""Confidence of the interval around a geometric mean."""


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """Geometric mean over cases of time ÷ usual time of the case, with its interval. cases: how many had a time."""

    run: RunInfo
    ratio: float
    low: float
    high: float
    cases: int


def op_trend(recent: Recent, op: str, slug: str, implementation: str = OPTIMIZED) -> list[TrendPoint]:
    """One point per run of the recent history on a device, oldest commit first.

    The usual time of a case is the median of its series, so cases that are missing in a run move the mean little. The
    interval is Student's, over the cases; one case alone has none.
    """
    logs: dict[int, list[float]] = {}
    for (case_id, name, device), levels in recent.series.items():
        if name != implementation or device != slug or recent.cases[case_id].op != op:
            continue
        times = [(level.run.key, level.median_ns) for level in levels if level.median_ns]
        usual = median(time for _, time in times) if times else 0.0
        for run, time in times:
            logs.setdefault(run, []).append(log(time / usual))
    return [_point(run, logs[run.key]) for run in recent.runs if run.key in logs]


def _point(run: RunInfo, logs: Sequence[float]) -> TrendPoint:
    middle, half = fmean(logs), 0.0
    if len(logs) > 1:
        half = quantile((1 - CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return TrendPoint(run, exp(middle), exp(middle - half), exp(middle + half), len(logs))


def trend_figure(points: Sequence[TrendPoint], timeline: Timeline) -> str | None:
    """Trend of an op as a figure; None for fewer than two commits."""
    if len({timeline.date(point.run) for point in points}) < 2:
        return None
    ratios = [100 * (point.ratio - 1) for point in points]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [100 * (point.high - point.ratio) for point in points],
        "arrayminus": [100 * (point.ratio - point.low) for point in points],
        "thickness": 1,
        "width": 2,
    }
    line = trace(
        "scatter",
        OPTIMIZED,
        mode="lines+markers",
        x=[timeline.date(point.run) for point in points],
        y=ratios,
        error_y=error,
        text=[f"{timeline.label(point.run)}<br>{counted(point.cases, 'case')}" for point in points],
        customdata=[point.run.id for point in points],
        marker={"size": 6},
        line={"width": 1.5},
        hovertemplate="%{text}<br>%{x}<br>%{y:+.2f} %<extra></extra>",
    )
    return as_json(
        [line],
        xaxis=timeline.axis(point.run for point in points),
        yaxis={"title": {"text": "time against usual, %"}, "ticksuffix": " %", "fixedrange": False},
        hovermode="closest",
        showlegend=False,
        meta={"slot": "figure"},
    )


def resource_figures(
    found: Iterable[Past], runs: Sequence[RunInfo], timeline: Timeline
) -> tuple[str | None, str | None]:
    """Peak memory and kernel launches by commit as figures; None where nothing was stored, or of one run only."""
    memory: dict[str, dict[int, float]] = {}
    launches: dict[str, dict[int, float]] = {}
    drawn = {run.key for run in runs}
    for one in found:
        if one.run_key not in drawn or one.median_ns is None:
            continue
        for kind, stored in ((memory, one.peak_bytes), (launches, one.launches)):
            count = _whole(stored)
            if count is not None:
                kind.setdefault(one.implementation, {})[one.run_key] = count
    unit, size = bytes_unit(max((value for values in memory.values() for value in values.values()), default=0.0))
    scaled = {name: {run: value / size for run, value in values.items()} for name, values in memory.items()}
    return _steps(scaled, runs, timeline, unit), _steps(launches, runs, timeline, "launches a call")


def _whole(stored: object) -> int | None:
    """A count in stored JSON; None for anything else, as a run may come from anywhere."""
    shown = str(stored)
    return int(shown) if shown.isdecimal() else None


def _steps(
    series: Mapping[str, Mapping[int, float]], runs: Sequence[RunInfo], timeline: Timeline, unit: str
) -> str | None:
    """Numbers without noise, drawn as steps."""
    if len({run for values in series.values() for run in values}) < 2:
        return None
    traces: list[dict[str, Any]] = []
    for name in sorted(series, key=lambda one: (one != OPTIMIZED, one)):
        mine = [run for run in runs if run.key in series[name]]
        traces.append(
            trace(
                "scatter",
                name,
                mode="lines+markers",
                x=[timeline.date(run) for run in mine],
                y=[series[name][run.key] for run in mine],
                text=[timeline.label(run) for run in mine],
                customdata=[run.id for run in mine],
                line={"width": 1.5, "shape": "hv"},
                marker={"size": 5},
                hovertemplate=f"%{{text}}<br>%{{x}}<br>%{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>",
            )
        )
    return as_json(
        traces,
        xaxis={"type": "date", "title": {"text": "date of the commit"}},
        yaxis={"title": {"text": unit}, "rangemode": "tozero"},
        hovermode="closest",
        meta={"slot": "figure"},
    )
