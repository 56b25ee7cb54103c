"""add_n on the CPU by Numba."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count


@kernel("add_n", "optimized", "cpu", FLOATS, prepare=True)
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """Add in one pass."""
    result = out["out"]
    halves = result.dtype.itemsize < np.dtype(np.float32).itemsize
    threads = count(3 * result.nbytes, 5 * result.size if halves else result.size)
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.add_n import jit

    flat = [storage(array.reshape(-1)) for array in (in_0, in_1, result)]
    return partial((jit.add_streaming if streaming.pays(*flat) else jit.add_flat).on(threads), *flat, threads)
