"""Charts as JSON for Plotly. Colours and fonts are the page's: opgauge.js lays them over by theme.

Every name in a figure comes from outside. Plotly reads a little HTML in texts, so they pass
through `literal`, and hover templates are constants that refer to values by place. Figures are plain
dicts: making them of plotly's classes takes longer than all the rest of a page. The tests check them against those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from html import escape
from statistics import median
from typing import Any
from zlib import crc32

import numpy as np

from opgauge.harness.json_text import write_compact
from opgauge.harness.judge.changepoint import ChangePoint
from opgauge.harness.result.summary import BASELINE, OPTIMIZED
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.history import History
from opgauge.web.level import Level
from opgauge.web.profile import KernelTime
from opgauge.web.rows import CaseLevels

_PEER_SLOTS = {"torch": "torch", "torch_compile": "compile", "torchvision": "vision"}
SLOTS = {BASELINE: "baseline", OPTIMIZED: "optimized", **_PEER_SLOTS}
"""Colours of implementations by name, as the style sheet calls them."""
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star")
"""Markers, in the order of the series."""
LABEL = 34
"""Most characters of a name in a legend."""
_VERDICTS = {"slower": "triangle-up", "faster": "triangle-down", "undecided": "diamond", "broken": "x"}
MOST_SAMPLES = 2000
DIGITS = 5
"""Decimals of a time in the unit that its figure has: more are not seen, and would be sent."""
ANGLES = ((5, 0), (12, -35), (math.inf, -90))
"""Degrees by which names of three lines are turned so as not to cover each other, by the most of them."""
NEAR = 4.0
"""Series whose usual time is more than this many times the first one's are drawn when asked for."""


def literal(text: object, most: int = 0) -> str:
    """A text that Plotly shows as it is; shortened in the middle when longer than `most`."""
    shown = str(text)
    if most and len(shown) > most:
        half = (most - 1) // 2
        shown = f"{shown[:half]}…{shown[-half:]}"
    return escape(shown, quote=False).replace("$", "&#36;")


def slot(implementation: str) -> str:
    """The page's colour for an implementation: `baseline`, `optimized`, a peer's, or one of four by its name."""
    return SLOTS.get(implementation, f"other{crc32(implementation.encode('utf-8', 'replace')) % 4}")


def unit_of(times_ns: Iterable[float | None]) -> tuple[str, float]:
    """The unit in which the largest of these times is read best, and how many nanoseconds it has."""
    largest = max((time for time in times_ns if time), default=0.0)
    return next(((name, size) for name, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if largest >= size), ("ns", 1.0))


def trace(kind: str, implementation: str, **given: Any) -> dict[str, Any]:
    """A series of an implementation, named and coloured by it."""
    return {"type": kind, "name": literal(implementation, LABEL), "meta": {"slot": slot(implementation)}, **given}


def as_json(traces: Sequence[Mapping[str, Any]], **layout: Any) -> str:
    """A figure as the page holds it."""
    return write_compact({"data": traces, "layout": layout}).decode()


def bars(
    rows: Sequence[CaseLevels], names: Sequence[str], hot: Mapping[tuple[str, str, str], float] | None = None
) -> str:
    """Time of each implementation, a group per case; from `hot` by case, device and implementation where given."""
    several = len({row.device.slug for row in rows}) > 1
    labels = [_label(row, several=several) for row in rows]
    places = list(range(len(rows)))
    times = {
        name: [row.time_ns(name) if hot is None else hot.get((row.case.case_id, row.device.slug, name)) for row in rows]
        for name in names
    }
    unit, size = unit_of(time for found in times.values() for time in found)
    template = f"%{{text}}<br>%{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>"
    traces = []
    for name, found in times.items():
        shown = [None if time is None else time / size for time in found]
        given = {"x": places, "y": shown, "text": labels, "textposition": "none", "hovertemplate": template}
        traces.append(trace("bar", name, **given))
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": [_tick(row, several=several) for row in rows]}
    return as_json(
        traces,
        barmode="group",
        xaxis={**ticks, "tickangle": next(angle for most, angle in ANGLES if len(rows) <= most)},
        yaxis={"type": "log", "title": {"text": f"{unit}, log scale"}, "dtick": "D2", **_below(traces)},
        meta={"slot": "figure"},
    )


