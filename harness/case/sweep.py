"""Sweeps: fields with several values, the points that they span, and names for the points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from opgauge.harness.case.hint import show
from opgauge.harness.errors import Position


@dataclass(frozen=True, slots=True)
class SweepValue:
    """One value of a field, and its position in the file."""

    value: Any
    place: Position


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """Fields that vary together, by dotted path, and the values they take: a row per step."""

    paths: tuple[str, ...]
    rows: tuple[tuple[SweepValue, ...], ...]


Point = Mapping[str, SweepValue]


def count_points(axes: Sequence[SweepAxis]) -> int:
    """Number of points that the axes span, without making them."""
    return math.prod(len(axis.rows) for axis in axes)


def expand(axes: Sequence[SweepAxis]) -> Iterator[Point]:
    """Every point; the last axis varies fastest."""
    for rows in product(*(axis.rows for axis in axes)):
        pairs = zip(axes, rows, strict=True)
        yield {path: choice for axis, row in pairs for path, choice in zip(axis.paths, row, strict=True)}


def varying(axes: Sequence[SweepAxis]) -> tuple[str, ...]:
    """The paths that take more than one value, dtype first."""
    paths = [path for axis in axes if len(axis.rows) > 1 for path in axis.paths]
    return tuple(sorted(paths, key=lambda path: path != "dtype"))


def point_name(name: str, paths: Sequence[str], point: Point) -> str:
    """`name` with the values of the varying `paths`: `seed-1[float32,porder=2]`."""
    if not paths:
        return name
    return f"{name}[{','.join(_label(path, point[path].value) for path in paths)}]"


def _label(path: str, value: Any) -> str:
    section, _, key = path.partition(".")
    if section == "dtype":
        return str(value)
    if section == "shapes":
        return f"{key}={'x'.join(map(str, value)) or 'scalar'}"
    return f"{key}={_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(_short(item) for item in value)})"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return value if isinstance(value, str) else show(value)
