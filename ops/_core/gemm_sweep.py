"""Products of 16-bit matrices of short depth on Hopper: one factor stays in shared memory, results never wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.cuda import DIVISOR, Source, divisor, multiprocessors
from ops._core.dtype import dtype_info
from ops._core.gemm_hopper import DEEP, DTYPES, streams
from ops._core.kernel import Bound
from ops._core.tuning import declare

RING = 3
PANEL = DEEP * DEEP * 2
CORNER = 2048
"""Bytes of shared memory through which a warp's results leave."""
LARGEST_BLOCK, MULTIPROCESSOR, RESERVED = 227 * 1024, 228 * 1024, 1024
"""Bytes of shared memory; some of every block's are the driver's."""
BLOCKS = {(1, 1): 6, (1, 2): 4, (2, 1): 3, (2, 2): 2, (4, 1): 1, (4, 2): 1}
"""Blocks a multiprocessor has registers for, by 64s of rows and of columns."""
WIDTHS = (8, 4)
_ROWS = declare(
    "gemm_sweep.rows",
    128,
    (0, 64, 128, 256),
    backend="cuda",
    ops=("conv_data_grad",),
    why="that a block keeps while columns pass by, 0 for none: columns read once against blocks under way",
)
_COLUMNS = declare(
    "gemm_sweep.columns",
    128,
    (64, 128),
    backend="cuda",
    ops=("conv_data_grad",),
    why="that a block multiplies at once: products in a row against blocks under way",
)
_BLOCKS = declare(
    "gemm_sweep.blocks_per_multiprocessor",
    6,
    (1, 2, 3, 4, 6),
    backend="cuda",
    ops=("conv_data_grad",),
    why="at most: the end of a wave against how often the kept factor is read",
)
_LEAVES = declare(
    "gemm_sweep.first_to_leave",
    0,
    (0, 1, 2, 3),
    backend="cuda",
    ops=("conv_data_grad",),
    why="the cache: 1 what is read, 2 what is written, 3 both, against what is used again",
)
_SWEEP = np.dtype([("columns", "i4"), ("depth", "i4"), ("column_tiles", "i4"), ("step", "i4"), ("row_tiles", DIVISOR)])


def _name(dtype: str, rows: int, columns: int, width: int, leaves: int) -> str:
    return f"sweep<{dtype_info(dtype).ctype}, {rows}, {columns}, {width}, {leaves}>"


SOURCE = Source(
    __file__,
    "gemm_sweep.cu",
    tuple(
        _name(dtype, *panels, width, leaves)
        for dtype in DTYPES
        for panels in BLOCKS
        for width in WIDTHS
        for leaves in _LEAVES.candidates
    ),
)


def sweeps(dtype: str, size: tuple[int, int, int]) -> bool:
    """Whether `sweep` takes the product on the current device, where packs allow it."""
    rows, _, depth = size
    if not streams(dtype, size) or rows % DEEP or depth % DEEP:
        return False
    return _shared_bytes(1, 2, depth) <= LARGEST_BLOCK and _ROWS.value() > 0


def sweep(
    views: tuple[Any, Any, Any], arrays: tuple[Any, Any, Any], size: tuple[int, int, int], *, width: int, groups: int
) -> Bound:
    """One launch; arrays are a, in packs of 16 bytes, b and d, in packs of `width` elements, and views theirs."""
    rows, columns, depth = size
    wide = _COLUMNS.value() // DEEP
    high = _high(rows, depth, wide)
    row_tiles, column_tiles = rows // (DEEP * high), -(-columns // (DEEP * wide))
    function = SOURCE.function(_name(arrays[2].dtype.name, high, wide, width, _LEAVES.value()))
    shared = _shared_bytes(high, wide, depth)
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK  # of any depth: one function serves them all
    function.preferred_shared_memory_carveout = 100  # per cent
    blocks = min(BLOCKS[high, wide], MULTIPROCESSOR // (shared + RESERVED), _BLOCKS.value()) * multiprocessors()
    step = min(column_tiles, max(blocks // (row_tiles * groups), 1))
    numbers = np.array((columns, depth, column_tiles, step, divisor(row_tiles)), _SWEEP)
    threads = 128 * high + (32 if high == 1 else 64)
    arguments = (*arrays, *views, numbers)
    return lambda: function((row_tiles * step, groups), (threads,), arguments, shared_mem=shared)


def _high(rows: int, depth: int, wide: int) -> int:
    """64s of rows a block keeps: no more than there are, and than there is shared memory for."""
    high = _ROWS.value() // DEEP
    while rows % (DEEP * high) or _shared_bytes(high, wide, depth) > LARGEST_BLOCK:
        high //= 2
    return high


def _shared_bytes(high: int, wide: int, depth: int) -> int:
    kept, ring, corners = high * depth * DEEP * 2, RING * wide * PANEL, 4 * high * CORNER
    return 1024 + kept + ring + corners + 16 * RING
