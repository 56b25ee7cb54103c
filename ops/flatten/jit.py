"""Numba kernels of flatten for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.streaming.jit import RUN, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


@parallel()
def copy(x: Any, out: Any) -> None:
    """Copy flat words of up to 64 bits."""
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
    store_fence()


@parallel()
def copy_streaming(x: Any, out: Any, pieces: int) -> None:
    """Copy flat words with non-temporal stores, in one piece per thread."""
    for piece in prange(pieces):
        _copy_part(x, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)
