"""Matrix products on CUDA by the project's own kernel, which reads (N, C, P) tensors as they lie and adds in passing.

float32 is multiplied to float32 accuracy on the tensor cores (3xTF32), 16-bit types exactly with
float32 sums. Needs sm_80: `supported` says whether to use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ops._core.cuda import DIVISOR, Source, architecture, divisor, multiprocessors, widest_pack
from ops._core.dtype import dtype_info
from ops._core.kernel import Bound

AMPERE = 80
TILE = 128
THREADS = 256
STAGES = 4
STAGE_BYTES = 2 * TILE * (64 + 16)
MOST_SPLITS = 32
EXACT, TF32 = 3, 1
_DTYPES = ("float32", "float16", "bfloat16")
_PLACES = (("false", "false"), ("true", "false"), ("true", "true"))
_VIEW = np.dtype(
    [("image", np.int64), ("row", np.int64), ("group", np.int64), ("split", np.int64), ("post", DIVISOR), ("pad", "V4")]
)
_SIZE = np.dtype([("rows", "i4"), ("columns", "i4"), ("depth", "i4"), ("share", "i4"), ("row_tiles", DIVISOR)])


def _name(dtype: str, result: str, places: tuple[str, str], widths: tuple[int, int, int], parts: int) -> str:
    ctypes = f"{dtype_info(dtype).ctype}, {dtype_info(result).ctype}"
    return f"gemm<{ctypes}, {places[0]}, {places[1]}, {widths[0]}, {widths[1]}, {widths[2]}, {parts}>"


def _widths(dtype: str, result: str, places: tuple[str, str]) -> list[tuple[int, int, int]]:
    """Elements of one access to a, b and the result, widest first."""
    full, out = 16 // dtype_info(dtype).itemsize, 16 // dtype_info(result).itemsize
    if places == ("true", "true"):
        return [(full, full, out), (2, 2, out), (1, 1, 1)]
    return [(full, full, out), (full, 2, 2), (full, 1, 1), (1, 1, 1)]


def _expressions() -> tuple[str, ...]:
    found = ["add_splits<float>", "add_splits<__half>", "add_splits<__nv_bfloat16>"]
    for dtype in _DTYPES:
        for places in _PLACES:
            results = {"float32"} if places == ("true", "true") else {dtype, "float32"}
            for result in sorted(results):
                found += [_name(dtype, result, places, item, EXACT) for item in _widths(dtype, result, places)]
    places = ("true", "false")
    found += [_name("float32", "float32", places, item, TF32) for item in _widths("float32", "float32", places)]
    return tuple(found)


SOURCE = Source(__file__, "gemm.cu", _expressions())


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor seen as a matrix: element (row, j) of a group lies at j // post * image + row * stride + j % post.

    stride, image, group: in elements. post: columns until the next image, 0 where there is one only.
    along: (for factors) a row runs along the depth; else the rows are the depth.
    """

    array: Any
    stride: int
    image: int = 0
    post: int = 0
    group: int = 0
    along: bool = False

    def pack(self, width: int, columns: int) -> bool:
        """Whether `width` elements may move at once."""
        lengths = (self.stride, self.image, self.post, self.group, columns)
        return widest_pack(self.array.dtype.itemsize, self.array, *lengths) >= width

    def struct(self, columns: int, split: int = 0) -> Any:
        """As the kernel's View."""
        return np.array((self.image, self.stride, self.group, split, divisor(self.post or max(columns, 1)), b""), _VIEW)


@cache
def _supported(device_architecture: int) -> bool:
    return device_architecture >= AMPERE


def supported(dtype: str) -> bool:
    """Whether `product` takes `dtype` on the current device."""
    return dtype in _DTYPES and _supported(architecture())


def splits_bytes(rows: int, columns: int, depth: int) -> int:
    """Workspace of a product whose depth is shared among blocks: what `product` may be given."""
    return 4 * rows * columns * _splits(rows, columns, depth, 132)


