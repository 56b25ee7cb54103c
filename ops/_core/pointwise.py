"""Numbers that pointwise CUDA kernels are launched with: grids, packs, and how operands walk."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ops._core.broadcast import Walk
from ops._core.cuda import DIVISOR, divisor, flag, multiprocessors
from ops._core.errors import ShapeError
from ops._core.op import Array, Shape
from ops._core.tuning import declare

THREADS = 256
"""Of a block that walks by index arithmetic."""
AXES = 6
LARGEST = 1 << 31
SPANS = (1, 2, 4, 8)
"""Packs that a thread of a flat kernel may move."""
BLOCK_PACKS = 256
"""Packs that a block of a flat kernel moves: the more a thread, the fewer threads."""
_FLAT_OPS = ("add_n", "flatten", "lerp", "lerp_grad", "scale", "sign")
_PACKS = declare(
    "pointwise.packs_per_thread",
    4,
    SPANS[1:],
    backend="cuda",
    ops=_FLAT_OPS,
    why="loads in flight against registers, where a thread moves more than one pack of 16 bytes",
)
_BLOCKS = declare(
    "pointwise.least_blocks",
    8,
    (4, 8, 16, 32),
    backend="cuda",
    ops=_FLAT_OPS,
    why="blocks a multiprocessor from which on a thread moves several packs: fewer leave multiprocessors idle",
)
_LARGEST = declare(
    "pointwise.largest_spanned_packs",
    3 << 19,
    (0, 1 << 19, 1 << 20, 3 << 19, 1 << 21, 1 << 22, 1 << 23),
    backend="cuda",
    ops=_FLAT_OPS,
    why="packs up to which a thread moves several (0: never): it pays while the tensors fit the L2 cache",
)


class Flat(NamedTuple):
    """A launch of a kernel of `_include/span.cuh`: `packs` a thread."""

    packs: int
    grid: tuple[int]
    block: tuple[int]


def flat(elements: int, width: int, least: int = 1) -> Flat:
    """The launch over `elements` in packs of `width`; `least` as in `span`."""
    packs = span(elements, width, least)
    return Flat(packs, (max(1, -(-elements // (width * BLOCK_PACKS))),), (BLOCK_PACKS // packs,))


def is_whole(elements: int, width: int) -> str:
    """Whether every block of `flat` has as many packs as its threads move, in C++."""
    return flag(elements % (width * BLOCK_PACKS) == 0)


def span(elements: int, width: int, least: int = 1) -> int:
    """Packs a thread: several where every multiprocessor gets enough blocks and the cache has room, else one.

    least: so many times the usual blocks are enough.

    On an H200 four are up to 10 % faster than one at 16 MB a tensor, and slower where three tensors exceed the cache.
    """
    blocks = elements // (width * BLOCK_PACKS)
    # fewer never fill the device, and no parameter is asked
    few = blocks < min(_BLOCKS.candidates) * multiprocessors()
    if width == 1 or few or not _LARGEST.covers(elements // width):
        return SPANS[0]
    return _PACKS.value() if blocks >= least * _BLOCKS.value() * multiprocessors() else SPANS[0]


def spans(widest: int) -> tuple[tuple[int, int], ...]:
    """(elements of a pack, packs a thread) that `span` may ask for."""
    return tuple(dict.fromkeys(((1, 1), *((widest, packs) for packs in (SPANS if widest > 1 else SPANS[:1])))))


def blocks(elements: int, width: int, packs: int = 1) -> int:
    """Blocks for `elements` where each thread moves `packs` packs of `width`."""
    return max(1, -(-elements // (width * THREADS * packs)))


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
