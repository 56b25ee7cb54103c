"""Plans of kernels for columns and for slabs: outer axes are reduced in vectors along the innermost one."""

from __future__ import annotations

from dataclasses import asdict
from math import gcd
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.axes import Reduction
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.reduction.problem import (
    LARGEST,
    LINE_VECTORS,
    STREAMED_COLUMNS,
    STREAMED_ROWS,
    VECTOR_BYTES,
    GpuSize,
    ReducePlan,
    ReduceProblem,
    most_splits,
)
from opgauge.ops._cuda.source import flag
from opgauge.ops._cuda.struct import DIVISOR, pack

COLUMN_THREADS, COLUMN_BUSY = 256, 1024
"""reduce_columns_grid: maximum threads per block; threads per multiprocessor above which each reads several vectors."""
MOST_LANES = 64
"""Maximum lanes along c per block."""
FOLDED_LANES = 8
"""Maximum lanes, per element of a vector, for narrow rows that are folded. Twice as many cost up to 10 %."""
LANES, LEAST_LANES = (64, 32, 16, 8, 4, 2), 2
"""Lanes of blocks that share a row, and the fewest: 32 bytes, a sector of the cache."""
SPLIT_LANES, SPLIT_EACH, SPLIT_EACH_KEPT, SPLIT_TIMES, SPLIT_BLOCKS, SPLIT_SINGLE = 8, 4, 2, 4, 2, 4
"""Blocks that share a column: lanes; minimum vectors per thread, of kept tensors as SPLIT_EACH_KEPT, and as a
multiple of these the vectors per thread from which several blocks share it; their number per multiprocessor, if vectors
are single elements as SPLIT_SINGLE."""
SLAB_BYTES, SLAB_THREADS, SLAB_VECTORS = 16_384, 288, 64
"""reduce_slabs_block: maximum bytes of a slab's sums and threads per block, minimum vectors per slab."""
COLUMN_STRUCT = np.dtype(
    [
        *((name, np.int64) for name in ("stride_a", "stride_r1", "stride_b")),
        *((name, np.int32) for name in ("c", "kept", "rows", "rest", "width", "outer", "in_warp")),
        *((name, DIVISOR) for name in ("r2", "b", "tiles")),
    ]
)
"""`ColumnLayout` of `include/reduce_columns.cuh`: rows of `c` elements, of which `rows` are reduced, r2 of them
adjacent, for every (a, b). A row may be several rows of the tensor, folded: `kept` results then repeat along it. The
row after the whole ones has `rest` elements. width: columns of a tile. outer: number of (a, b, tile). in_warp:
neighbouring rows of a block in one warp with equal alignment; 1: none. Strides are in elements."""
SLAB_STRUCT = np.dtype([(name, np.int32) for name in ("r1", "b", "r2", "c")])
"""`SlabLayout` of `include/reduce_columns.cuh`."""


class _Fold(NamedTuple):
    """Rows of a column layout: elements per row, elements after the whole rows, whether rows are whole vectors."""

    columns: int
    rows: int
    rest: int
    whole: bool