def _splits(rows: int, columns: int, depth: int, processors: int) -> int:
    tiles = -(-rows // TILE) * -(-columns // TILE)
    return max(1, min(MOST_SPLITS, 2 * processors // tiles, depth // 512))


def product(
    a: Matrix,
    b: Matrix,
    d: Matrix,
    size: tuple[int, int, int],
    *,
    groups: int = 1,
    addend: Any = None,
    parts: int = EXACT,
) -> Bound:
    """d = a b (+ addend, laid out as d), (rows, columns, depth) for each of `groups`; one launch.

    a is (rows, depth) where along, else (depth, rows); b is (columns, depth) where along, else (depth, columns).
    """
    rows, columns, depth = size
    function = _function(a, b, d, size, parts, addend)
    tiles = -(-rows // TILE)
    numbers = np.array((rows, columns, depth, max(depth, 1), divisor(tiles)), _SIZE)
    views = [item.struct(length) for item, length in zip((a, b, d), _columns(a, b, size), strict=True)]
    arguments = (a.array, b.array, addend, d.array, *views, numbers)
    grid = (tiles * -(-columns // TILE), groups, 1)
    shared = STAGES * STAGE_BYTES
    return lambda: function(grid, (THREADS,), arguments, shared_mem=shared)


def split_product(a: Matrix, b: Matrix, result: Any, size: tuple[int, int, int], groups: int, workspace: Any) -> Bound:
    """As `product`, into contiguous (groups, rows, columns): the depth shared among blocks, then added in order."""
    rows, columns, depth = size
    splits = _splits(rows, columns, depth, min(multiprocessors(), 132))
    share = -(-depth // splits // 32) * 32
    splits = max(1, -(-depth // share))
    partial = workspace.view(np.float32)[: splits * result.size]
    d = Matrix(partial, columns, group=rows * columns)
    function = _function(a, b, d, size, EXACT, None)
    tiles = -(-rows // TILE)
    numbers = np.array((rows, columns, depth, share, divisor(tiles)), _SIZE)
    lengths = _columns(a, b, size)
    views = [item.struct(length) for item, length in zip((a, b), lengths, strict=False)]
    arguments = (a.array, b.array, None, partial, *views, d.struct(columns, result.size), numbers)
    grid = (tiles * -(-columns // TILE), groups, splits)
    add = SOURCE.function(f"add_splits<{dtype_info(result.dtype.name).ctype}>")
    add_grid = (min(-(-result.size // THREADS), 8 * multiprocessors()),)
    add_arguments = (partial, result, np.int64(result.size), np.int32(splits))
    shared = STAGES * STAGE_BYTES

    def run() -> None:
        function(grid, (THREADS,), arguments, shared_mem=shared)
        add(add_grid, (THREADS,), add_arguments)

    return run


def _columns(a: Matrix, b: Matrix, size: tuple[int, int, int]) -> tuple[int, int, int]:
    rows, columns, depth = size
    return (depth if a.along else rows), (depth if b.along else columns), columns


def _function(a: Matrix, b: Matrix, d: Matrix, size: tuple[int, int, int], parts: int, addend: Any) -> Any:
    dtype, result = a.array.dtype.name, d.array.dtype.name
    places = (str(a.along).lower(), str(b.along).lower())
    lengths = _columns(a, b, size)
    items = [(a, lengths[0]), (b, lengths[1]), (d, lengths[2])]
    for widths in _widths(dtype, result, places):
        wide = all(item.pack(width, length) for (item, length), width in zip(items, widths, strict=True))
        if wide and (addend is None or replace(d, array=addend).pack(widths[2], size[1])):
            function = SOURCE.function(_name(dtype, result, places, widths, parts))
            function.max_dynamic_shared_size_bytes = STAGES * STAGE_BYTES
            return function
    msg = "no kernel takes single elements"
    raise LookupError(msg)
