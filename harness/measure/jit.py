"""Copies and fills by as many threads as Numba uses: what the CPU's memory and caches allow."""

from __future__ import annotations

from typing import Any

from numba import njit, prange


@njit(cache=True, parallel=True)
def copy(source: Any, target: Any) -> None:
    """Flat, of one length."""
    for index in prange(target.size):
        target[index] = source[index]


@njit(cache=True, parallel=True)
def fill(target: Any, value: float) -> None:
    """Flat."""
    for index in prange(target.size):
        target[index] = value
