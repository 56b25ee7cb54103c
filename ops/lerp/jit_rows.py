"""Numba kernel of lerp_grad for the CPU for a gradient summed along whole rows of dout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, whole_registers, widen
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""


@njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)
def _sum_rows(
    dout: Any, weight: Any, out: Any, offset: Any, sign: Any, length: int, step: int, dense: Any, begin: int, end: int
) -> None:
    """Sums of the rows from `begin` to `end`: a call for each would cost more than a short row."""
    whole_registers()
    size, zero = uintp(length), sign * 0
    if weight.size and dense:
        for row in range(uintp(begin), uintp(end)):
            first, share, total = row * size, row * uintp(step), zero
            for k in range(size):
                total += (offset + sign * widen(weight[share + k])) * widen(dout[first + k])
            out[row] = narrow(total, out[row])
        return
    for row in range(uintp(begin), uintp(end)):
        first, total = row * size, zero
        factor = offset + sign * (widen(weight[row * uintp(step)]) if weight.size else zero)
        for k in range(size):
            total += factor * widen(dout[first + k])
        out[row] = narrow(total, out[row])


@parallel(error_model="numpy")
def sum_rows(dout: Any, weight: Any, out: Any, factor: Any, length: int, step: int, dense: Any, pieces: int) -> None:
    """Sum rows of `length` into out, flat, in `pieces` of many rows; factor: offset and sign, as in `sum_lines`.

    step: from the weight of a row, or of its first element if they are dense, to the next row's; without weights 0.
    """
    offset, sign, rows = factor[0], factor[1], out.size
    for piece in prange(pieces):
        begin, end = rows * np.int64(piece) // pieces, rows * (np.int64(piece) + 1) // pieces
        _sum_rows(dout, weight, out, offset, sign, length, step, dense, begin, end)
