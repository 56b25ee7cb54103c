"""Numbers that pointwise CUDA kernels are launched with: grids, packs, and how operands walk."""

from __future__ import annotations

import numpy as np

from ops._core.broadcast import Walk
from ops._core.cuda import DIVISOR, divisor
from ops._core.errors import ShapeError
from ops._core.op import Array, Shape

THREADS = 256
AXES = 6
LARGEST = 1 << 31


def blocks(elements: int, width: int) -> int:
    """Blocks for `elements` where each thread moves one pack of `width`."""
    return max(1, -(-elements // (width * THREADS)))


def axes_struct(walk: Walk) -> Array:
    """An `Axes` of `_include/walk.cuh`. Raises ShapeError for 2^31 elements or more."""
    if walk.size >= LARGEST:
        msg = f"{walk.size} elements: a broadcast of 2^31 or more is not supported"
        raise ShapeError(msg)
    lengths = [*reversed(walk.lengths), *(1,) * AXES][:AXES]
    found = np.zeros((), [("length", DIVISOR, (AXES,))])
    for axis, length in enumerate(lengths):
        found["length"][axis] = divisor(length)
    return found


def strides_struct(strides: Shape) -> Array:
    """A `Strides` of `_include/walk.cuh`."""
    found = np.zeros((), [("at", np.int64, (AXES,))])
    found["at"][: len(strides)] = strides[::-1]
    return found