def _fold(problem: ReduceProblem, layout: Reduction) -> _Fold:
    """Rows unchanged if they are whole vectors; narrow ones in groups that are whole vectors."""
    width, c = problem.width, layout.c
    if c % width == 0 and problem.shift == 0 and problem.wide_out:
        return _Fold(c, layout.length, 0, whole=True)
    group = width // gcd(c, width)
    if c * group <= (FOLDED_LANES * width - 1) * width and layout.r1 >= group:
        return _Fold(c * group, layout.r1 // group, layout.r1 % group * c, whole=False)
    return _Fold(c, layout.r1, 0, whole=False)


def columns_plan(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan:
    """Sums along outer axes; over two groups of axes only if rows are whole vectors."""
    width, fold = problem.width, _fold(problem, layout)
    further = 0 if fold.whole else 1  # one lane more for the vector that ends a row
    vectors = -(-fold.columns // width) + further
    rows = fold.rows + (fold.rest > 0)
    folded = fold.columns > layout.c
    step = 1 if fold.whole or folded else width // gcd(layout.c, width)  # distance of rows of equal alignment
    all_vectors = layout.a * layout.b * rows * vectors
    unit = max(1, VECTOR_BYTES // (width * problem.itemsize))
    each = max(1, min(8 if problem.itemsize == 4 else 4, -(-all_vectors // (COLUMN_BUSY * device.multiprocessors))))
    choice = (vectors,) if folded else _lane_choice(vectors, further, COLUMN_THREADS // step, unit)
    least = SPLIT_EACH_KEPT if problem.kept else SPLIT_EACH
    lanes, splits = _column_block(choice, vectors, rows, layout, device, unit, least)
    tile = fold.columns if lanes == vectors else (lanes - further) * width
    tiles = -(-fold.columns // tile)
    down = _rows_of_block(-(-rows // splits), lanes, step, each)
    in_warp = WARP // lanes if lanes < WARP and lanes & (lanes - 1) == 0 and step == 1 else 1
    if down % in_warp:
        in_warp = 1
    outer = layout.a * layout.b * tiles
    depth = 1 if splits > 1 else max(1, min(COLUMN_THREADS // (lanes * down), outer // device.multiprocessors, 64))
    numbers = {
        "stride_a": layout.length * layout.b * layout.c,
        "stride_r1": fold.columns if layout.r2 == layout.b == 1 else layout.b * layout.r2 * layout.c,
        "stride_b": layout.r2 * layout.c,
        "c": fold.columns,
        "kept": layout.c,
        "rows": fold.rows,
        "rest": fold.rest,
        "width": tile,
        "outer": outer,
        "in_warp": in_warp,
    }
    struct = pack(COLUMN_STRUCT, {**numbers, "r2": layout.r2, "b": layout.b, "tiles": tiles})
    streams = fold.whole and problem.streams(STREAMED_COLUMNS)
    template = f"{width}, {flag(streams)}, {flag(fold.whole)}"
    grid, block = (-(-outer // depth), splits), (lanes, down, depth)
    reason = f"columns, {'folded ' * folded}{'whole' if fold.whole else 'unaligned'} vectors"
    arguments = (struct, np.int32(problem.shift))
    return ReducePlan("reduce_columns_grid", template, grid, block, arguments, reason, shares=True)


def _rows_of_block(rows: int, lanes: int, step: int, in_flight: int) -> int:
    """Threads along the rows: enough to have all rows in flight, within the limit; whole steps, or whole warps."""
    most = max(1, COLUMN_THREADS // lanes)
    wanted = min(most, -(-rows // in_flight))
    if lanes < WARP and lanes & (lanes - 1) == 0 and step == 1 and wanted > WARP // lanes:
        wanted -= wanted % (WARP // lanes)
    return rows if rows <= min(step, most) else max(step, wanted // step * step)


def _lane_choice(vectors: int, further: int, most: int, unit: int) -> tuple[int, ...]:
    """Possible lanes of a block, up to `most`, widest first: all `vectors` of a row, or a part of them.

    unit: vectors in 16 bytes.
    """
    most = min(MOST_LANES * unit, most)
    parts = (
        lanes * unit for lanes in LANES if LEAST_LANES << further <= lanes and lanes * unit <= min(vectors - 1, most)
    )
    return (vectors, *parts) if vectors <= most else tuple(parts)


def _column_block(
    choice: tuple[int, ...], vectors: int, rows: int, layout: Reduction, device: GpuSize, unit: int, least: int
) -> tuple[int, int]:
    """Lanes along the columns, of `choice`, widest first, and splits per column.

    The most lanes that leave a block for three of four multiprocessors. Blocks share a column only if its rows would
    keep each thread busy for long. least: vectors per thread of such blocks.
    """
    blocks = {lanes: layout.a * layout.b * -(-vectors // lanes) for lanes in choice}
    enough = 3 * device.multiprocessors // 4
    lanes = next((lanes for lanes in choice if blocks[lanes] >= enough), choice[-1])
    if rows * lanes < SPLIT_TIMES * least * COLUMN_THREADS:
        return lanes, 1
    per_device = (SPLIT_BLOCKS if unit == 1 else SPLIT_SINGLE) * device.multiprocessors
    enough, most = 3 * per_device // 4, most_splits(layout.count, layout.length)
    wide = (lanes for lanes in choice if lanes <= SPLIT_LANES * unit or blocks[lanes] >= enough)
    lanes = next((lanes for lanes in wide if blocks[lanes] * most >= enough), choice[-1])
    each = rows * lanes // (least * COLUMN_THREADS)
    return lanes, max(1, min(per_device // blocks[lanes], each, most))


def slabs_plan(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan | None:
    """One block sums the slabs of a result; None if another kernel is better or slabs are not equally aligned."""
    threads = _slab_threads(problem, layout, device)
    if threads == 0:
        return None
    struct = pack(SLAB_STRUCT, asdict(layout))
    template = f"{problem.width}, {flag(problem.streams(STREAMED_ROWS))}"
    numbers = (struct, np.int32(problem.past))
    grid = (layout.a * layout.b,)
    return ReducePlan("reduce_slabs_block", template, grid, (threads,), numbers, "slab sums fit one block")


def _slab_threads(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> int:
    """Threads per block of reduce_slabs_block; 0 if another kernel is better or slabs are not equally aligned."""
    slab, width = layout.r2 * layout.c, problem.width
    if slab < SLAB_VECTORS * width or slab * problem.accumulator_bytes > SLAB_BYTES:
        return 0
    if layout.b * slab % width or layout.a * layout.b < device.multiprocessors or layout.r1 > LARGEST:
        return 0
    vectors = -(-(LINE_VECTORS * width - 1 + slab) // width)
    rounds = -(-vectors // SLAB_THREADS)
    threads = -(-vectors // (rounds * WARP)) * WARP
    return threads if layout.c <= threads else 0
