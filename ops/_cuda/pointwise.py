"""Launch parameters of pointwise CUDA kernels: grids, vectors, evict_last shares, and strided operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opgauge.ops._core.broadcast import MergedOperands
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.op import Array, Shape
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.source import DIVISOR, CudaSource, divisor

THREADS = 256
"""Threads per block of a pointwise kernel."""
AXES = 6
LARGEST = 1 << 31
VECTOR_BYTES = 16
LARGE = range(2, 11)
"""Sizes of a result, in multiples of the evict_last share of L2, for which only that share is stored with evict_last;
evict_last for all loads and stores is faster for other sizes, by 1 % for larger ones."""
_EVICT_LAST = declare(
    "pointwise.kept_megabytes",
    11,
    (0, 5, 8, 11, 16),
    backend="cuda",
    ops=("add_n", "fill_any_like", "flatten", "lerp", "normalization", "scale", "sign"),
    why="megabytes of a large result stored with L2 evict_last, whose lines do not wait for write-back",
)


def evict_last_bytes() -> int:
    """Bytes of a large result that are stored with L2 evict_last."""
    return _EVICT_LAST.value() << 20


def evict_last_blocks(nbytes: int) -> int:
    """Number of leading blocks of a `flat` launch in 16-byte vectors whose stores are L2 evict_last.

    0 if all of them use it.
    """
    if nbytes < LARGE.start * min(filter(None, _EVICT_LAST.candidates)) << 20:
        return 0
    kept = evict_last_bytes()
    return kept // (THREADS * VECTOR_BYTES) if kept and nbytes // kept in LARGE else 0


def flat(elements: int, width: int, threads: int = THREADS) -> tuple[tuple[int], tuple[int]]:
    """Grid and block of a kernel of `include/flat.cuh`: a vector of `width` elements per thread."""
    return (blocks(elements, width, threads=threads),), (threads,)


def flat_names(name: str, ctypes: Mapping[str, str]) -> tuple[str, ...]:
    """Instances of `name<T, V, EXTENT>` for these C++ types by dtype, with single elements and with 16-byte vectors."""
    found = []
    for dtype, ctype in ctypes.items():
        width = VECTOR_BYTES // dtype_info(dtype).itemsize
        kinds = [(wide, extent) for wide in (1, width) for extent in ("ANY", "WHOLE")]
        found += [f"{name}<{ctype}, {wide}, {extent}>" for wide, extent in (*kinds, (width, "LARGE"))]
    return tuple(dict.fromkeys(found))


def flat_launch(
    source: CudaSource, name: str, ctype: str, result: Any, width: int
) -> tuple[Any, tuple[int], tuple[int], tuple[Any, ...]]:
    """Instance of `name<T, V, EXTENT>` for `result`, its grid, its block, and its trailing arguments."""
    whole_vectors = width * result.dtype.itemsize == VECTOR_BYTES
    kept = evict_last_blocks(result.nbytes) if whole_vectors else 0
    extent = "LARGE" if kept else "ANY" if result.size % (width * THREADS) else "WHOLE"
    numbers = (np.int64(result.size // width), np.int64(result.size), np.uint32(kept))
    return source.function(f"{name}<{ctype}, {width}, {extent}>"), *flat(result.size, width), numbers


def blocks(elements: int, width: int, vectors: int = 1, *, threads: int = THREADS) -> int:
    """Blocks for `elements` if each of their `threads` moves `vectors` vectors of `width`."""
    return max(1, -(-elements // (width * threads * vectors)))


def axes_struct(merged: MergedOperands) -> Array:
    """An `Axes` of `include/strides.cuh`. Raises ShapeError for 2^31 elements or more."""
    if merged.size >= LARGEST:
        msg = f"{merged.size} elements: a broadcast of 2^31 or more is not supported"
        raise ShapeError(msg)
    lengths = [*reversed(merged.lengths), *(1,) * AXES][:AXES]
    found = np.zeros((), [("inner", np.int32), ("length", DIVISOR, (AXES,))])
    found["inner"] = len(merged.lengths) - 1
    for axis, length in enumerate(lengths):
        found["length"][axis] = divisor(length)
    return found


def strides_struct(strides: Shape) -> Array:
    """A `Strides` of `include/strides.cuh`."""
    found = np.zeros((), [("at", np.int64, (AXES,))])
    found["at"][: len(strides)] = strides[::-1]
    return found
