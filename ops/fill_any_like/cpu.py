"""fill_any_like on the CPU by Numba: elements of one width are filled alike, as bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ops._core import streaming
from ops._core.dtype import dtype_name
from ops._core.kernel import Bound
from ops._core.registry import kernel
from ops.fill_any_like.op import DTYPES, as_element

SMALL = 1 << 15
"""Elements below which one thread is faster than several."""


@kernel("fill_any_like", "optimized", "cpu", DTYPES, prepare=True, strided=True)
def fill_any_like(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> Bound:
    """One write."""
    from numba import get_num_threads

    from ops.fill_any_like import jit

    result = out["out"]
    bits = f"u{result.dtype.itemsize}"
    element = np.full(1, as_element(value, dtype or dtype_name(x.dtype)), result.dtype).view(bits)[0]
    flat = result.reshape(-1).view(bits)
    if streaming.pays(flat):
        return partial(jit.fill_streaming, flat, element, get_num_threads())
    return partial(jit.fill_few if result.size < SMALL else jit.fill_many, flat, element)
