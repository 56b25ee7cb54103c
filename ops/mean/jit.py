"""Numba kernels of mean for the CPU: blocks summed in the accumulating dtype, blocks in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ops._core.jit import narrow, widen


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def _sum(x: Any, zero: Any) -> Any:
    total = zero
    for index in range(x.size):
        total += widen(x[index])
    return np.float64(total)


@njit(cache=True, error_model="numpy")
def mean_of_few(x: Any, out: Any, zero: Any) -> None:
    """x (rows, length), small: by the calling thread."""
    for row in range(x.shape[0]):
        out[row] = narrow(_sum(x[row], zero) / x.shape[1], out[row])


@njit(cache=True, parallel=True, error_model="numpy")
def mean_of_rows(x: Any, out: Any, partial: Any, zero: Any) -> None:
    """x (rows, length) to out (rows,); partial (rows, blocks)."""
    rows, length = x.shape
    blocks = partial.shape[1]
    for task in prange(rows * blocks):
        row, block = task // blocks, task % blocks
        partial[row, block] = _sum(x[row, length * block // blocks : length * (block + 1) // blocks], zero)
    for row in range(rows):
        out[row] = narrow(np.sum(partial[row]) / length, out[row])


@njit(cache=True, parallel=True, error_model="numpy")
def mean_of_columns(x: Any, out: Any) -> None:
    """x (a, r1, b, r2, c) to out (a, b, c), columns in chunks."""
    a, r1, b, r2, c = x.shape
    chunk = 64
    chunks = (c + chunk - 1) // chunk
    for task in prange(a * b * chunks):
        i, j, first = task // (b * chunks), task // chunks % b, task % chunks * chunk
        width = min(chunk, c - first)
        totals = np.zeros(width, np.float64)
        for u in range(r1):
            for v in range(r2):
                for k in range(width):
                    totals[k] += widen(x[i, u, j, v, first + k])
        for k in range(width):
            out[i, j, first + k] = narrow(totals[k] / (r1 * r2), out[i, j, first + k])
