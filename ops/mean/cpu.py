"""mean on the CPU by Numba: one pass over x."""

from __future__ import annotations

from functools import partial as bind
from typing import Any

import numpy as np
from opgauge.ops._core.axes import Axis, Reduction, as_reduction, normalize_axes
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel

BLOCK = 1 << 12
SMALL = 1 << 16
"""Elements below which one thread is faster than several."""
TASKS = 16
"""Pieces of work that keep the threads even."""


@kernel("mean", "optimized", "cpu", FLOATS, prepare=True)
def mean(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """Sum once, divide once."""
    del keepdim
    result = out["out"]
    if x.size == 0:
        return lambda: result.fill(np.nan)
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.mean import jit

    layout = as_reduction(x.shape, normalize_axes(axis, x.ndim))
    a, r1, b, r2, c = layout.a, layout.r1, layout.b, layout.r2, layout.c
    source, target, zero = storage(x), storage(result), accumulator(x).type(0)
    if c > 1:
        columns, means = source.reshape(a, r1, b, r2, c), target.reshape(a, b, c)
        partial = np.empty((_parts(layout, jit.TILE), a, b, c))
        return bind(jit.mean_of_columns, columns, means, partial, zero)
    if b == 1 and layout.length <= BLOCK:
        rows = jit.mean_of_few if x.size < SMALL else jit.mean_of_rows
        return bind(rows, source.reshape(a, layout.length), target.reshape(-1), zero)
    pieces, length = (r1, r2) if b > 1 else (1, layout.length)
    partial = np.empty((a, b, pieces, -(-length // BLOCK)))
    return bind(jit.mean_of_pieces, source.reshape(-1, length), target.reshape(-1), partial, zero)


def _parts(layout: Reduction, tile: int) -> int:
    """Shares of the rows to sum apart where there are too few columns for the threads."""
    tasks = layout.a * layout.b * -(-layout.c // tile)
    return max(1, min(TASKS // tasks, layout.length // BLOCK))
