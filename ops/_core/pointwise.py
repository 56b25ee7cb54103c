"""Numbers that pointwise CUDA kernels are launched with: grids, packs, and how operands walk."""

from __future__ import annotations

import numpy as np

from ops._core.broadcast import Walk
from ops._core.cuda import DIVISOR, divisor, multiprocessors
from ops._core.errors import ShapeError
from ops._core.op import Array, Shape

THREADS = 256
AXES = 6
LARGEST = 1 << 31
LARGEST_SPANNED = 1 << 21
"""Packs of 16 bytes: 32 MB."""


SPANS = (1, 4)
"""Packs that a thread of a flat kernel may move."""


def span(elements: int, width: int) -> int:
    """Packs a thread: four where every multiprocessor gets two such blocks and the tensor fits the L2 cache, else one.

    On an H200 four are 7 % faster at 16 MB a tensor, and 7 % slower at 100 MB.
    """
    packs = elements // width
    fits = SPANS[1] * THREADS * 2 * multiprocessors() <= packs <= LARGEST_SPANNED
    return SPANS[1] if width > 1 and fits else SPANS[0]


def spans(widest: int) -> tuple[tuple[int, int], ...]:
    """(elements of a pack, packs a thread) that `span` may ask for."""
    return tuple(dict.fromkeys(((1, 1), (widest, SPANS[0]), *(((widest, SPANS[1]),) if widest > 1 else ()))))


def blocks(elements: int, width: int, packs: int = 1) -> int:
    """Blocks for `elements` where each thread moves `packs` packs of `width`."""
    return max(1, -(-elements // (width * THREADS * packs)))


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
