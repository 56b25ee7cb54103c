"""Numbers that pointwise CUDA kernels are launched with: grids, packs, and how operands walk."""

from __future__ import annotations

import numpy as np

from ops._core.broadcast import Walk
from ops._core.cuda import DIVISOR, divisor, flag
from ops._core.errors import ShapeError
from ops._core.op import Array, Shape

THREADS = 256
"""Of a block of a pointwise kernel."""
AXES = 6
LARGEST = 1 << 31


def flat(elements: int, width: int, threads: int = THREADS) -> tuple[tuple[int], tuple[int]]:
    """Grid and block of a kernel of `_include/flat.cuh`: a pack of `width` elements a thread."""
    return (blocks(elements, width, threads=threads),), (threads,)


def is_whole(elements: int, width: int) -> str:
    """Whether every thread of `flat` has a whole pack, in C++."""
    return flag(elements % (width * THREADS) == 0)


def blocks(elements: int, width: int, packs: int = 1, *, threads: int = THREADS) -> int:
    """Blocks for `elements` where each of their `threads` moves `packs` packs of `width`."""
    return max(1, -(-elements // (width * threads * packs)))


def axes_struct(walk: Walk) -> Array:
    """An `Axes` of `_include/walk.cuh`. Raises ShapeError for 2^31 elements or more."""
    if walk.size >= LARGEST:
        msg = f"{walk.size} elements: a broadcast of 2^31 or more is not supported"
        raise ShapeError(msg)
    lengths = [*reversed(walk.lengths), *(1,) * AXES][:AXES]
    found = np.zeros((), [("inner", np.int32), ("length", DIVISOR, (AXES,))])
    found["inner"] = len(walk.lengths) - 1
    for axis, length in enumerate(lengths):
        found["length"][axis] = divisor(length)
    return found


def strides_struct(strides: Shape) -> Array:
    """A `Strides` of `_include/walk.cuh`."""
    found = np.zeros((), [("at", np.int64, (AXES,))])
    found["at"][: len(strides)] = strides[::-1]
    return found
