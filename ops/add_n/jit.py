"""Numba kernel of add_n for the CPU. It takes 16-bit floats as `ops._core.jit.storage` views them."""

from __future__ import annotations

from typing import Any

from numba import njit, prange

from ops._core.jit import narrow, widen


@njit(cache=True, parallel=True, error_model="numpy")
def add(first: Any, second: Any, out: Any) -> None:
    """first + second, flat; 16-bit floats are added in float32 and rounded once."""
    for index in prange(out.size):
        out[index] = narrow(widen(first[index]) + widen(second[index]), first[index])
