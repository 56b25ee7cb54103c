"""Charts as JSON for Plotly. Colours and fonts are the page's: opgauge.js lays them over by theme.

Every name in a figure comes from outside. Plotly reads a little HTML in texts, so they pass
through `literal`, and hover templates are constants that refer to values by place. Figures are plain
dicts: making them of plotly's classes takes longer than all the rest of a page. The tests check them against those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from zlib import crc32

import numpy as np

from opgauge.harness.json_text import write_compact
from opgauge.harness.result.summary import BASELINE, OPTIMIZED
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
"""Decimals of a time in the unit that its figure has, and of a percentage: more are not seen, and would be sent."""
ANGLES = ((5, 0), (12, -35), (math.inf, -90))
"""Degrees by which names of three lines are turned so as not to cover each other, by the most of them."""


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
    ends = np.array(values, np.float64)
    middle = ends[:, :1]
    changes = np.round(100 * (middle - 1), DIGITS)
    # an end that is not known, and a side that does not reach the ratio, have no length
    bars = np.round(np.fmax((ends[:, 1:] - middle) * (-100, 100), 0.0), DIGITS)
    traces = []
    for word in dict.fromkeys(words):
        places = [place for place, one in enumerate(words) if one == word]
        below, above = bars[places].T.tolist()
        error = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1}
        traces.append(
            {
                "type": "scatter",
                "name": word,
                "meta": {"slot": f"v-{word}"},
                "mode": "markers",
                "x": changes[places, 0].tolist(),
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
