"""Figures as JSON for Plotly. Colours and fonts are the page's: opgauge.js lays them over by theme.

Every name in a figure comes from outside. Plotly reads a little HTML in texts, so they pass
through `literal`, and hover templates are constants that refer to values by place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from harness.changepoint import ChangePoint
from harness.result import Ceilings
from harness.summary import BASELINE, OPTIMIZED
from web.profile import KernelTime
from web.reader import Level
from web.rows import CaseRow

SLOTS = {BASELINE: "baseline", OPTIMIZED: "optimized", "torch": "torch", "torch_compile": "compile"}
SLOTS["torchvision"] = "vision"
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star")
LABEL = 34
MOST_SAMPLES = 2000


def literal(text: object, most: int = 0) -> str:
    """A text that Plotly shows as it is; shortened in the middle when longer than `most`."""
    shown = str(text)
    if most and len(shown) > most:
        half = (most - 1) // 2
        shown = f"{shown[:half]}…{shown[-half:]}"
    return escape(shown, quote=False).replace("$", "&#36;")


def slot(implementation: str, place: int = 0) -> str:
    """The page's colour for an implementation: `baseline`, `optimized`, a peer's, or one of the others' in turn."""
    return SLOTS.get(implementation, f"other{place % 4}")


def _trace(kind: Any, implementation: str, place: int, **given: Any) -> Any:
    return kind(name=literal(implementation, LABEL), meta={"slot": slot(implementation, place)}, **given)


def _json(traces: Sequence[Any], **layout: Any) -> str:
    figure = go.Figure(data=list(traces), layout=go.Layout(template=None, **layout))
    return json.dumps(json.loads(figure.to_json(validate=False)), allow_nan=False)


def bars(rows: Sequence[CaseRow], names: Sequence[str], hot: Mapping[tuple[str, str, str], float] | None = None) -> str:
    """Time of each implementation, a group per case; from `hot` by case, device and implementation where given."""
    traces = []
    several = len({row.device.slug for row in rows}) > 1
    labels = [_label(row, several=several) for row in rows]
    places = list(range(len(rows)))
    for place, name in enumerate(names):
        if hot is None:
            times = [row.time_ns(name) for row in rows]
        else:
            times = [hot.get((row.case.case_id, row.device.slug, name)) for row in rows]
        shown = [None if time is None else time / 1e3 for time in times]
        template = "%{text}<br>%{y:.4g} µs<extra>%{fullData.name}</extra>"
        given = {"x": places, "y": shown, "text": labels, "textposition": "none", "hovertemplate": template}
        traces.append(_trace(go.Bar, name, place, **given))
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": [literal(_case_label(row), 18) for row in rows]}
    return _json(
        traces,
        barmode="group",
        xaxis={**ticks, "tickangle": -40 if len(rows) > 4 else 0},
        yaxis={"type": "log", "title": {"text": "µs, log scale"}},
        meta={"slot": "figure"},
    )


def _case_label(row: CaseRow) -> str:
    return row.case.name


def _label(row: CaseRow, *, several: bool) -> str:
    return literal(f"{row.case.name} · {row.case.dtype}" + (f" · {row.device.name}" if several else ""), 80)


def roofline(rows: Sequence[CaseRow], names: Sequence[str]) -> str | None:
    """Work rate over intensity, with the ceilings of each device as lines; None where no work is counted."""
    counted = [row for row in rows if row.flops and row.bytes]
    if not counted:
        return None
    traces: list[Any] = []
    for place, name in enumerate(names):
        some = [(row, time) for row in counted if (time := row.time_ns(name))]
        if not some:
            continue
        template = "%{text}<br>%{x:.3g} flop/byte, %{y:.4g} GFLOP/s<extra>%{fullData.name}</extra>"
        traces.append(
            _trace(
                go.Scatter,
                name,
                place,
                mode="markers",
                x=[row.flops / row.bytes for row, _ in some],
                y=[row.flops / time for row, time in some],
                text=[literal(f"{row.case.name} · {row.case.dtype}", 80) for row, _ in some],
                marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9},
                hovertemplate=template,
            )
        )
    intensities = [row.flops / row.bytes for row in counted]
    span = (min(intensities) / 4, max(intensities) * 4)
    devices = {row.device.slug: row for row in counted}
    for row in devices.values():
        traces += _ceilings(row.ceilings, {one.case.dtype for one in counted}, span, row.device.name)
    return _json(
        traces,
        xaxis={"type": "log", "title": {"text": "flop per byte"}},
        yaxis={"type": "log", "title": {"text": "GFLOP/s"}},
        meta={"slot": "figure"},
    )


