"""Numba kernels of p_norm for the CPU where each norm is of a single element, on the bits of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.threads import parallel


@njit(**INNER)
def _clear_signs(bits: Any, out: Any, mask: Any, start: int, end: int) -> None:
    for index in range(np.uintp(start), np.uintp(end)):
        out[index] = bits[index] & mask


@njit(**INNER)
def _count_nonzero(bits: Any, out: Any, mask: Any, one: Any, start: int, end: int) -> None:
    for index in range(np.uintp(start), np.uintp(end)):
        out[index] = one if bits[index] & mask else mask ^ mask


@parallel(error_model="numpy")
def clear_signs(bits: Any, out: Any, mask: Any, pieces: int) -> None:
    """Write the magnitudes of flat floats, in one piece per thread; mask: every bit but the sign."""
    for piece in prange(pieces):
        _clear_signs(bits, out, mask, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@parallel(error_model="numpy")
def count_nonzero(bits: Any, out: Any, mask: Any, one: Any, pieces: int) -> None:
    """Write one for each float that is not zero, in one piece per thread; one: its bits."""
    for piece in prange(pieces):
        _count_nonzero(bits, out, mask, one, out.size * piece // pieces, out.size * (piece + 1) // pieces)
