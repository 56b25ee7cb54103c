"""Numba kernels of fill_any_like for the CPU."""

from __future__ import annotations

from typing import Any

from numba import njit, prange


@njit(cache=True)
def fill_few(out: Any, value: Any) -> None:
    """Flat, by the calling thread."""
    out[:] = value


@njit(cache=True, parallel=True)
def fill_many(out: Any, value: Any) -> None:
    """Flat, in parallel."""
    for index in prange(out.size):
        out[index] = value
