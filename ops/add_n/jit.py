"""Numba kernel of add_n for the CPU."""

from __future__ import annotations

from typing import Any

from numba import njit, prange


@njit(cache=True, parallel=True, error_model="numpy")
def add(first: Any, second: Any, out: Any) -> None:
    """first + second, flat."""
    for index in prange(out.size):
        out[index] = first[index] + second[index]