def _ceilings(reached: Ceilings | None, dtypes: set[str], span: tuple[float, float], device: str) -> list[Any]:
    if reached is None or not reached.copy_gbps:
        return []
    copy = reached.copy_gbps
    rates = {dtype: rate for dtype, rate in reached.matrix_gflops.items() if dtype in dtypes}
    lines = []
    for dtype, rate in (rates or {"": math.inf}).items():
        knee = rate / copy
        xs = [span[0], *([knee] if span[0] < knee < span[1] else []), span[1]]
        ys = [min(copy * x, rate) for x in xs]
        name = f"{device}: copy {copy:.4g} GB/s" + (f", {dtype} matrix {rate / 1e3:.3g} TFLOP/s" if dtype else "")
        line = {"dash": "dash", "width": 1.5}
        given = {"x": xs, "y": ys, "mode": "lines", "line": line, "hoverinfo": "name"}
        lines.append(go.Scatter(name=literal(name), meta={"slot": "muted"}, **given))
    return lines


def history(
    series: Mapping[str, Sequence[Level]],
    quantiles: Mapping[tuple[int, str], tuple[float, float]],
    changes: Mapping[str, Sequence[tuple[Level, Level, ChangePoint]]],
) -> str:
    """Medians by run with an interval each; change points as larger rings.

    quantiles: quartiles by run and implementation, for runs of one block.
    """
    traces: list[Any] = []
    for place, (name, levels) in enumerate(series.items()):
        known = [(level, level.median_ns) for level in levels if level.median_ns]
        spans = [_span(level, quantiles.get((level.run.key, name))) for level, _ in known]
        labels = [f"{level.run.commit[:10] or 'no commit'} · run {level.run.id[:8]}" for level, _ in known]
        xs = [f"{level.run.started:%Y-%m-%d %H:%M:%S}" for level, _ in known]
        ys = [time / 1e3 for _, time in known]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [max(high / 1e3 - y, 0.0) for (_, high), y in zip(spans, ys, strict=True)],
            "arrayminus": [max(y - low / 1e3, 0.0) for (low, _), y in zip(spans, ys, strict=True)],
            "thickness": 1,
            "width": 2,
        }
        traces.append(
            _trace(
                go.Scatter,
                name,
                place,
                mode="lines+markers",
                x=xs,
                y=ys,
                error_y=error,
                text=[literal(label) for label in labels],
                customdata=[level.run.id for level, _ in known],
                marker={"size": 6, "symbol": SYMBOLS[place % len(SYMBOLS)]},
                line={"width": 1.5},
                hovertemplate="%{text}<br>%{x}<br>%{y:.4g} µs<extra>%{fullData.name}</extra>",
            )
        )
        traces += _rings(name, changes.get(name, ()))
    return _json(
        traces,
        xaxis={"type": "date"},
        yaxis={"title": {"text": "µs"}, "rangemode": "tozero"},
        hovermode="closest",
        meta={"slot": "figure"},
    )


