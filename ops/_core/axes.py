"""Reduction axes: validation, and the memory layout of a reduction over them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import groupby
from math import log2, prod, sqrt
from typing import Any, SupportsIndex

import numpy as np

from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.op import Array, Shape

Axis = int | tuple[int, ...] | None


def normalize_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """Axes selected by `axis`, ascending and non-negative; None selects all of them.

    Raises AxisError for an axis outside [-rank, rank - 1] or named twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = (operator.index(axis),) if isinstance(axis, SupportsIndex) else tuple(map(operator.index, axis))
    for item in given:
        if not -rank <= item < rank:
            msg = f"axis {item} is out of range for rank {rank}: it should be in [{-rank}, {rank - 1}]"
            raise AxisError(msg)
    axes = tuple(sorted(item % rank for item in given))
    if len(set(axes)) < len(axes):
        msg = f"axis {given} names an axis twice"
        raise AxisError(msg)
    return axes


def plain_axis(axis: Axis) -> Axis:
    """`axis` with plain ints in place of NumPy's, as parameters store it."""
    if axis is None:
        return None
    return operator.index(axis) if isinstance(axis, SupportsIndex) else tuple(map(operator.index, axis))


def reduced_shape(shape: Shape, axes: tuple[int, ...], *, keepdim: bool) -> Shape:
    """`shape` without `axes`; with `keepdim`, those axes have length 1."""
    if keepdim:
        return tuple(1 if index in axes else length for index, length in enumerate(shape))
    return tuple(length for index, length in enumerate(shape) if index not in axes)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A C-contiguous tensor seen as (a, r1, b, r2, c), reduced over r1 and r2.

    One axis, or adjacent ones, give b = r2 = 1: (pre, length, post) = (a, r1, c).
    """

    a: int
    r1: int
    b: int
    r2: int
    c: int

    @property
    def shape(self) -> Shape:
        """The tensor's shape in this view."""
        return self.a, self.r1, self.b, self.r2, self.c

    @property
    def length(self) -> int:
        """Elements reduced into one."""
        return self.r1 * self.r2

    @property
    def count(self) -> int:
        """Number of results."""
        return self.a * self.b * self.c


@dataclass(frozen=True, slots=True)
class MergedAxes:
    """A C-contiguous tensor with adjacent axes merged: lengths from the outside in, and which are reduced.

    Retained and reduced axes alternate, and none has length 1.
    """

    lengths: Shape
    reduced: tuple[bool, ...]

    @property
    def length(self) -> int:
        """Elements reduced into one."""
        return prod(length for length, gone in zip(self.lengths, self.reduced, strict=True) if gone)

    @property
    def count(self) -> int:
        """Number of results."""
        return prod(length for length, gone in zip(self.lengths, self.reduced, strict=True) if not gone)

    def strides(self, *, reduced: bool) -> tuple[tuple[int, int], ...]:
        """(length, stride in elements) of every retained or every reduced axis, from the outside in."""
        found, stride = [], 1
        for length, gone in zip(reversed(self.lengths), reversed(self.reduced), strict=True):
            if gone == reduced:
                found.append((length, stride))
            stride *= length
        return tuple(reversed(found))

    def two_groups(self) -> Reduction | None:
        """The same as a Reduction; None for more than two separate groups of reduced axes."""
        if sum(self.reduced) > 2:
            return None
        five = [1, 1, 1, 1, 1]  # a, r1, b, r2, c
        at = 0
        for length, gone in zip(self.lengths, self.reduced, strict=True):
            at += (at % 2 == 1) != gone
            five[at] = length
        if at == 2 and sum(self.reduced) == 1:  # (a, r1, c): the retained axis is the last
            five[2], five[4] = 1, five[2]
        return Reduction(*five)


def merge_axes(shape: Shape, axes: tuple[int, ...]) -> MergedAxes:
    """`shape` reduced over `axes` with adjacent axes of one kind merged."""
    lengths: list[int] = []
    reduced: list[bool] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        gone = axis in axes
        if reduced and reduced[-1] == gone:
            lengths[-1] *= length
        else:
            lengths.append(length)
            reduced.append(gone)
    return MergedAxes(tuple(lengths), tuple(reduced))


def to_rows(array: Any, axes: tuple[int, ...]) -> Any:
    """View of `array` whose last axes are `axes`, so that reducing them reduces rows of its copy."""
    kept = tuple(axis for axis in range(array.ndim) if axis not in axes)
    return array.transpose(*kept, *axes)


