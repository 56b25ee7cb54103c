"""Numba kernel of flatten for the CPU."""

from __future__ import annotations

from typing import Any

from numba import njit, prange


@njit(cache=True, parallel=True)
def copy(x: Any, out: Any) -> None:
    """Flat bytes, as 64-bit words where they are many."""
    for index in prange(out.size):
        out[index] = x[index]