def _rings(name: str, changes: Sequence[tuple[Level, Level, ChangePoint]]) -> list[Any]:
    if not changes:
        return []
    given = {
        "x": [f"{after.run.started:%Y-%m-%d %H:%M:%S}" for _, after, _ in changes],
        "y": [(after.median_ns or point.after) / 1e3 for _, after, point in changes],
        "text": [
            f"{100 * (point.ratio - 1):+.1f} % since {literal(after.run.commit[:10])}" for _, after, point in changes
        ],
        "mode": "markers",
        "marker": {"size": 18, "symbol": "circle-open", "line": {"width": 2}},
        "showlegend": False,
        "hovertemplate": "change point<br>%{text}<extra></extra>",
    }
    return [go.Scatter(name=literal(f"{name}: change point"), meta={"slot": "change"}, **given)]


def _span(level: Level, quartiles: tuple[float, float] | None) -> tuple[float, float]:
    if level.blocks > 1 or quartiles is None:
        middle = level.median_ns or 0.0
        return level.low_ns or middle, level.high_ns or middle
    return quartiles


def distribution(samples: Mapping[tuple[str, int], Sequence[float]]) -> str:
    """Raw samples by implementation and block: boxes with every sample beside."""
    traces = []
    names = list(dict.fromkeys(name for name, _ in samples))
    for (name, block), values in samples.items():
        kept = values[:MOST_SAMPLES]
        trace = _trace(
            go.Box,
            name,
            names.index(name),
            x=[literal(f"{name} · block {block}", LABEL)] * len(kept),
            y=[value / 1e3 for value in kept],
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            marker={"size": 3, "opacity": 0.6},
            line={"width": 1},
            showlegend=False,
            hovertemplate="%{y:.4g} µs<extra>%{x}</extra>",
        )
        traces.append(trace)
    return _json(traces, yaxis={"title": {"text": "µs"}}, xaxis={"type": "category"}, meta={"slot": "figure"})


def kernel_bars(kernels: Mapping[str, Sequence[KernelTime]]) -> str:
    """A bar per implementation, its kernels stacked."""
    names = list(dict.fromkeys(kernel.name for found in kernels.values() for kernel in found))
    traces = []
    bars_of = list(kernels)
    for place, name in enumerate(names[:40]):
        times = [sum(kernel.time_ns for kernel in kernels[one] if kernel.name == name) / 1e3 for one in bars_of]
        traces.append(
            go.Bar(
                name=literal(name, 60),
                meta={"slot": f"kernel{place % 8}"},
                orientation="h",
                y=[literal(one, LABEL) for one in bars_of],
                x=times,
                hovertemplate="%{fullData.name}<br>%{x:.4g} µs<extra>%{y}</extra>",
                marker={"pattern": {"shape": ("", "/", "x", ".")[place // 8 % 4]}},
            )
        )
    return _json(
        traces,
        barmode="stack",
        xaxis={"title": {"text": "µs per call"}},
        yaxis={"type": "category", "autorange": "reversed"},
        meta={"slot": "figure"},
    )


def ratios(
    labels: Sequence[str], values: Sequence[tuple[float, float | None, float | None]], words: Sequence[str]
) -> str:
    """Ratios with intervals, sorted as given; 1 is a line."""
    spans = [(value if low is None else low, value, value if high is None else high) for value, low, high in values]
    given = {
        "x": [100 * (value - 1) for _, value, _ in spans],
        "y": list(range(len(spans))),
        "text": [literal(label, 90) for label in labels],
        "customdata": list(words),
        "mode": "markers",
        "marker": {"size": 7},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [100 * max(high - value, 0.0) for _, value, high in spans],
            "arrayminus": [100 * max(value - low, 0.0) for low, value, _ in spans],
            "thickness": 1,
        },
        "hovertemplate": "%{text}<br>%{x:+.2f} %<br>%{customdata}<extra></extra>",
    }
    zero = {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "line": {"width": 1, "dash": "dot"}}
    return _json(
        [go.Scatter(name="head over base", meta={"slot": "optimized"}, showlegend=False, **given)],
        xaxis={"title": {"text": "time of head against base, %: left is faster"}},
        yaxis={"showticklabels": False, "autorange": "reversed", "title": {"text": "cases, slowest first"}},
        shapes=[zero],
        meta={"slot": "figure"},
    )
