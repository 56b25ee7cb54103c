"""mean on the CPU by Numba: one pass over x."""

from __future__ import annotations

from functools import partial as bind
from typing import Any

import numpy as np

from opgauge.ops._core.axes import Axis, Reduction, normalize_axes, reduction_steps
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu.reduction_steps import outer_first
from opgauge.ops._cpu.threads import count, pieces_for

BLOCK = 1 << 12
"""Elements per block sum in the accumulating dtype; block sums are added in float64."""
TASKS = 16
"""Tasks per thread, for load balance."""
NARROW, LINE, SHORT_LINE = 64, 256, 32
"""Maximum columns of which several rows are summed in one vector loop, its elements, and the fewest."""
RUNS = 24
"""Elements that lie together, per row of the outer group of axes, for which it comes first: a run costs 25 ns."""
MOST_COLUMNS = 2048
"""Maximum columns of a task that sums few rows."""
LEAST_SLOTS = 64
"""Fewest results between two groups of axes for which threads take results, and one loop many short rows."""
LEAST_BLOCKS = 16
"""Fewest blocks of few rows and columns that share the memory for sums, instead of a task for each."""


@kernel("mean", "optimized", "cpu", FLOATS, prepare=True)
def mean(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """Sum once, divide once; several groups of axes may take steps, with float64 results in between."""
    del keepdim
    result = out["out"]
    if x.size == 0:
        return lambda: result.fill(np.nan)
    steps, source = [], x
    layouts = [*outer_first(reduction_steps(x.shape, normalize_axes(axis, x.ndim)), RUNS)]
    for layout in layouts:
        target = result if layout is layouts[-1] else np.empty(layout.count)
        steps.append(_step(layout, source, target))
        source = target
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


def _step(layout: Reduction, x: Any, result: Any) -> Bound:
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.mean import jit

    if layout.length == 1 and x.dtype == result.dtype:
        return bind(np.copyto, result.reshape(-1), x.reshape(-1))
    a, r1, b, r2, c = layout.shape
    source, target, zero = storage(x), storage(result), accumulator(x).type(0)
    threads = count(x.nbytes, x.size * (3 if x.dtype.itemsize == 2 else 1))
    if c > 1:
        return _columns(layout, source, target, zero, threads)
    if b == 1 and layout.length <= BLOCK:
        rows, pieces = source.reshape(a, layout.length), pieces_for(threads, TASKS)
        return bind(jit.mean_of_rows.on(threads), rows, target.reshape(-1), zero, pieces)
    if b > 1 and r2 <= BLOCK and (threads == 1 or a * b >= LEAST_SLOTS):
        tasks = min(b, pieces_for(threads, TASKS))
        rows = source.reshape(-1, r2)
        return bind(jit.mean_of_short_pieces.on(threads), rows, target.reshape(-1), b, r1, tasks, zero)
    pieces, length = (r1, r2) if b > 1 else (1, layout.length)
    partial = np.empty((a, b, pieces, -(-length // BLOCK)))
    return bind(jit.mean_of_pieces.on(threads), source.reshape(-1, length), target.reshape(-1), partial, zero)


def _columns(layout: Reduction, source: Any, target: Any, zero: Any, threads: int) -> Bound:
    """Means along columns."""
    from opgauge.ops.mean import jit

    a, _, b, _, c = layout.shape
    if c <= NARROW and b == 1 and layout.length <= jit.DEPTH and a >= LEAST_BLOCKS:
        blocks = source.reshape(a, layout.length, c), target.reshape(a, c)
        return bind(jit.mean_of_few_rows.on(threads), *blocks, zero, pieces_for(threads, TASKS))
    line = min(LINE // c, layout.length // 2) * c
    if c <= NARROW and b == 1 and line >= SHORT_LINE:
        parts = max(1, min(TASKS // a, layout.length * c // BLOCK))
        rows = source.reshape(a, -1), target.reshape(a, c), np.empty((a, parts, line))
        return bind(jit.mean_of_narrow_columns.on(threads), *rows, zero)
    shape = (a, 1, 1, layout.length, c) if b == 1 else layout.shape  # rows lie one after the other
    columns, means = source.reshape(-1, c), target.reshape(-1, c)
    if layout.length <= jit.DEPTH:
        tile = max(jit.TILE, min(MOST_COLUMNS, a * b * c // (threads * TASKS)))
        return bind(jit.mean_of_short_columns.on(threads), columns, means, zero, shape, tile)
    partial = np.empty((_parts(layout, jit.TILE), a * b, c))
    return bind(jit.mean_of_columns.on(threads), columns, means, partial, zero, shape)


def _parts(layout: Reduction, tile: int) -> int:
    """Shares of the rows to sum separately if there are too few columns for the threads."""
    tasks = layout.a * layout.b * -(-layout.c // tile)
    return max(1, min(TASKS // tasks, layout.length // BLOCK))