def _below(traces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A logarithmic axis that begins well below the shortest bar: it would be no bar otherwise."""
    times = [time for trace in traces for time in trace["y"] if time]
    return {"range": [math.log10(min(times) / 3), math.log10(max(times) * 1.2)]} if times else {}


def _tick(row: CaseLevels, *, several: bool) -> str:
    """A short name: what varies goes to a line of its own."""
    name, _, inside = row.case.name.partition("[")
    varying = [part for part in inside.removesuffix("]").split(",") if part and part != row.case.dtype]
    lines = [name, ", ".join(varying), f"{row.case.dtype} {row.device.name}" if several else row.case.dtype]
    return "<br>".join(literal(line, 24) for line in lines if line)


def _label(row: CaseLevels, *, several: bool) -> str:
    return literal(f"{row.case.name} · {row.case.dtype}" + (f" · {row.device.name}" if several else ""), 80)


def history(
    series: Mapping[str, Sequence[Level]],
    quantiles: Mapping[tuple[int, str], tuple[float, float]],
    changes: Mapping[str, Sequence[tuple[Level, Level, ChangePoint]]],
    history: History,
    beside: Mapping[str, Sequence[Level]] | None = None,
) -> str:
    """Medians by commit with an interval each; change points as larger rings.

    quantiles: quartiles by run and implementation, for runs of one process. history: dates of the commits. beside: runs
    of other branches and modified files, drawn as open points.
    """
    usual = {
        name: median(times)
        for name, levels in series.items()
        if (times := [t.median_ns for t in levels if t.median_ns])
    }
    first = next(iter(usual.values()), 0.0)
    near = {name for name, time in usual.items() if time <= NEAR * first}
    unit, size = unit_of(time for name, time in usual.items() if name in near)
    template = f"%{{text}}<br>%{{x}}<br>%{{y:.4g}} {unit}<extra>%{{fullData.name}}</extra>"
    traces: list[Any] = []
    texts: dict[int, tuple[str, str]] = {}
    for place, (name, levels) in enumerate(series.items()):
        known = [(level, level.median_ns) for level in levels if level.median_ns]
        spans = [_span(level, quantiles.get((level.run.key, name))) for level, _ in known]
        told = [_told(level.run, texts, history) for level, _ in known]
        lows, highs = np.array(spans).reshape(-1, 2).T / size
        ys = np.round(np.array([time for _, time in known]) / size, DIGITS)
        error = {
            "type": "data",
            "symmetric": False,
            "array": np.round(np.maximum(highs - ys, 0.0), DIGITS).tolist(),
            "arrayminus": np.round(np.maximum(ys - lows, 0.0), DIGITS).tolist(),
            "thickness": 1,
            "width": 2,
        }
        traces.append(
            trace(
                "scatter",
                name,
                mode="lines+markers",
                x=[when for when, _ in told],
                y=ys.tolist(),
                error_y=error,
                text=[label for _, label in told],
                customdata=[level.run.id for level, _ in known],
                marker={"size": 6, "symbol": SYMBOLS[place % len(SYMBOLS)]},
                line={"width": 1.5},
                visible=True if name in near else "legendonly",
                hovertemplate=template,
            )
        )
        traces += _rings(name, changes.get(name, ()), size, history) if name in near else []
        traces += _open_points(name, (beside or {}).get(name, ()), size, history, template) if name in near else []
    return as_json(
        traces,
        xaxis={"type": "date", "title": {"text": "date of the commit"}, **_around_one(series, history)},
        yaxis={"title": {"text": unit}, "rangemode": "tozero"},
        hovermode="closest",
        meta={"slot": "figure"},
    )


def _open_points(
    name: str, levels: Sequence[Level], size: float, history: History, template: str
) -> list[dict[str, Any]]:
    """Runs that are not part of the history."""
    known = [level for level in levels if level.median_ns]
    if not known:
        return []
    texts = [
        literal(f"{level.run.branch or 'no branch'}{', modified' if level.run.dirty else ''} · {level.run.commit[:10]}")
        for level in known
    ]
    given = {
        "x": [_second(level.run, history) for level in known],
        "y": [(level.median_ns or 0.0) / size for level in known],
        "text": [f"{text} · run {level.run.id[:8]}" for text, level in zip(texts, known, strict=True)],
        "customdata": [level.run.id for level in known],
        "mode": "markers",
        "marker": {"size": 8, "symbol": "circle-open"},
        "hovertemplate": template,
        "visible": True if name == OPTIMIZED else "legendonly",
    }
    return [{**trace("scatter", name, **given), "name": literal(f"{name}: other branches", LABEL)}]


def _around_one(series: Mapping[str, Sequence[Level]], history: History) -> dict[str, Any]:
    """A day around a single run, whose axis would otherwise count milliseconds."""
    runs = {level.run.key: level.run for levels in series.values() for level in levels}
    if len(runs) != 1:
        return {}
    (run,) = runs.values()
    return {"range": [(history.order(run)[0] + way * timedelta(hours=12)).isoformat(" ")[:19] for way in (-1, 1)]}


def _second(run: RunInfo, history: History) -> str:
    """Date of the commit of a run, as Plotly reads it."""
    return history.order(run)[0].isoformat(" ")[:19]


def _told(run: RunInfo, known: dict[int, tuple[str, str]], history: History) -> tuple[str, str]:
    """Date and label of a run, made once for all series."""
    if run.key not in known:
        label = literal(f"{run.commit[:10] or 'no commit'} · run {run.id[:8]} of {run.started:%Y-%m-%d %H:%M}")
        known[run.key] = (_second(run, history), label)
    return known[run.key]


def _rings(name: str, changes: Sequence[tuple[Level, Level, ChangePoint]], size: float, history: History) -> list[Any]:
    if not changes:
        return []
    given = {
        "x": [_second(after.run, history) for _, after, _ in changes],
        "y": [(after.median_ns or point.after) / size for _, after, point in changes],
        "text": [
            f"{100 * (point.ratio - 1):+.1f} % since {literal(after.run.commit[:10])}" for _, after, point in changes
        ],
        "mode": "markers",
        "marker": {"size": 18, "symbol": "circle-open", "line": {"width": 2}},
        "showlegend": False,
        "hovertemplate": "change point<br>%{text}<extra></extra>",
    }
    return [{"type": "scatter", "name": literal(f"{name}: change point"), "meta": {"slot": "change"}, **given}]


def _span(level: Level, quartiles: tuple[float, float] | None) -> tuple[float, float]:
    if level.blocks > 1 or quartiles is None:
        middle = level.median_ns or 0.0
        return level.low_ns or middle, level.high_ns or middle
    return quartiles


def distribution(name: str, samples: Mapping[int, Sequence[float]]) -> str:
    """Raw samples of one implementation by block: boxes with every sample in them."""
    unit, size = unit_of(value for values in samples.values() for value in values)
    traces = [
        trace(
            "box",
            name,
            x=[f"process {block}"] * len(values[:MOST_SAMPLES]),
            y=[round(value / size, DIGITS) for value in values[:MOST_SAMPLES]],
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            marker={"size": 3, "opacity": 0.6},
            line={"width": 1},
            showlegend=False,
            hovertemplate=f"%{{y:.4g}} {unit}<extra>%{{x}}</extra>",
        )
        for block, values in samples.items()
    ]
    # a block or two do not stretch over the whole width
    spare = max(4 - len(samples), 0) / 2
    across = {"type": "category", "range": [-0.5 - spare, len(samples) - 0.5 + spare]}
    return as_json(traces, yaxis={"title": {"text": unit}}, xaxis=across, meta={"slot": "figure"})


def kernel_bars(kernels: Mapping[str, Sequence[KernelTime]]) -> str:
    """A bar per implementation, its kernels stacked."""
    names = list(dict.fromkeys(kernel.name for found in kernels.values() for kernel in found))
    traces = []
    bars_of = list(kernels)
    unit, size = unit_of(sum(kernel.time_ns for kernel in found) for found in kernels.values())
    for place, name in enumerate(names[:40]):
        times = [sum(kernel.time_ns for kernel in kernels[one] if kernel.name == name) / size for one in bars_of]
        traces.append(
            {
                "type": "bar",
                "name": literal(name, 60),
                "meta": {"slot": f"kernel{place % 8}"},
                "orientation": "h",
                "y": [literal(one, LABEL) for one in bars_of],
                "x": times,
                "hovertemplate": f"%{{fullData.name}}<br>%{{x:.4g}} {unit}<extra>%{{y}}</extra>",
                "marker": {"pattern": {"shape": ("", "/", "x", ".")[place // 8 % 4]}},
            }
        )
    return as_json(
        traces,
        barmode="stack",
        xaxis={"title": {"text": f"{unit} per call"}},
        yaxis={"type": "category", "autorange": "reversed"},
        meta={"slot": "figure"},
    )


def ratios(
    labels: Sequence[str], values: Sequence[tuple[float, float | None, float | None]], words: Sequence[str]
) -> str:
    """Ratios with intervals in the order given, a colour per verdict; no change is a line."""
    traces = []
    for word in dict.fromkeys(words):
        places = [place for place, one in enumerate(words) if one == word]
        spans = [_ends(values[place]) for place in places]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [100 * (high - value) for _, value, high in spans],
            "arrayminus": [100 * (value - low) for low, value, _ in spans],
            "thickness": 1,
        }
        traces.append(
            {
                "type": "scatter",
                "name": word,
                "meta": {"slot": f"v-{word}"},
                "mode": "markers",
                "x": [100 * (value - 1) for _, value, _ in spans],
                "y": places,
                "text": [literal(labels[place], 90) for place in places],
                "marker": {"size": 7, "symbol": _VERDICTS.get(word, "circle")},
                "error_x": error,
                "hovertemplate": "%{text}<br>%{x:+.2f} %<extra>%{fullData.name}</extra>",
            }
        )
    zero = {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "line": {"width": 1, "dash": "dot"}}
    return as_json(
        traces,
        xaxis={"title": {"text": "time of head against base, %: left is faster"}},
        yaxis={"showticklabels": False, "autorange": "reversed", "title": {"text": "cases, slowest first"}},
        shapes=[zero],
        meta={"slot": "figure"},
    )


def _ends(given: tuple[float, float | None, float | None]) -> tuple[float, float, float]:
    value, low, high = given
    return min(value if low is None else low, value), value, max(value if high is None else high, value)
