"""Numba kernel of flatten for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.streaming.jit import RUN, put_run, settle, whole_runs

uintp = np.uintp


@njit(cache=True, parallel=True)
def copy(x: Any, out: Any) -> None:
    """Flat bytes, as 64-bit words where they are many."""
    for index in prange(out.size):
        out[index] = x[index]


@njit(**INNER)
def _copy_part(x: Any, out: Any, start: int, end: int) -> None:
    first, whole = whole_runs(out, start, end)
    for index in range(uintp(start), uintp(first)):
        out[index] = x[index]
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        put_run(x, run, out, run)
    for index in range(uintp(whole), uintp(end)):
        out[index] = x[index]
    settle()


@njit(cache=True, parallel=True)
def copy_streaming(x: Any, out: Any, pieces: int) -> None:
    """The same in `pieces` for as many threads, past the caches."""
    for piece in prange(pieces):
        _copy_part(x, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)
