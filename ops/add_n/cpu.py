"""add_n on the CPU: Numba, in parallel; 16-bit floats by NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ops._core.kernel import Bound
from ops._core.registry import kernel

LARGE = 1 << 15
"""Elements from which starting threads pays."""


@kernel("add_n", "optimized", "cpu", ("float32", "float64"), prepare=True)
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """One pass, cut into a piece per thread where that pays."""
    result = out["out"]
    if result.size < LARGE:
        return partial(_add, in_0, in_1, result)
    from ops.add_n import jit

    flat = (in_0.reshape(-1), in_1.reshape(-1), result.reshape(-1))
    return lambda: jit.add(*flat)


@kernel("add_n", "optimized", "cpu", ("float16", "bfloat16"))
def add_n_16_bits(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> None:
    """NumPy's own addition, which rounds once."""
    np.add(in_0, in_1, out=out["out"])


def _add(in_0: Any, in_1: Any, result: Any) -> None:
    np.add(in_0, in_1, out=result)
