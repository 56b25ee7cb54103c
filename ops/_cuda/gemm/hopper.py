"""Products of 16-bit matrices on Hopper by wgmma, which reads its factors from shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.source import DIVISOR, CudaSource, architecture, divisor, multiprocessors

HOPPER = 90
WIDE, DEEP, VECTOR = 128, 64, 8
DTYPES = ("float16", "bfloat16")
LARGEST_BLOCK = 227 * 1024
"""Maximum shared memory per block in bytes."""
LARGEST_INDEX, LEAST = 2**31 - 1, 64
"""Maximum index; minimum rows, columns and depth: smaller products do not fill the matrix units."""
RING = {1: 2, 2: 3}
"""Stages in shared memory, by 64-row slabs per block; with four slabs, too few blocks are in flight."""
_TILES = np.dtype([("rows", "i4"), ("columns", "i4"), ("depth", "i4"), ("count", "i4"), ("row_tiles", DIVISOR)])
"""Sizes of one group, number of tiles, and tiles along the rows."""


def _name(dtype: str, along: bool, panels: int) -> str:  # noqa: FBT001
    return f"persistent_wgmma<{dtype_info(dtype).ctype}, {str(along).lower()}, {panels}>"


SOURCE = CudaSource(
    __file__,
    "hopper.cu",
    tuple(_name(dtype, along, panels) for dtype in DTYPES for along in (False, True) for panels in RING),
    structs={"Tiles": _TILES},
)
"""Declared instances of hopper.cu."""


def persistent_wgmma(
    views: tuple[Any, Any, Any],
    arrays: tuple[Any, Any, Any, Any],
    size: tuple[int, int, int],
    *,
    along: bool,
    groups: int,
) -> Bound:
    """One launch; arrays are a, b, addend or None, and d, with 16-byte vectors; views are those of a, b and d."""
    rows, columns, depth = size
    panels = 1 if rows <= DEEP else 2
    row_tiles = -(-rows // (DEEP * panels))
    count = row_tiles * -(-columns // WIDE)
    numbers = np.array((rows, columns, depth, count, divisor(row_tiles)), _TILES)
    function = SOURCE.function(_name(arrays[3].dtype.name, along, panels))
    shared = RING[panels] * (panels + 2) * DEEP * DEEP * 2 + 1024
    function.max_dynamic_shared_size_bytes = shared
    function.preferred_shared_memory_carveout = 100  # per cent
    grid = (min(count, 4 // panels * multiprocessors()), groups)
    arguments = (*arrays, *views, numbers)
    return lambda: function(grid, (128 * panels,), arguments, shared_mem=shared)


def hopper_fits(dtype: str, size: tuple[int, int, int]) -> bool:
    """Whether `persistent_wgmma` supports the product on the current device, if 16-byte vectors are possible."""
    return dtype in DTYPES and architecture() == HOPPER and min(size) >= LEAST and max(size) <= LARGEST_INDEX - 4 * DEEP
