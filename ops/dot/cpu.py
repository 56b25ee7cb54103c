"""dot on the CPU by Numba: one pass over both vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops.dot.op import DTYPES

BLOCK = 1 << 12
SMALL = 1 << 15
"""Elements below which one thread is faster than several."""


@kernel("dot", "optimized", "cpu", DTYPES, prepare=True)
def dot(*, x: Any, y: Any, out: dict[str, Any]) -> Bound:
    """Multiply and sum at once."""
    result = out["out"]
    if x.size == 0:
        return lambda: result.fill(0)
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.dot import jit

    length = x.shape[-1]
    first, second = storage(x).reshape(-1, length), storage(y).reshape(-1, length)
    target = storage(result).reshape(-1)
    held = accumulator(x)
    zero = held.type(0)
    if x.size < SMALL and length <= BLOCK:
        return lambda: jit.dot_of_few(first, second, target, zero)
    wide = {"f": np.float64, "c": np.complex128}.get(held.kind, held)
    partial = np.empty((first.shape[0], -(-length // BLOCK)), wide)
    return lambda: jit.dot_of_rows(first, second, target, partial, zero)