def as_reduction(shape: Shape, axes: tuple[int, ...]) -> Reduction:
    """Reduction over `axes` of a C-contiguous tensor, adjacent axes merged.

    Raises AxisError where the axes fall into more than two separate groups.
    """
    found = merge_axes(shape, axes)
    layout = found.two_groups()
    if layout is None:
        groups = sum(found.reduced)
        msg = f"axes {axes} of {shape} fall into {groups} separate groups; at most two are supported"
        raise AxisError(msg)
    return layout


def reduction_steps(shape: Shape, axes: tuple[int, ...]) -> tuple[Reduction, ...]:
    """Reductions of at most two groups each that together reduce `axes`, applied in sequence; outer axes first.

    The first reads the tensor, each later one the result of its predecessor.
    """
    steps = []
    left = tuple(axis for axis in axes if shape[axis] != 1)
    found = merge_axes(shape, left)
    while sum(found.reduced) > 2:
        lengths, reduced = list(found.lengths), list(found.reduced)
        first = [at for at, gone in enumerate(reduced) if gone][:2]
        now = [at in first for at in range(len(lengths))]
        steps.append(as_reduction(tuple(lengths), tuple(first)))
        lengths = [1 if gone else length for length, gone in zip(lengths, now, strict=True)]
        found = merge_axes(tuple(lengths), tuple(at for at, gone in enumerate(reduced) if gone and not now[at]))
    last = found.two_groups()
    return (*steps, last) if last is not None else tuple(steps)


def sum_pairwise(x: Array, axes: tuple[int, ...], *, keepdim: bool = False) -> Array:
    """Sum over `axes` with an error that grows with the logarithm of their length.

    NumPy sums in pairs only along the last axis of contiguous memory; a float64 reference needs it along any.
    """
    shape = reduced_shape(x.shape, axes, keepdim=keepdim)
    inner = x.ndim
    while inner - 1 in axes:
        inner -= 1
    if inner < x.ndim:  # already in the order that is needed
        x, axes = x.reshape(*x.shape[:inner], prod(x.shape[inner:])).sum(-1), tuple(a for a in axes if a < inner)
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    moved = np.ascontiguousarray(x.transpose(*kept, *axes))
    length = prod(x.shape[axis] for axis in axes)
    total = np.sum(moved.reshape(*(x.shape[axis] for axis in kept), length), axis=-1)
    return np.asarray(total).reshape(shape)


IN_SEQUENCE = 1 << 14
"""Terms of a sum in sequence whose rounding `sum_units` allows."""


LONG, PART, SHORT_PART = 256, 128, 32
"""Terms that NumPy may add in sequence, along other than trailing axes, and parts of a longer sum, shorter for more
than IN_SEQUENCE terms: the rounding of equal terms drifts one way."""


def sum_array(x: Any, axes: tuple[int, ...], *, keepdim: bool = False) -> Any:
    """`x.sum` of NumPy or CuPy in x's dtype, with an error that does not grow with the length.

    NumPy sums pairwise only along trailing axes and in sequence along others: long ones are summed in parts.
    """
    inner = x.ndim
    while inner - 1 in axes:
        inner -= 1
    if not isinstance(x, np.ndarray) or prod(x.shape[axis] for axis in axes if axis < inner) <= LONG:
        return x.sum(axis=axes, keepdims=keepdim)
    runs = [(summed, prod(x.shape[axis] for axis in run)) for summed, run in groupby(range(x.ndim), axes.__contains__)]
    total: Any = x.reshape([length for _, length in runs])
    for axis in reversed(range(len(runs))):
        if runs[axis][0]:
            total = _sum_parts(total, axis) if axis + 1 < len(runs) else total.sum(axis=axis, keepdims=True)
    return total.reshape(reduced_shape(x.shape, axes, keepdim=keepdim))


def _sum_parts(x: Array, axis: int) -> Array:
    """The sum along an axis, which remains, of sums of parts."""
    length, before, behind = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    part = PART if length <= IN_SEQUENCE else SHORT_PART
    whole = length // part * part
    start = (slice(None),) * axis
    rest = x[(*start, slice(whole, length))].sum(axis=axis, keepdims=True)
    if whole == 0:
        return np.asarray(rest)
    parts = x[(*start, slice(whole))].reshape(*before, -1, part, *behind).sum(axis=axis + 1)
    found: Array = (parts.sum(axis=axis, keepdims=True, dtype=np.float64) + rest).astype(x.dtype, copy=False)
    return found


def sum_units(length: int) -> float:
    """Error bound of a float sum of `length` elements, in half epsilons of sum |x|.

    The error of a tree sum grows with log2; that of a sum in sequence, as NumPy's along columns, drifts with
    the square root, which is tolerated up to 2^14 elements.
    """
    return log2(max(length, 1)) + sqrt(min(length, IN_SEQUENCE))
