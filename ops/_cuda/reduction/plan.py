"""Choice of kernel, grid and block of a reduction, without a GPU or arrays.

`plan` returns a `ReducePlan`, which `launch` binds and `str` describes, with the reason. The kernels are described in
`include/reduce.cuh`. Percentages beside constants were measured on an H100 or H200: the cost of the alternative.
"""

from __future__ import annotations

from opgauge.ops._core.axes import Reduction
from opgauge.ops._cuda.reduction import elements
from opgauge.ops._cuda.reduction.columns import (
    COLUMN_STRUCT,
    COLUMN_THREADS,
    SLAB_BYTES,
    SLAB_STRUCT,
    SLAB_THREADS,
    columns_plan,
    slabs_plan,
)
from opgauge.ops._cuda.reduction.elements import DIGITS, FEW_DIGITS, LANE_BITS, any_axes, few_columns
from opgauge.ops._cuda.reduction.problem import (
    GRID_RESIDENT,
    LARGEST,
    THREADS,
    GpuSize,
    ReducePlan,
    ReduceProblem,
    most_splits,
)
from opgauge.ops._cuda.reduction.rows import ONCE_BLOCKS, ONCE_THREADS, rows_plan, segments_plan

FEW_SINGLE = 1 << 19
"""Sums of one element each, up to which a thread takes one where they are not whole vectors: vectors cost 8 to 70 %, of
a million they are as fast."""
CONSTANTS = {
    "DIGITS": DIGITS,
    "FEW_DIGITS": FEW_DIGITS,
    "LANE_BITS": LANE_BITS,
    "GRID_RESIDENT": GRID_RESIDENT,
    "COLUMN_THREADS": COLUMN_THREADS,
    "SLAB_THREADS": SLAB_THREADS,
    "SLAB_BYTES": SLAB_BYTES,
}
STRUCTS = {**elements.STRUCTS, "ColumnLayout": COLUMN_STRUCT, "SlabLayout": SLAB_STRUCT}
"""Numbers and structs that the kernels share."""


def plan(problem: ReduceProblem, device: GpuSize) -> ReducePlan:
    """Kernel and launch of `problem` on `device`. Raises AxisError for axes that alternate too often."""
    layout = problem.axes.two_groups()
    count = problem.axes.count
    is_row = count > FEW_SINGLE or (problem.has_whole_rows(count) and problem.wide_out and not problem.few)
    if problem.axes.length == 1 and is_row and count <= LARGEST:  # one row of columns
        layout = Reduction(1, 1, 1, 1, count)
    elif problem.axes.length == 1:
        layout = Reduction(count, 1, 1, 1, 1)
    if layout is None or (problem.paired and not problem.aligned_pair):
        return any_axes(problem, device, "more than two groups of axes" if layout is None else "unequal alignment")
    if max(layout.c, layout.length, layout.a * layout.b) > LARGEST and layout.c * layout.r2 > 1:
        return any_axes(problem, device, "more than 2^31 rows or columns")
    if layout.c == 1 and layout.r2 == 1:
        return rows_plan(problem, layout.a, layout.r1, device)
    if problem.paired:
        return any_axes(problem, device, "two tensors along columns")
    if layout.r2 == 1:
        return few_columns(problem, layout) or columns_plan(problem, layout, device)
    return _two_groups(problem, layout, device)


def most_partials(count: int, length: int) -> int:
    """Maximum partial results of any plan for `count` results of `length` elements each."""
    once = min(ONCE_BLOCKS, count * length // ONCE_THREADS)
    return max(count * most_splits(count, length), once)


def _two_groups(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan:
    if problem.few:
        return any_axes(problem, device, "few elements of two groups of axes")
    if found := slabs_plan(problem, layout, device):
        return found
    if layout.c == 1 and layout.r2 >= 2 * problem.width * THREADS and layout.r1 > 1:
        return segments_plan(problem, layout, device)
    if layout.c % problem.width == 0 and problem.shift == 0 and problem.wide_out:
        return columns_plan(problem, layout, device)
    return any_axes(problem, device, "two groups of axes, unaligned rows")
