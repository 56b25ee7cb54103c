"""A figure's data as CSV: the values that Plotly draws, a row per point."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any

from opgauge.harness.report.export import Quoted

COLUMNS = ("series", "label", "x", "y", "x_low", "x_high", "y_low", "y_high")
"""Columns of every table; those without any value are left out."""
_BREAK = re.compile(r"<br\s*/?>")


def figure_csv(figure: str) -> str:
    """Points of a figure, given as JSON for Plotly; `low` and `high` are the ends of error bars."""
    document = json.loads(figure)
    rows = [row for trace in document["data"] for row in _rows(trace)]
    used = [name for name in COLUMNS if any(row.get(name) not in {None, ""} for row in rows)]
    cells = Quoted()
    heads: list[Any] = [_head(name, document["layout"]) for name in used]
    lines = [[row.get(name) for name in used] for row in rows]
    return "\n".join(",".join(_cell(value, cells) for value in line) for line in [heads, *lines]) + "\n"


def _head(name: str, layout: Mapping[str, Any]) -> str:
    """Name of a column, with the title of its axis, which has the unit."""
    axis = layout.get(f"{name[0]}axis", {}) if name[0] in "xy" else {}
    title = _plain(axis.get("title", {}).get("text", ""))
    return f"{name} ({title})" if title else name


def _rows(trace: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    series = _plain(trace.get("name", ""))
    xs, ys = trace.get("x") or [], trace.get("y") or []
    texts = trace.get("text")
    for place, (x, y) in enumerate(zip(xs, ys, strict=False)):
        label = texts[place] if isinstance(texts, list) and place < len(texts) else texts or ""
        ends = {**_ends("x", x, trace.get("error_x"), place), **_ends("y", y, trace.get("error_y"), place)}
        yield {"series": series, "label": _plain(label), "x": x, "y": y, **ends}


def _ends(axis: str, value: Any, error: Mapping[str, Sequence[float]] | None, place: int) -> dict[str, float]:
    if not error or not isinstance(value, int | float):
        return {}
    return {f"{axis}_low": value - error["arrayminus"][place], f"{axis}_high": value + error["array"][place]}


def _plain(text: object) -> str:
    """A text of Plotly without its HTML."""
    words = str(text)
    return unescape(_BREAK.sub(", ", words)) if "<" in words or "&" in words else words


def _cell(value: object, cells: Quoted) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:.8g}" if isinstance(value, float) else str(value)
    return cells[_plain(value)]
