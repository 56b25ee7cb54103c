"""conv_data_grad on CUDA without columns: every tap of the filter reads dy's pixels from shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.gemm.problem import GemmProblem
from opgauge.ops._cuda.gemm.select import AMPERE
from opgauge.ops._cuda.source import CudaSource, Gpu
from opgauge.ops.conv_data_grad.gather_layout import (
    PREPARE_THREADS,
    RESERVED_BYTES,
    STRUCTS,
    GatherLayout,
    Tile,
    padded,
)
from opgauge.ops.conv_data_grad.op import ConvGeometry

DTYPES = ("float32", "float16", "bfloat16")
RESIDENT, MOST_SPLITS = 3, 8
SPLIT_COST, NARROW_COST = 0.75, 1.25
"""Cost of writing and reading partial results, in chunks; relative cost of a small tile per result."""


class Cost(NamedTuple):
    """Microseconds on an H200 by size of element.

    start: of both launches. tap: of a tap of a chunk for a block. beside: of each further block of a multiprocessor,
    relative to it. product: of 10^9 multiply-adds.
    """

    start: float
    tap: float
    beside: float
    product: float


COSTS = {4: Cost(9.0, 0.85, 0.3, 57.0), 2: Cost(11.0, 0.3, 0.5, 8.0)}
WHOLE_DEPTH, COLUMNS_START, FOLD_US, COLUMN_US = 0.7, 8.5, 0.08, 0.5
"""Relative time of a tap of blocks that do not share a depth; microseconds of both launches of columns, of a tap of the
fold, and of 10^6 bytes of columns, twice as many for channels first."""
FIRST_PRODUCT = 1.23
"""Time of a float32 product for channels first relative to one for channels last."""
PRODUCT_TILE, MOST_COLUMNS = 64, 64 << 20
"""Rows and columns of a product are padded to this; largest columns in bytes."""
WIDE, NARROW, LOW, LOWEST = Tile((1, 4), (4, 4)), Tile((2, 2), (2, 4)), Tile((1, 4), (2, 4)), Tile((1, 4), (1, 8))
TILES = (WIDE, NARROW, LOW, LOWEST)
"""Tiles, largest first."""


UNROLLED = (0, 3, 4, 1)
"""Unrolled taps per stage, if blocks share a depth; 0 if they do not."""


def _convolve(dtype: str, tile: Tile, taps: int) -> str:
    return f"convolve<{', '.join(map(str, (dtype_info(dtype).ctype, *tile.warps, *tile.products, taps)))}>"


SOURCE = CudaSource(
    __file__,
    "gather.cu",
    tuple(f"prepare<{dtype_info(dtype).ctype}>" for dtype in DTYPES)
    + tuple(_convolve(dtype, tile, taps) for dtype in DTYPES for tile in TILES for taps in UNROLLED),
    structs=STRUCTS,
)
"""Declared instances of gather.cu."""


def _work(layout: GatherLayout) -> int:
    """Multiplications, including those of padding rows and columns."""
    return layout.row_tiles * layout.tile.rows * sum(part.taps * part.columns for part in layout.parts)


def candidates(found: ConvGeometry, itemsize: int) -> tuple[GatherLayout, ...]:
    """Plans with the classes as rows or separate, whichever multiplies less; two tiles for many channels."""
    best = []
    for merged in (False, True):
        rows = found.channels // found.groups * (prod(map(min, found.strides, found.size)) if merged else 1)
        tiles = (LOWEST,) if rows <= LOWEST.rows else (LOW,) if rows <= LOW.rows else (WIDE, NARROW)
        best.append(tuple(GatherLayout(found, itemsize, tile, merged) for tile in tiles))
    return min(best, key=lambda item: _work(item[0]))


def _possible(found: ConvGeometry, itemsize: int, shared: int) -> Iterator[GatherLayout]:
    for layout in candidates(found, itemsize):
        if layout.fits and layout.shared_bytes <= shared:
            yield layout


def _duration(layout: GatherLayout, processors: int) -> float:
    """Duration in chunks of the smallest tile: waves of blocks, each computing its share and then writing."""
    waves, small = prod(layout.grid) / (RESIDENT * processors), NARROW.rows * NARROW.columns
    each = (layout.share + SPLIT_COST * (layout.splits > 1) + 1) * layout.tile.rows * layout.tile.columns / small
    last = (waves % 1 > 0) * (0.4 + 0.6 * (waves % 1))  # with fewer blocks per multiprocessor, each is faster
    return (waves // 1 + last) * each * (NARROW_COST if layout.tile == NARROW else 1)


@lru_cache(maxsize=64)
def layouts(found: ConvGeometry, itemsize: int, shared: int, processors: int) -> tuple[GatherLayout, ...]:
    """Plans of a convolution within `shared` bytes per block, fastest first; none if it is not supported."""
    possible = [
        replace(layout, splits=-(-layout.chunks // -(-layout.chunks // splits)))
        for layout in _possible(found, itemsize, shared)
        for splits in range(1, min(layout.chunks, MOST_SPLITS) + 1)
    ]
    return tuple(sorted(possible, key=lambda layout: _duration(layout, processors)))


def gather_layout(found: ConvGeometry, dtype: str, gpu: Gpu) -> GatherLayout | None:
    """The best plan on `gpu`; None if the kernels do not support the convolution."""
    if dtype not in DTYPES or gpu.architecture < AMPERE or min(found.batch, found.out_channels, found.channels) == 0:
        return None
    shared = gpu.shared_memory_bytes - RESERVED_BYTES
    return next(iter(layouts(found, dtype_info(dtype).itemsize, shared, gpu.multiprocessors)), None)


def has_few_blocks(layout: GatherLayout, product: GemmProblem, columns: int, gpu: Gpu) -> bool:
    """Whether columns, of so many bytes, by a product are faster: each of few blocks would walk many taps."""
    cost, last = COSTS[layout.itemsize], layout.found.channels_last
    blocks = -(-prod(layout.grid) // gpu.multiprocessors)
    if blocks > RESIDENT or columns > MOST_COLUMNS:
        return False
    taps, (*sides, depth) = layout.most_taps, product.size
    tap = cost.tap * (1 + cost.beside * (blocks - 1)) * (1 if layout.splits > 1 else WHOLE_DEPTH)
    size = prod(padded(side, PRODUCT_TILE) for side in sides) * product.groups * depth
    slower = 1.0 if last or layout.itemsize == 2 else FIRST_PRODUCT
    carried = COLUMN_US * columns * 1e-6 * (1 if last else 2)
    multiplied = COLUMNS_START + cost.product * slower * size * 1e-9 + FOLD_US * taps + carried
    return multiplied < cost.start + tap * layout.share * taps


def gather(layout: GatherLayout, dy: Any, weight: Any, dx: Any, addend: Any, workspace: Any) -> Bound:
    """Two launches, the first of which repacks dy and the filter, to a workspace of `layout.sizes`."""
    dtype = dx.dtype.name
    lines, scales, packed, row_scales, partial, counters = _cut(workspace, layout.sizes)
    plan, shared, tile = layout.struct(), layout.shared_bytes, layout.tile
    prepare = SOURCE.function(f"prepare<{dtype_info(dtype).ctype}>")
    convolve = SOURCE.function(_convolve(dtype, tile, layout.unrolled))
    convolve.max_dynamic_shared_size_bytes = shared
    convolve.preferred_shared_memory_carveout = 100  # per cent
    first = (dy, weight, lines, scales, packed, row_scales, np.int32(layout.filter_blocks), np.int32(tile.rows), plan)
    second = (lines, scales, packed, row_scales, addend, dx, partial, counters, plan)
    blocks, grid, threads = layout.prepare_blocks, layout.grid, tile.threads

    def run() -> None:
        prepare((blocks,), (PREPARE_THREADS,), first)
        convolve(grid, (threads,), second, shared_mem=shared)

    return run


def _cut(workspace: Any, sizes: tuple[int, ...]) -> list[Any]:
    """Consecutive parts of the workspace."""
    ends = accumulate(sizes, initial=0)
    return [workspace[start:end] for start, end in pairwise(ends)]
