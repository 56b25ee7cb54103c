"""dot on the CPU by Numba: one pass over both vectors."""

from __future__ import annotations

from functools import partial as bind
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu.threads import count, pieces_for
from opgauge.ops.dot.op import DTYPES

BLOCK = 1 << 12
"""Products per block sum in the accumulating dtype; block sums are added in a wider one."""
PIECES = 8
"""Parts of the rows per thread."""


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
    sum_dtype = accumulator(x)
    wide = {"f": np.float64, "c": np.complex128}.get(sum_dtype.kind, sum_dtype)
    threads = count(2 * x.nbytes, x.size * (6 if x.dtype.itemsize == 2 else 2))
    if length == 1:
        return bind(jit.dot_of_elements.on(threads), first.reshape(-1), second.reshape(-1), target, threads)
    if length <= BLOCK:
        pieces = pieces_for(threads, PIECES)
        return bind(jit.dot_of_rows.on(threads), first, second, target, sum_dtype.type(0), pieces)
    partial = np.empty((first.shape[0], -(-length // BLOCK)), wide)
    return bind(jit.dot_of_long_rows.on(threads), first, second, target, partial, sum_dtype.type(0))
