"""Plans of kernels for columns and for slabs: outer axes are reduced in vectors along the innermost one."""

from __future__ import annotations

from dataclasses import asdict
from math import gcd
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.axes import Reduction
from opgauge.ops._cuda.reduction.problem import (
    LARGEST,
    LINE_VECTORS,
    STREAMED_COLUMNS,
    STREAMED_ROWS,
    THREADS,
    WARP,
    GpuSize,
    ReducePlan,
    ReduceProblem,
    most_splits,
)
from opgauge.ops._cuda.source import flag
from opgauge.ops._cuda.struct import DIVISOR, pack

COLUMN_THREADS, COLUMN_BLOCKS, COLUMN_BUSY = 512, 4, 1024
"""reduce_columns_grid: maximum threads per block; sufficient blocks and threads per multiprocessor."""
MOST_LANES = 64
"""Maximum lanes along c per block; fewer lanes make more blocks."""
COLUMN_LANES = (MOST_LANES, WARP, WARP // 2)
MANY_PARTIALS = 32 * THREADS
"""Partial results of one tile from which fewer, larger blocks share its columns: the last one merges them all. For 133
columns of 76608 rows 295 blocks of 140 threads cost 55 %."""
WHOLE_ROWS = 1024
"""Maximum rows for which a block one cache line wide reduces whole columns (8 to 17 MB: splits cost 17 to 27 %)."""
SLAB_BYTES, SLAB_THREADS, SLAB_VECTORS = 16_384, 288, 64
"""reduce_slabs_block: maximum bytes of a slab's sums and threads per block, minimum vectors per slab."""
COLUMN_STRUCT = np.dtype(
    [
        *((name, np.int64) for name in ("stride_a", "stride_r1", "stride_b")),
        *((name, np.int32) for name in ("c", "kept", "rows", "rest", "share", "width", "outer", "in_warp")),
        *((name, DIVISOR) for name in ("r2", "b", "tiles")),
        ("pad", "V4"),
    ]
)
"""`ColumnLayout` of `include/reduce_columns.cuh`: rows of `c` elements, of which `rows` are reduced, r2 of them
adjacent, for every (a, b). A row may be several rows of the tensor, folded: `kept` results then repeat along it. The
row after the whole ones has `rest` elements. share: rows of a split. width: columns of a tile. outer: number of (a, b,
tile). in_warp: neighbouring rows of a block in one warp with equal alignment; 1: none. Strides are in elements."""
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
    if c * group <= (MOST_LANES - 1) * width and layout.r1 >= group:
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
    each = max(1, min(8 if problem.itemsize == 4 else 4, -(-all_vectors // (COLUMN_BUSY * device.multiprocessors))))
    lanes, splits, threads = _column_block(vectors, rows, each, layout, device, step)
    tile = fold.columns if lanes == vectors else (lanes - further) * width
    tiles = -(-fold.columns // tile)
    share = -(-rows // (splits * step)) * step
    splits = -(-rows // share)
    down = _rows_of_block(min(share, rows), lanes, threads, step, each)
    in_warp = WARP // lanes if lanes < WARP and lanes & (lanes - 1) == 0 and step == 1 else 1
    if down % in_warp:
        in_warp = 1
    outer = layout.a * layout.b * tiles
    depth = 1 if splits > 1 else max(1, min(threads // (lanes * down), outer // device.multiprocessors, 64))
    numbers = {
        "stride_a": layout.length * layout.b * layout.c,
        "stride_r1": fold.columns if layout.r2 == layout.b == 1 else layout.b * layout.r2 * layout.c,
        "stride_b": layout.r2 * layout.c,
        "c": fold.columns,
        "kept": layout.c,
        "rows": fold.rows,
        "rest": fold.rest,
        "share": share,
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
    return ReducePlan("reduce_columns_grid", template, grid, block, arguments, reason, "counters")


def _rows_of_block(rows: int, lanes: int, threads: int, step: int, in_flight: int) -> int:
    """Threads along the rows: enough to have all rows in flight, within the limit; whole steps, or whole warps."""
    most = max(1, threads // lanes)
    wanted = min(most, -(-rows // in_flight))
    if lanes < WARP and lanes & (lanes - 1) == 0 and step == 1 and wanted > WARP // lanes:
        wanted -= wanted % (WARP // lanes)
    return rows if rows <= min(step, most) else max(step, wanted // step * step)


def _column_block(
    vectors: int, rows: int, in_flight: int, layout: Reduction, device: GpuSize, step: int
) -> tuple[int, int, int]:
    """Lanes along the columns, splits per column, threads per block.

    One block covers all of a few columns, so that consecutive rows are read without a gap.
    """
    outer = layout.a * layout.b
    target = (COLUMN_BLOCKS if rows > WHOLE_ROWS else 1.5) * device.multiprocessors
    choice = tuple(min(lanes, vectors) for lanes in COLUMN_LANES) if vectors > MOST_LANES else (vectors,)
    for lanes in choice:
        if outer * -(-vectors // lanes) >= target:
            return lanes, 1, THREADS
    line = min(LINE_VECTORS, vectors) if vectors > MOST_LANES else vectors
    if rows <= WHOLE_ROWS and outer * -(-vectors // line) >= 3 * device.multiprocessors // 4:
        return line, 1, COLUMN_THREADS
    for lanes in choice:
        blocks = outer * -(-vectors // lanes)
        each = max(step, THREADS // lanes)
        most = max(1, min(most_splits(layout.count, layout.length), rows // (min(4, in_flight) * each)))
        if blocks * most >= target:
            break
    splits = max(1, min(most, COLUMN_BLOCKS * device.multiprocessors // blocks))
    if lanes == vectors and splits * layout.c > MANY_PARTIALS:
        return lanes, min(splits, max(1, 2 * device.multiprocessors // blocks)), COLUMN_THREADS
    return lanes, splits, THREADS if blocks * splits >= device.multiprocessors else COLUMN_THREADS


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
