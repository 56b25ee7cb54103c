"""Axes: checking them, and what a reduction over them looks like in memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod, sqrt

import numpy as np
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.op import Array, Shape

Axis = int | tuple[int, ...] | None


def normalize_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """The axes meant by `axis`, ascending and non-negative; None means all of them.

    Raises AxisError for an axis outside [-rank, rank - 1] or named twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else axis
    for item in given:
        if not -rank <= item < rank:
            msg = f"axis {item} is out of range for rank {rank}: it should be in [{-rank}, {rank - 1}]"
            raise AxisError(msg)
    axes = tuple(sorted(item % rank for item in given))
    if len(set(axes)) < len(axes):
        msg = f"axis {given} names an axis twice"
        raise AxisError(msg)
    return axes


def reduced_shape(shape: Shape, axes: tuple[int, ...], *, keepdim: bool) -> Shape:
    """`shape` with `axes` removed, or of length 1 where `keepdim`."""
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
        """The tensor's shape when seen so."""
        return self.a, self.r1, self.b, self.r2, self.c

    @property
    def length(self) -> int:
        """Elements reduced into one."""
        return self.r1 * self.r2

    @property
    def count(self) -> int:
        """Number of results."""
        return self.a * self.b * self.c


def as_reduction(shape: Shape, axes: tuple[int, ...]) -> Reduction:
    """How reducing `axes` of a C-contiguous tensor looks, adjacent axes merged.

    Raises AxisError where the axes fall into more than two separate groups.
    """
    groups: list[list[int]] = []
    for axis in axes:
        if shape[axis] == 1:
            continue
        between = shape[groups[-1][-1] + 1 : axis] if groups else ()
        if groups and prod(between) == 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) > 2:
        msg = f"axes {axes} of {shape} fall into {len(groups)} separate groups; at most two are supported"
        raise AxisError(msg)
    if not groups:
        return Reduction(prod(shape), 1, 1, 1, 1)
    first, last = groups[0], groups[-1]
    a = prod(shape[: first[0]])
    r1 = prod(shape[first[0] : first[-1] + 1])
    c = prod(shape[last[-1] + 1 :])
    if first is last:
        return Reduction(a, r1, 1, 1, c)
    b = prod(shape[first[-1] + 1 : last[0]])
    return Reduction(a, r1, b, prod(shape[last[0] : last[-1] + 1]), c)


def sum_pairwise(x: Array, axes: tuple[int, ...], *, keepdim: bool = False) -> Array:
    """Sum over `axes` with an error that grows with the logarithm of their length.

    NumPy sums in pairs only along the last axis of contiguous memory; a float64 reference needs it along any.
    """
    shape = reduced_shape(x.shape, axes, keepdim=keepdim)
    inner = x.ndim
    while inner - 1 in axes:
        inner -= 1
    if inner < x.ndim:  # these lie as they are needed
        x, axes = x.reshape(*x.shape[:inner], prod(x.shape[inner:])).sum(-1), tuple(a for a in axes if a < inner)
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    moved = np.ascontiguousarray(x.transpose(*kept, *axes))
    length = prod(x.shape[axis] for axis in axes)
    total = np.sum(moved.reshape(*(x.shape[axis] for axis in kept), length), axis=-1)
    return np.asarray(total).reshape(shape)


IN_SEQUENCE = 1 << 14


def sum_units(length: int) -> float:
    """Half epsilons of sum |x| by which a float sum of `length` elements may be off.

    Sums by trees err by log2; those in sequence, as NumPy's along columns, drift by the square root,
    which is let pass up to 2^14 elements.
    """
    return log2(max(length, 1)) + sqrt(min(length, IN_SEQUENCE))
