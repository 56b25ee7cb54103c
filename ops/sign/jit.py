"""Numba kernels of sign for the CPU."""

from __future__ import annotations

from typing import Any

from numba import njit, prange

from ops._core.jit import narrow, widen


@njit(inline="always", error_model="numpy")
def _sign(x: Any) -> Any:
    number = widen(x)
    value = (number > 0) * 1 - (number < 0) * 1
    return x if number != number else narrow(value, x)  # noqa: PLR0124  NaN is NaN


@njit(cache=True, error_model="numpy")
def sign_of_few(x: Any, out: Any) -> None:
    """Flat, by the calling thread."""
    for index in range(x.size):
        out[index] = _sign(x[index])


@njit(cache=True, parallel=True, error_model="numpy")
def sign_of_many(x: Any, out: Any) -> None:
    """Flat, in parallel."""
    for index in prange(x.size):
        out[index] = _sign(x[index])
