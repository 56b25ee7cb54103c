"""Axes of tensors that broadcast, for Numba kernels: merged where operands allow it, the innermost one a line."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from opgauge.ops._cpu.jit import INNER


class Axes(NamedTuple):
    """Outer axes, outermost first: int64 arrays of lengths and of strides in dout and in weight, in elements."""

    lengths: Any
    dout: Any
    weight: Any


class InnerAxis(NamedTuple):
    """The innermost axis: its length, whether weight varies along it, repeats, and last.

    A line that is summed along columns may consist of several repeats of its results: rows of a short innermost axis.
    last: elements of the last of these lines, which may have fewer rows.
    """

    length: int
    dense: bool
    repeats: int
    last: int


def numbers_of(kept: Axes, summed: Axes, line: InnerAxis) -> Any:
    """The layout as one array of int64: a call that takes structures of arrays takes 3 us more."""
    axes = [array for group in (kept, summed) for array in group]
    return np.concatenate([[len(kept.lengths), len(summed.lengths), *line], *axes]).astype(np.int64)


@njit(**INNER)
def _axes_at(numbers: Any, first: int, count: int) -> Any:
    second, third = first + count, first + 2 * count
    return Axes(numbers[first:second], numbers[second:third], numbers[third : third + count])


@njit(**INNER)
def layout_of(numbers: Any) -> Any:
    """The inverse of `numbers_of`."""
    kept, summed = numbers[0], numbers[1]
    line = InnerAxis(numbers[2], numbers[3] != 0, numbers[4], numbers[5])
    return _axes_at(numbers, 6, kept), _axes_at(numbers, 6 + 3 * kept, summed), line


@njit(**INNER)
def positions(axes: Any) -> int:
    """Number of positions along outer axes."""
    total = 1
    for length in axes.lengths:
        total *= length
    return total


@njit(inline="always", error_model="numpy")
def offsets_at(index: int, axes: Any) -> Any:
    """Offsets in dout and in weight of a position along outer axes."""
    in_dout = in_weight = 0
    for axis in range(len(axes.lengths) - 1, 0, -1):
        rest = index // axes.lengths[axis]
        along = index - rest * axes.lengths[axis]
        in_dout += along * axes.dout[axis]
        in_weight += along * axes.weight[axis]
        index = rest
    return in_dout + index * axes.dout[0], in_weight + index * axes.weight[0]
