"""Numbers that pointwise CUDA kernels are launched with: grids, packs, and how operands walk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ops._core.broadcast import Walk
from ops._core.cuda import DIVISOR, divisor, flag
from ops._core.dtype import dtype_info
from ops._core.errors import ShapeError
from ops._core.op import Array, Shape

THREADS = 256
"""Of a block of a pointwise kernel."""
AXES = 6
LARGEST = 1 << 31


def flat(elements: int, width: int, threads: int = THREADS) -> tuple[tuple[int], tuple[int]]:
    """Grid and block of a kernel of `_include/flat.cuh`: a pack of `width` elements a thread."""
    return (blocks(elements, width, threads=threads),), (threads,)


def flat_names(name: str, ctypes: Mapping[str, str]) -> tuple[str, ...]:
    """Instances of the kernel `name<T, V, WHOLE>` for those C++ types by dtype: an element and 16 bytes a thread."""
    widths = [(ctype, width) for dtype, ctype in ctypes.items() for width in (1, 16 // dtype_info(dtype).itemsize)]
    return tuple(
        dict.fromkeys(f"{name}<{ctype}, {width}, {flag(whole)}>" for ctype, width in widths for whole in (0, 1))
    )


def flat_name(name: str, ctype: str, elements: int, width: int) -> str:
    """The one of them for an array of so many elements. WHOLE: every thread of `flat` has a pack."""
    return f"{name}<{ctype}, {width}, {flag(elements % (width * THREADS) == 0)}>"


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
