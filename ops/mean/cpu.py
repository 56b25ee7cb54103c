"""mean on the CPU by Numba: one pass over x."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.axes import Axis, as_reduction, normalize_axes
from ops._core.dtype import FLOATS
from ops._core.kernel import Bound
from ops._core.registry import kernel

BLOCK = 1 << 12
SMALL = 1 << 16
"""Elements below which one thread is faster than several."""


@kernel("mean", "optimized", "cpu", FLOATS, prepare=True)
def mean(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """Sum once, divide once."""
    del keepdim
    result = out["out"]
    if x.size == 0:
        return lambda: result.fill(np.nan)
    from ops._core.jit import accumulator, storage
    from ops.mean import jit

    layout = as_reduction(x.shape, normalize_axes(axis, x.ndim))
    source, target, zero = storage(x), storage(result).reshape(-1), accumulator(x).type(0)
    if layout.b == layout.c == 1:
        rows = source.reshape(layout.a, layout.length)
        if x.size < SMALL and layout.length <= BLOCK:
            return lambda: jit.mean_of_few(rows, target, zero)
        partial = np.empty((layout.a, -(-layout.length // BLOCK)))
        return lambda: jit.mean_of_rows(rows, target, partial, zero)
    shaped = source.reshape(layout.a, layout.r1, layout.b, layout.r2, layout.c)
    reduced = target.reshape(layout.a, layout.b, layout.c)
    return lambda: jit.mean_of_columns(shaped, reduced)
