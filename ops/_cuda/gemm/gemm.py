"""GEMM on CUDA by the project's own kernels, which read (N, C, P) tensors in place and fuse an addend.

float32 is multiplied to float32 accuracy on the tensor cores (3xTF32), 16-bit types with float32 accumulation.
Needs sm_80 and 108 KiB of shared memory per block: `supported` checks both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.gemm.cooperative import cooperative, cooperative_images, cooperative_images_fit, cooperative_pays
from opgauge.ops._cuda.gemm.hopper import VECTOR, hopper_fits, persistent_wgmma
from opgauge.ops._cuda.gemm.persistent import WIDTHS, persistent, persistent_fits
from opgauge.ops._cuda.gemm.ping_pong import b_stationary_shared, ping_pong, ping_pong_fits
from opgauge.ops._cuda.gemm.stationary_registers import a_stationary_registers, a_stationary_registers_fits
from opgauge.ops._cuda.source import (
    DIVISOR,
    CudaSource,
    architecture,
    divisor,
    flag,
    multiprocessors,
    shared_memory_bytes,
    widest_vector,
)

AMPERE = 80
TILE, SMALL_TILE = 128, 64
SMALL_WIDTHS = (4, 4, 4)
"""Access widths in elements for which small tiles are compiled, for float32."""
THREADS = 256
DEPTH = 64
STAGES = 3
"""Threads per block, maximum depth per stage, and stages in shared memory."""
_SPLIT_OPS = ("deformable_conv", "deformable_conv_grad")
_MOST_SPLITS, _WAVES = 32, 2
"""Splits of a depth: their maximum, and blocks per multiprocessor to reach. On an H200 others change less than 1 %."""
_LEAST_SHARE = declare(
    "gemm.least_share",
    128,
    (128, 256, 512, 1024),
    backend="cuda",
    ops=_SPLIT_OPS,
    why="minimum depth per block: below it, the second launch costs more than the additional blocks save",
)
_SMALL_BELOW = declare(
    "gemm.small_below",
    1,
    (1, 2, 4, 8, 32),
    backend="cuda",
    ops=("conv_data_grad", *_SPLIT_OPS),
    why="blocks per multiprocessor below which 64 x 64 tiles, four times as many, balance the load better",
)
EXACT, TF32 = 3, 1
"""Products per float32 product: 3xTF32 or plain TF32."""
_DTYPES = ("float32", "float16", "bfloat16")
_PLACES = (("false", "false"), ("true", "false"), ("true", "true"))
_VIEW = np.dtype(
    [("image", np.int64), ("row", np.int64), ("group", np.int64), ("split", np.int64), ("post", DIVISOR), ("pad", "V4")]
)
_SIZE = np.dtype([("rows", "i4"), ("columns", "i4"), ("depth", "i4"), ("share", "i4"), ("row_tiles", DIVISOR)])
"""Sizes of one group, depth of a split, and tiles along the rows."""


def _name(
    dtype: str, result: str, places: tuple[str, str], widths: tuple[int, int, int], parts: int, tile: int = TILE
) -> str:
    ctypes = f"{dtype_info(dtype).ctype}, {dtype_info(result).ctype}"
    return f"gemm<{ctypes}, {places[0]}, {places[1]}, {widths[0]}, {widths[1]}, {widths[2]}, {parts}, {tile}>"


def _shared_bytes(tile: int) -> int:
    return STAGES * 2 * tile * (128 + 16)


def _widths(dtype: str, result: str, places: tuple[str, str]) -> list[tuple[int, int, int]]:
    """Elements of one access to a, b and the result, widest first."""
    full, out = 16 // dtype_info(dtype).itemsize, 16 // dtype_info(result).itemsize
    narrower = [width for width in (4, 2) if width < full]
    if places == ("true", "true"):
        return [(full, full, out), *((width, width, out) for width in narrower), (1, 1, 1)]
    return [(full, full, out), *((full, width, width) for width in narrower), (full, 1, 1), (1, 1, 1)]


def _expressions() -> tuple[str, ...]:
    found = ["add_splits<float>", "add_splits<__half>", "add_splits<__nv_bfloat16>"]
    for dtype in _DTYPES:
        for places in _PLACES:
            for result in sorted({dtype, "float32"}):
                found += [_name(dtype, result, places, item, EXACT) for item in _widths(dtype, result, places)]
    found += [_name("float32", "float32", places, SMALL_WIDTHS, EXACT, SMALL_TILE) for places in _PLACES[:2]]
    places = ("true", "false")
    found += [_name("float32", "float32", places, item, TF32) for item in _widths("float32", "float32", places)]
    return tuple(found)


SOURCE = CudaSource(__file__, "gemm.cu", _expressions(), structs={"Size": _SIZE})
"""Declared instances of gemm.cu."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor seen as a matrix: element (row, j) of a group lies at j // post * image + row * stride + j % post.

    stride, image, group: in elements. post: columns until the next image, 0 for a single image.
    along: (factors) K-major, a row runs along the depth; else the rows are the depth.
    """

    array: Any
    stride: int
    image: int = 0
    post: int = 0
    group: int = 0
    along: bool = False

    def vector(self, width: int, columns: int) -> bool:
        """Whether accesses of `width` elements are possible."""
        lengths = (self.stride, self.image, self.post, self.group, columns)
        return widest_vector(self.array.dtype.itemsize, self.array, *lengths) >= width

    def struct(self, columns: int, split: int = 0) -> Any:
        """`View` struct of the kernels."""
        return np.array((self.image, self.stride, self.group, split, divisor(self.post or max(columns, 1)), b""), _VIEW)


def supported(dtype: str) -> bool:
    """Whether `product` supports `dtype` on the current device: some sm_8x lack the shared memory."""
    return dtype in _DTYPES and architecture() >= AMPERE and shared_memory_bytes() >= _shared_bytes(TILE)


def splits_bytes(size: tuple[int, int, int], groups: int) -> int:
    """Bytes of workspace with which `product` may split the depth among blocks."""
    splits = _splits(size, groups)
    return 0 if splits == 1 else 4 * splits * groups * size[0] * size[1]


def _splits(size: tuple[int, int, int], groups: int) -> int:
    """Number of splits, limited by the device's resident blocks."""
    rows, columns, depth = size
    tiles = groups * -(-rows // TILE) * -(-columns // TILE)
    least = min(_LEAST_SHARE.candidates)
    room = _WAVES * multiprocessors() // max(tiles, 1)
    if depth < 2 * least or room < 2:
        return 1  # regardless of the parameter
    return max(1, min(_MOST_SPLITS, room, depth // _LEAST_SHARE.value()))


def product(
    a: Matrix,
    b: Matrix,
    d: Matrix,
    size: tuple[int, int, int],
    *,
    groups: int = 1,
    addend: Any = None,
    parts: int = EXACT,
    workspace: Any = None,
) -> Bound:
    """Compute d = a b (+ addend, laid out as d), (rows, columns, depth) for each of `groups`.

    a is (rows, depth) if K-major, else (depth, rows); b is (columns, depth) if K-major, else (depth, columns).
    One launch. With a workspace of `splits_bytes`, the depth may be split among blocks, and a second
    launch adds up in fixed order; d then covers its array, and there is no addend.
    """
    rows, columns, depth = size
    splits, share = 1, depth
    if workspace is not None:
        splits = _splits(size, groups)
        share = -(-depth // splits // DEPTH) * DEPTH
        splits = -(-depth // share)
    target = d if splits == 1 else replace(d, array=workspace.view(np.float32)[: splits * d.array.size])
    fits = not b.along and parts == EXACT and d.array.dtype == a.array.dtype
    whole = fits and workspace is None
    found = _persistent(a, b, d, size, addend, groups) if whole else None
    if found is not None:
        return found
    worthwhile = addend is not None or _blocks(size, groups) >= multiprocessors()  # else its blocks start too late
    if (
        whole
        and worthwhile
        and hopper_fits(a.array.dtype.name, size)
        and _vectors(a, b, d, size, addend, (VECTOR, VECTOR, VECTOR))
    ):
        return _persistent_wgmma(a, b, d, size, addend, groups)
    small = fits and a.array.dtype == np.float32 and _vectors(a, b, d, size, addend, SMALL_WIDTHS)
    tile = _tile(size, groups * splits) if small else TILE
    function = _function(a, b, target, size, parts, addend, tile)
    tiles = -(-rows // tile)
    numbers = np.array((rows, columns, depth, share, divisor(tiles)), _SIZE)
    lengths = _columns(a, b, size)
    views = (a.struct(lengths[0]), b.struct(lengths[1]), d.struct(lengths[2], d.array.size))
    arguments = (a.array, b.array, addend, target.array, *views, numbers)
    grid = (tiles * -(-columns // tile), groups, splits)
    shared = _shared_bytes(tile)
    if splits == 1:
        return lambda: function(grid, (THREADS,), arguments, shared_mem=shared)
    add = SOURCE.function(f"add_splits<{dtype_info(d.array.dtype.name).ctype}>")
    add_grid = (min(-(-d.array.size // THREADS), 8 * multiprocessors()),)
    add_arguments = (target.array, d.array, np.int64(d.array.size), np.int32(splits))

    def run() -> None:
        function(grid, (THREADS,), arguments, shared_mem=shared)
        add(add_grid, (THREADS,), add_arguments)

    return run


def transposed_bytes(dtype: str, size: tuple[int, int, int], pixels: int, groups: int) -> int:
    """Bytes of workspace for `product_of_images` of size (rows, columns, depth); 0 if it does not pay."""
    if not cooperative_images_fit(dtype, size, pixels) or ping_pong_fits(dtype, size, groups, last=False, added=False):
        return 0
    return groups * size[1] * size[2] * dtype_info(dtype).itemsize


def product_of_images(
    a: Matrix, b: Matrix, d: Matrix, size: tuple[int, int, int], *, groups: int, addend: Any, workspace: Any
) -> Bound | None:
    """Like `product`, for sizes with `transposed_bytes`; None if addresses are not aligned."""
    arrays = (a.array, b.array, d.array, addend, workspace)
    if widest_vector(d.array.dtype.itemsize, *arrays, a.stride, a.group) < VECTOR:
        return None
    return cooperative_images((a, b, d), addend, size, groups, workspace)


def _tile(size: tuple[int, int, int], groups: int) -> int:
    """Rows and columns of a block's tile; groups: independent products, or splits."""
    return SMALL_TILE if _SMALL_BELOW.covers(_blocks(size, groups) // multiprocessors() + 1) else TILE


def _blocks(size: tuple[int, int, int], groups: int) -> int:
    return groups * -(-size[0] // TILE) * -(-size[1] // TILE)


def _columns(a: Matrix, b: Matrix, size: tuple[int, int, int]) -> tuple[int, int, int]:
    rows, columns, depth = size
    return (depth if a.along else rows), (depth if b.along else columns), columns


def _vectors(
    a: Matrix, b: Matrix, d: Matrix, size: tuple[int, int, int], addend: Any, widths: tuple[int, int, int]
) -> bool:
    """Whether accesses of `widths` elements are possible for every matrix."""
    items = (a, b, d) if addend is None else (a, b, d, replace(d, array=addend))
    lengths = _columns(a, b, size)
    pairs = zip(items, (*lengths, lengths[2]), (*widths, widths[2]), strict=False)
    return all(item.vector(width, length) for item, length, width in pairs)


def _persistent_wgmma(a: Matrix, b: Matrix, d: Matrix, size: tuple[int, int, int], addend: Any, groups: int) -> Bound:
    lengths = _columns(a, b, size)
    views = (a.struct(lengths[0]), b.struct(lengths[1]), d.struct(lengths[2]))
    return persistent_wgmma(views, (a.array, b.array, addend, d.array), size, along=a.along, groups=groups)


def _persistent(a: Matrix, b: Matrix, d: Matrix, size: tuple[int, int, int], addend: Any, groups: int) -> Bound | None:
    """One launch, by tiles or with the filter in shared memory; None if alignment or the device does not allow it."""
    dtype, last = d.array.dtype.name, a.along
    if last and (b.post or d.post):
        return None  # pixels are rows of d here, and images are contiguous
    if addend is None and a_stationary_registers_fits(dtype, (a, b, d), size, groups):
        return a_stationary_registers((a, b, d), size, groups)
    added = addend is not None
    is_ping_pong, is_persistent = (
        ping_pong_fits(dtype, size, groups, last=last, added=added),
        persistent_fits(dtype, size, last=last),
    )
    is_cooperative = last and cooperative_pays(dtype, size, groups, only=not is_ping_pong, added=added)
    widths = WIDTHS[last] if is_ping_pong or is_persistent or is_cooperative else ()
    width = next((width for width in widths if _vectors(a, b, d, size, addend, (VECTOR, width, width))), 0)
    if width == 0:
        return None
    if is_cooperative:
        return cooperative((a, b, d), addend, size, groups)
    if is_ping_pong and last and not added:
        return b_stationary_shared((a, b, d), size, groups)
    lengths = _columns(a, b, size)
    factors = ((a, lengths[0]), (b, lengths[1]))
    (weight, weight_length), (other, length) = reversed(factors) if last else factors
    views = (weight.struct(weight_length), other.struct(length), d.struct(lengths[2]))
    arrays = (weight.array, other.array, addend, d.array)
    launch = ping_pong if is_ping_pong else persistent
    return launch(views, arrays, size, width=width, groups=groups, last=last)


def _function(a: Matrix, b: Matrix, d: Matrix, size: tuple[int, int, int], parts: int, addend: Any, tile: int) -> Any:
    dtype, result = a.array.dtype.name, d.array.dtype.name
    places = (flag(a.along), flag(b.along))
    for widths in _widths(dtype, result, places):
        if _vectors(a, b, d, size, addend, widths):
            function = SOURCE.function(_name(dtype, result, places, widths, parts, tile))
            function.max_dynamic_shared_size_bytes = _shared_bytes(tile)
            function.preferred_shared_memory_carveout = 100  # per cent: else one block per multiprocessor
            return function
    msg = "no kernel takes single elements"
    raise LookupError(msg)
