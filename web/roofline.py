"""Rooflines: work rate over intensity, below what the device reached in the same run for a copy and a matrix product.

Work is the op's least: its flops, over bytes that any kernel has to move. What has no flops has no place in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.summary import OPTIMIZED
from opgauge.web.charts import SYMBOLS, as_json, literal, trace
from opgauge.web.rows import CaseLevels
from opgauge.web.text import share_text, time_text

COLOURS = 8
"""How many the page has for things that are no implementations."""
BEFORE, BEYOND = 4.0, 30.0
"""How far roofs go to the left of the first point and to the right of the last, where they say their names; factors."""
NEAR = 3.0
"""Ratio of two roofs up to which their names would overlap, over the decades that such a figure has."""
_RATES = "%{x:,.3~r} flop/byte, %{y:,.4~r} GFLOP/s"


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A case that was timed."""

    row: CaseLevels
    time_ns: float

    @property
    def intensity(self) -> float:
        """Flop per byte of the least traffic."""
        return self.row.flops / self.row.bytes

    @property
    def gflops(self) -> float:
        """Flop per nanosecond."""
        return self.row.flops / self.time_ns

    @property
    def roof_gflops(self) -> float | None:
        """The least of the slope and the matrix rate of the dtype; None where neither was measured."""
        reached = self.row.ceilings
        if reached is None:
            return None
        slope = reached.copy_gbps * self.intensity if reached.copy_gbps else None
        return min((one for one in (slope, reached.matrix_gflops.get(self.row.case.dtype)) if one), default=None)

    @property
    def share(self) -> float | None:
        """Share of the roof; above 1 if the kernel beats a large copy or computes in another dtype than its own."""
        return self.gflops / self.roof_gflops if self.roof_gflops else None


def counted(rows: Iterable[CaseLevels]) -> list[CaseLevels]:
    """Rows with counted work, flops and bytes."""
    return [row for row in rows if row.flops and row.bytes]


def points_of(rows: Iterable[CaseLevels], implementation: str = OPTIMIZED) -> list[RooflinePoint]:
    """A point per case with counted work that this implementation got right, in the order of the rows."""
    return [RooflinePoint(row, time) for row in counted(rows) if (time := row.time_ns(implementation))]


def by_implementation(rows: Sequence[CaseLevels], names: Sequence[str]) -> str | None:
    """A series per implementation; None where no work is counted."""
    series = [(name, place, points_of(rows, name)) for place, name in enumerate(names)]
    template = f"%{{text}}<br>{_RATES}<extra>%{{fullData.name}}</extra>"
    traces = [
        trace("scatter", name, **_placed(points, place), hovertemplate=template)
        for name, place, points in series
        if points
    ]
    return _figure(traces, counted(rows))


def by_op(points: Sequence[RooflinePoint], ops: Sequence[str]) -> str | None:
    """A series per op, with the colour and the symbol of its place among `ops`; None for no points."""
    series = [(op, place, [point for point in points if point.row.case.op == op]) for place, op in enumerate(ops)]
    said = "%{customdata[0]}, %{customdata[1]} of the roof"
    template = f"%{{text}}<br>{_RATES}<br>{said}<extra>%{{fullData.name}}</extra>"
    traces = [
        {
            "type": "scatter",
            "name": literal(op, 40),
            "meta": {"slot": f"kernel{place % COLOURS}"},
            **_placed(some, place),
            "customdata": [[time_text(one.time_ns), share_text(one.share)] for one in some],
            "hovertemplate": template,
        }
        for op, place, some in series
        if some
    ]
    return _figure(traces, [point.row for point in points])


def _placed(points: Sequence[RooflinePoint], place: int) -> dict[str, Any]:
    return {
        "mode": "markers",
        "x": [point.intensity for point in points],
        "y": [point.gflops for point in points],
        "text": [literal(f"{point.row.case.name} · {point.row.case.dtype}", 80) for point in points],
        "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9},
    }


def _figure(traces: Sequence[Mapping[str, Any]], rows: Sequence[CaseLevels]) -> str | None:
    if not rows:
        return None
    intensities = [row.flops / row.bytes for row in rows]
    span = (min(intensities) / BEFORE, max(intensities) * BEYOND)
    highest: dict[str, float] = {}
    for row, intensity in zip(rows, intensities, strict=True):
        highest[row.case.dtype] = max(highest.get(row.case.dtype, 0.0), intensity)
    found = _latest_ceilings(rows)
    roofs = [_roofs(reached, highest, span, f"{name}: " if len(found) > 1 else "") for name, reached in found]
    lines = list(chain(*roofs))
    _stack_labels(lines)
    return as_json(
        [*traces, *lines],
        xaxis={"type": "log", "title": {"text": "flop per byte of the least traffic"}},
        yaxis={"type": "log", "title": {"text": "GFLOP/s"}},
        meta={"slot": "figure"},
    )


def _latest_ceilings(rows: Iterable[CaseLevels]) -> list[tuple[str, Ceilings]]:
    """Per device, by name, those of the latest run: several would be drawn on top of each other."""
    newest_last = sorted(rows, key=lambda row: (row.run.started, row.run.key))
    found = {row.device.slug: (row.device.name, row.ceilings) for row in newest_last if row.ceilings}
    return list(found.values())


def _roofs(
    reached: Ceilings, highest: Mapping[str, float], span: tuple[float, float], device: str
) -> list[dict[str, Any]]:
    """The slope of a copy as far as it is a roof, and the rate of each dtype from where it leaves the slope.

    highest: the highest intensity by dtype; where no rate was measured for that, the slope goes on until there.
    """
    copy, (first, last) = reached.copy_gbps, span
    rates = {dtype: rate for dtype, rate in reached.matrix_gflops.items() if dtype in highest}
    knees = {dtype: rate / copy if copy else first for dtype, rate in rates.items()}
    end = (
        min(max((knees | {one: highest[one] for one in highest.keys() - rates.keys()}).values()), last)
        if rates
        else last
    )
    lines = []
    if copy and end > first:
        lines.append(_line((first, end), (copy * first, copy * end), f"{device}copy {copy:.4g} GB/s", "bottom right"))
    for dtype, knee in knees.items():
        rate = rates[dtype]
        shown = f"{rate / 1e3:.3g} TFLOP/s" if rate >= 1e3 else f"{rate:.3g} GFLOP/s"
        if knee < last:
            lines.append(_line((last, max(knee, first)), (rate, rate), f"{device}{dtype} matrix {shown}", "top left"))
    return lines


def _stack_labels(lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the names of level lines close to each other above the highest of them, where they do not overlap."""
    level = [line for line in lines if line["y"][0] == line["y"][1]]
    top: Mapping[str, Any] | None = None
    for line in sorted(level, key=lambda line: line["y"][0], reverse=True):
        if top is None or top["y"][0] > NEAR * line["y"][0]:
            top = line
        else:
            top["text"][0] += f"<br>{line['text'][0]}"
            line["text"][0] = ""


def _line(xs: Sequence[float], ys: Sequence[float], label: str, at: str) -> dict[str, Any]:
    """A dashed line that says its name where it begins."""
    return {
        "type": "scatter",
        "name": literal(label),
        "meta": {"slot": "muted"},
        "mode": "lines+text",
        "x": xs,
        "y": ys,
        "text": [literal(label), ""],
        "textposition": at,
        "cliponaxis": False,
        "line": {"dash": "dash", "width": 1.5},
        "showlegend": False,
        "hoverinfo": "name",
    }
