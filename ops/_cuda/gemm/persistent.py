"""Shallow products of 16-bit matrices on Hopper: persistent blocks, one factor stationary in shared memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.gemm.hopper import DEEP, DTYPES, LARGEST_BLOCK, hopper_fits
from opgauge.ops._cuda.source import DIVISOR, CudaSource, divisor, multiprocessors

RING = 3
LONGEST = 512
"""Maximum depth: for more, shared memory would hold too few rows."""
SLAB_BYTES = DEEP * DEEP * 2
STAGING = 2048
"""Bytes of shared memory per warp for staging results."""
ALIGNMENT = 1024
"""Bytes of shared memory to align swizzled tiles; at least 64 remain, of which barriers take 48."""
MULTIPROCESSOR, RESERVED = 228 * 1024, 1024
"""Shared memory per multiprocessor and the driver's reserve per block, in bytes."""
FIRST, LAST = ((1, 2), (2, 2), (4, 2)), ((2, 1), (2, 2), (4, 2))
"""Tiles in 64-row and 64-column slabs, with d's rows stationary and with d's columns stationary."""
BLOCKS = {(1, 2): 4, (2, 1): 3, (2, 2): 2, (4, 2): 1}
"""Blocks per multiprocessor that registers allow, by tile."""
WIDTHS = {False: (8, 4), True: (8,)}
"""Access widths in elements, by whether d's columns are stationary."""
TALL_DEPTH = 256
"""Minimum depth for tiles of 256 rows, whose results few warps write. On an H200 others change less than 1 %."""
_SIZE = np.dtype([*((name, "i4") for name in ("streamed", "depth", "tiles", "step", "slots")), ("resident", DIVISOR)])
"""Columns of d that are streamed (rows if `last`) and the depth, of one group; tiles of those; distance between a
block's tiles; slabs of a warp's staging buffer; shares of the resident factor, all of them full."""


def _name(dtype: str, tile: tuple[int, int], width: int, last: bool) -> str:  # noqa: FBT001
    return f"persistent<{dtype_info(dtype).ctype}, {tile[0]}, {tile[1]}, {width}, {str(last).lower()}>"


SOURCE = CudaSource(
    __file__,
    "persistent.cu",
    tuple(
        _name(dtype, tile, width, last)
        for dtype in DTYPES
        for last, tiles in ((False, FIRST), (True, LAST))
        for tile, width in product(tiles, WIDTHS[last])
    ),
    structs={"PersistentSize": _SIZE},
)
"""Declared instances of persistent.cu."""


def persistent_fits(dtype: str, size: tuple[int, int, int], *, last: bool) -> bool:
    """Whether `persistent` supports the product on the current device, if vectors are possible.

    last: d's columns are stationary and its rows are streamed, not vice versa.
    """
    rows, columns, depth = size
    return hopper_fits(dtype, size) and not (columns if last else rows) % DEEP and not depth % DEEP and depth <= LONGEST


def persistent(
    views: tuple[Any, Any, Any],
    arrays: tuple[Any, Any, Any, Any],
    size: tuple[int, int, int],
    *,
    width: int,
    groups: int,
    last: bool,
) -> Bound:
    """One launch; views are those of the stationary factor, the other one and d, arrays theirs with the addend or None.

    arrays are stationary, other, addend, d, with vectors of `width` elements; the stationary one with 16 bytes.
    """
    rows, columns, depth = size
    tile = _tile(size, last=last)
    panels, across = (tile[1], tile[0]) if last else tile
    kept, passing = (columns, rows) if last else (rows, columns)
    shares, tiles = kept // (DEEP * panels), -(-passing // (DEEP * across))
    slots = 1 if arrays[2] is None else _slots(tile, depth, last=last)
    function = SOURCE.function(_name(arrays[3].dtype.name, tile, width, last))
    shared = _shared_bytes(tile, depth, slots, last=last)
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK  # for every depth: the function is shared
    function.preferred_shared_memory_carveout = 100  # per cent
    blocks = min(BLOCKS[tile], MULTIPROCESSOR // (shared + RESERVED)) * multiprocessors()
    step = min(tiles, max(blocks // (shares * groups), 1))
    numbers = np.array((passing, depth, tiles, step, slots, divisor(shares)), _SIZE)
    threads = 128 * tile[0] + (32 if tile[0] == 1 else 64)
    arguments = (*arrays, *views, numbers)
    return lambda: function((shares * step, groups), (threads,), arguments, shared_mem=shared)


def _tile(size: tuple[int, int, int], *, last: bool) -> tuple[int, int]:
    """64-row and 64-column slabs of a block's tile, limited by the stationary factor's size."""
    rows, columns, depth = size
    wide = 2 if not last or columns % (2 * DEEP) == 0 else 1
    tall = wide == 2 and (last or rows % (4 * DEEP) == 0) and depth >= TALL_DEPTH
    if tall and _shared_bytes((4, 2), depth, 1, last=last) <= LARGEST_BLOCK:
        return 4, 2
    return 1 if not last and rows % (2 * DEEP) else 2, wide


def _slots(tile: tuple[int, int], depth: int, *, last: bool) -> int:
    """Swizzled tiles of the addend that are prefetched: a whole block tile, if shared memory allows."""
    return tile[1] if _shared_bytes(tile, depth, tile[1], last=last) <= LARGEST_BLOCK else 1


def _shared_bytes(tile: tuple[int, int], depth: int, slots: int, *, last: bool) -> int:
    panels, across = (tile[1], tile[0]) if last else tile
    kept, ring, corners = panels * depth * DEEP * 2, RING * across * SLAB_BYTES, 4 * tile[0] * slots * STAGING
    return ALIGNMENT + kept + ring + corners
