"""add_n on the CPU: Numba, in parallel; NumPy where starting threads does not pay."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming

LARGE_BYTES = 1 << 17
"""Size from which starting threads pays."""
LARGE_HALVES = 1 << 10
"""Elements from which it pays for 16-bit floats, which NumPy converts one by one."""


@kernel("add_n", "optimized", "cpu", FLOATS, prepare=True)
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """One pass, cut into a piece per thread where that pays."""
    result = out["out"]
    halves = result.dtype.itemsize < np.dtype(np.float32).itemsize
    if result.size < LARGE_HALVES if halves else result.nbytes < LARGE_BYTES:
        return partial(_add, in_0, in_1, result)
    from numba import get_num_threads
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.add_n import jit

    flat = [storage(array.reshape(-1)) for array in (in_0, in_1, result)]
    return partial(jit.add_streaming if streaming.pays(*flat) else jit.add, *flat, get_num_threads())


def _add(in_0: Any, in_1: Any, result: Any) -> None:
    np.add(in_0, in_1, out=result)
