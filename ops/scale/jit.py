"""Numba kernels of scale for the CPU. Integers stay in their dtype and wrap."""

from __future__ import annotations

from typing import Any

from numba import njit, prange

from ops._core.jit import narrow, widen


@njit(cache=True, error_model="numpy")
def scale_few(x: Any, out: Any, scale: Any, bias: Any, after: Any) -> None:
    """Flat, by the calling thread."""
    if after:
        for index in range(x.size):
            out[index] = narrow(widen(x[index]) * scale + bias, out[index])
    else:
        for index in range(x.size):
            out[index] = narrow((widen(x[index]) + bias) * scale, out[index])


@njit(cache=True, parallel=True, error_model="numpy")
def scale_many(x: Any, out: Any, scale: Any, bias: Any, after: Any) -> None:
    """Flat, in parallel."""
    if after:
        for index in prange(x.size):
            out[index] = narrow(widen(x[index]) * scale + bias, out[index])
    else:
        for index in prange(x.size):
            out[index] = narrow((widen(x[index]) + bias) * scale, out[index])
