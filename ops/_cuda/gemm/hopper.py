"""Products of 16-bit matrices on Hopper, by matrix units that read shared memory themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.source import DIVISOR, Source, architecture, divisor, multiprocessors

HOPPER = 90
WIDE, DEEP, PACK = 128, 64, 8
DTYPES = ("float16", "bfloat16")
LARGEST_BLOCK = 227 * 1024
"""Bytes of shared memory that a block may take."""
LARGEST_INDEX, LEAST = 2**31 - 1, 64
"""Below `LEAST` rows, columns or products a matrix unit has little to do."""
RING = {1: 2, 2: 3, 4: 4}
"""Stages in shared memory, by panels."""
_PANELS = declare(
    "gemm_hopper.panels",
    2,
    (1, 2, 4),
    backend="cuda",
    ops=("conv_data_grad",),
    why="64 rows each, that a block takes at once where there are as many: bytes brought against blocks under way",
)
_TILES = np.dtype([("rows", "i4"), ("columns", "i4"), ("depth", "i4"), ("count", "i4"), ("row_tiles", DIVISOR)])


def _name(dtype: str, along: bool, panels: int) -> str:  # noqa: FBT001
    return f"persistent_wgmma<{dtype_info(dtype).ctype}, {str(along).lower()}, {panels}>"


SOURCE = Source(
    __file__,
    "hopper.cu",
    tuple(_name(dtype, along, panels) for dtype in DTYPES for along in (False, True) for panels in RING),
)


def persistent_wgmma(
    views: tuple[Any, Any, Any],
    arrays: tuple[Any, Any, Any, Any],
    size: tuple[int, int, int],
    *,
    along: bool,
    groups: int,
) -> Bound:
    """One launch; arrays are a, b, addend or None, and d, all in packs of 16 bytes, and views those of a, b and d."""
    rows, columns, depth = size
    panels = 1 if rows <= DEEP else min(_PANELS.value(), 2 if rows <= 2 * DEEP else 4)
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
    """Whether `stream` takes the product on the current device, where everything lies in packs of 16 bytes."""
    return dtype in DTYPES and architecture() == HOPPER and min(size) >= LEAST and max(size) <= LARGEST_INDEX - 4 * DEEP
