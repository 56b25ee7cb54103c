"""Numba kernels of dot for the CPU: block sums in the accumulating dtype, their sum in float64 (integers: exact)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, whole_registers, widen
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


@njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)
def _sum(x: Any, y: Any, row: int, first: int, end: int, zero: Any) -> Any:
    """Sum of x[row, first:end] times y[row, first:end]."""
    whole_registers()
    total = zero
    at, start = uintp(row), uintp(first)
    for index in range(uintp(end - first)):
        total += widen(x[at, start + index]) * widen(y[at, start + index])
    return total


@parallel(error_model="numpy")
def dot_of_long_rows(x: Any, y: Any, out: Any, partial: Any, zero: Any) -> None:
    """Like `dot_of_rows`, each row by several threads; partial (rows, blocks) in a dtype without loss."""
    rows, length = x.shape
    blocks = partial.shape[1]
    for task in prange(rows * blocks):
        row, block = np.int64(task) // blocks, np.int64(task) % blocks
        first, end = length * block // blocks, length * (block + 1) // blocks
        partial[row, block] = _sum(x, y, row, first, end, zero)
    for row in range(rows):
        total = partial[row, 0]
        for block in range(1, blocks):
            total += partial[row, block]
        out[row] = narrow(total, out[row])


@njit(**INNER)
def _multiply(x: Any, y: Any, out: Any, start: int, end: int) -> None:
    for index in range(uintp(start), uintp(end)):
        out[index] = narrow(widen(x[index]) * widen(y[index]), out[index])


@parallel(error_model="numpy")
def dot_of_elements(x: Any, y: Any, out: Any, pieces: int) -> None:
    """Products of flat x and y: rows of one element, in one piece per thread."""
    for piece in prange(pieces):
        _multiply(x, y, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)
def _dot_rows(x: Any, y: Any, begin: int, end: int, zero: Any, out: Any) -> None:
    """Rows from `begin` to `end`: a call for each would cost more than a short row."""
    whole_registers()
    for row in range(uintp(begin), uintp(end)):
        total = zero
        for index in range(uintp(x.shape[1])):
            total += widen(x[row, index]) * widen(y[row, index])
        out[row] = narrow(total, out[row])


@parallel(error_model="numpy")
def dot_of_rows(x: Any, y: Any, out: Any, zero: Any, pieces: int) -> None:
    """Dot products of x and y (rows, length) into out (rows,), of a single block each, in `pieces` of many rows."""
    rows = x.shape[0]
    for piece in prange(pieces):
        _dot_rows(x, y, rows * np.int64(piece) // pieces, rows * (np.int64(piece) + 1) // pieces, zero, out)
