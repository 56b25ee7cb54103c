"""Launch parameters of pointwise CUDA kernels: grids, vectors, evict_last shares, and strided operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.broadcast import MergedOperands
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array, Shape
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops._cuda.struct import DIVISOR, SCALARS, Argument, pack
from opgauge.ops._cuda.vectors import whole_vector

THREADS, SINGLE_THREADS = 256, 512
CONSTANTS = {"FLAT_THREADS": THREADS, "SINGLE_THREADS": SINGLE_THREADS}
"""Threads per block of a pointwise kernel that moves vectors, and of one that moves single elements; both by their
names in `include/flat.cuh`."""
FEW = 16_384
"""Elements up to which a thread computes one: these launches are bound by latency, and vectors have a higher one."""
APART_FROM, APART_BYTES = 1 << 20, (1, 2, 4)
"""Bytes of a tensor from which a thread computes several elements at addresses that allow no vectors, and bytes of such
an element. On an H200 10 to 47 % faster from 2 MB on; at 600 kB up to 5 % slower, and so are doubles."""
AXES = 6
AXES_COMPILED = (1, 2, 3, AXES)
"""Axes for which kernels of one element per thread are compiled: few are cheaper than up to six."""
LARGEST = 1 << 31
VECTOR_BYTES = 16
EVERY_BLOCK = (1 << 32) - 1
"""Number of leading blocks whose stores are evict_last, if those of all blocks are."""
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


def one_per_thread(threads: int, width: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block for that many threads, each with `width` elements; a single block has no thread to spare."""
    block = THREADS if width > 1 else max(min(threads, SINGLE_THREADS), 1)
    return (max(-(-threads // block), 1),), (block,)


class FlatLaunch(NamedTuple):
    """Launch of a kernel of `include/flat.cuh`: its V and EXTENT, its grid and block, and its trailing arguments."""

    width: int
    extent: str
    grid: tuple[int]
    block: tuple[int]
    numbers: tuple[Any, ...]


def flat(size: int, width: int, itemsize: int, *, is_kept: bool = False) -> FlatLaunch:
    """Launch for `size` elements in vectors of `width`; 1 where addresses allow no vectors.

    is_kept: all stores are evict_last, whatever the size, up to 2^31 elements.
    """
    if width == 1 and itemsize in APART_BYTES and size * itemsize >= APART_FROM and size < LARGEST:
        width = VECTOR_BYTES // itemsize
        grid, block = one_per_thread(-(-size // width), width)
        return FlatLaunch(width, "APART", grid, block, (np.int64(0), np.int64(size), np.uint32(EVERY_BLOCK)))
    kept = evict_last_blocks(size * itemsize) if width * itemsize == VECTOR_BYTES and not is_kept else 0
    vectors, rest = divmod(size, width)
    extent = "LARGE" if kept or size >= LARGEST else "ANY" if rest or width == 1 else "VECTORS"
    numbers = (np.int64(vectors), np.int64(vectors + rest), np.uint32(kept or EVERY_BLOCK))
    return FlatLaunch(width, extent, *one_per_thread(vectors + rest, width), numbers)


def extents(width: int) -> tuple[str, ...]:
    """`Extent` in `include/flat.cuh` of the launches that `flat` plans for `width` elements per thread."""
    extents = ("ANY", "LARGE") if width == 1 else ("ANY", "VECTORS", "LARGE")
    return (*extents, "APART") if VECTOR_BYTES // width in APART_BYTES else extents


def flat_names(name: str, ctypes: Mapping[str, str]) -> tuple[str, ...]:
    """Instances of `name<T, V, EXTENT>` for these C++ types by dtype, with single elements and with 16-byte vectors."""
    found = []
    for dtype, ctype in ctypes.items():
        for width in (1, VECTOR_BYTES // dtype_info(dtype).itemsize):
            found += [f"{name}<{ctype}, {width}, {extent}>" for extent in extents(width)]
    return tuple(dict.fromkeys(found))


def flat_width(result: Any, *arrays: Any) -> int:
    """Elements per thread: as many as 16 bytes have, or one if there are few or an address does not allow more."""
    return whole_vector(result, *arrays) if result.size > FEW else 1


def bind_flat(source: CudaSource, name: str, ctype: str, result: Any, width: int, arguments: tuple[Any, ...]) -> Bound:
    """A callable that launches an instance of `name<T, V, EXTENT>` for `result`; `flat` adds trailing arguments."""
    width, extent, grid, block, numbers = flat(result.size, width, result.dtype.itemsize)
    return bind_launch(source, f"{name}<{ctype}, {width}, {extent}>", grid, block, (*arguments, *numbers))


def most_axes(axes: int) -> int:
    """Parameter A of a kernel for that many axes, one of `AXES_COMPILED`."""
    return min(most for most in AXES_COMPILED if axes <= most)


def strided(operands: int, dtype: Any = np.int64, axes: tuple[int, ...] = AXES_COMPILED) -> dict[str, Any]:
    """Dtypes of `Axes` and `Strides` of `include/strides.cuh` by C++ name, for strides of `dtype`."""
    element = SCALARS[np.dtype(dtype).name]
    return {f"Axes<{each}>": _axes_dtype(each) for each in axes} | {
        f"Strides<{each}, {operands}, {element}>": _strides_dtype(operands, dtype, each) for each in axes
    }


def _axes_dtype(axes: int) -> Any:
    if axes == AXES:
        return np.dtype([("inner", np.int32), ("length", DIVISOR, (axes,))])
    return np.dtype([("length", DIVISOR, (max(axes - 1, 1),))])


def _strides_dtype(operands: int, dtype: Any, axes: int) -> Any:
    return np.dtype([("at", dtype, (axes, operands))])


def axes_struct(merged: MergedOperands, axes: int = AXES) -> Array:
    """An `Axes<axes>` of `include/strides.cuh`. Raises ShapeError for 2^31 elements or more."""
    if merged.size >= LARGEST:
        msg = f"{merged.size} elements: a broadcast of 2^31 or more is not supported"
        raise ShapeError(msg)
    dtype = _axes_dtype(axes)
    lengths = [*reversed(merged.lengths), *(1,) * axes][: dtype["length"].shape[0]]
    return pack(dtype, {"inner": len(merged.lengths) - 1, "length": lengths})


def strides_struct(*operands: Shape, axes: int = AXES, dtype: Any = np.int64) -> Array:
    """A `Strides<axes>` of `include/strides.cuh` for operands with these strides."""
    found = np.zeros((), _strides_dtype(len(operands), dtype, axes))
    for number, strides in enumerate(operands):
        found["at"][: len(strides), number] = strides[::-1]
    return found.view(Argument)
