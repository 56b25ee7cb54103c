"""fill_any_like on the CPU by Numba: kernels by element width, as elements are copied as bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_name
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count
from opgauge.ops.fill_any_like.op import DTYPES, as_element

LEAST_SHARE, MOST_SHARE = 7 / 16, 7 / 8
"""Result sizes, as shares of the last-level cache, for which a thread alternates between two halves of its part.

Part of the result is then in memory, and two streams are fetched faster than one: 0.85 to 0.97 of the time on Zen 4.
"""
STRAIGHT = 1 << 40
"""Run length that exceeds every part: the part is written from start to end."""
FEW_BYTES = 1 << 14
"""Bytes up to which NumPy fills faster than Numba's call takes; its loop is half as fast."""
TURN_BYTES = 2048
"""Bytes written before a thread switches halves: lines are fetched ahead, but each switch restarts a stream."""


@kernel("fill_any_like", "optimized", "cpu", DTYPES, prepare=True, strided=True)
def fill_any_like(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> Bound:
    """Write each element once."""
    from opgauge.ops.fill_any_like import jit

    result = out["out"]
    bits = f"u{result.dtype.itemsize}"
    element = np.full(1, as_element(value, dtype or dtype_name(x.dtype)), result.dtype).view(bits)[0]
    flat = result.reshape(-1).view(bits)
    threads = count(flat.nbytes)
    if streaming.pays(flat):
        return partial(jit.fill_streaming.on(threads), flat, element, threads)
    if flat.nbytes <= FEW_BYTES:
        return partial(flat.fill, element)
    return partial(jit.fill_flat.on(threads), flat, element, threads, turn_of(flat))


def turn_of(flat: Any) -> int:
    """Elements that a thread writes to one half of its part before it switches."""
    if not LEAST_SHARE < flat.nbytes / streaming.last_cache_bytes() <= MOST_SHARE:
        return STRAIGHT
    return TURN_BYTES // int(flat.itemsize) or STRAIGHT
