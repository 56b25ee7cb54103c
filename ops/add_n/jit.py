"""Numba kernels of add_n for the CPU. 16-bit floats arrive in the format of `opgauge.ops._cpu.jit.storage`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


@njit(**INNER)
def _add(first: Any, second: Any, out: Any, start: int, end: int) -> None:
    for at in range(uintp(start), uintp(end)):
        out[at] = narrow(widen(first[at]) + widen(second[at]), first[at])


@parallel(error_model="numpy")
def add_flat(first: Any, second: Any, out: Any, pieces: int) -> None:
    """Add flat arrays, in one piece per thread; 16-bit floats are added in float32 and rounded once."""
    for piece in prange(pieces):
        _add(first, second, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@njit(**INNER)
def _add_streaming(first: Any, second: Any, out: Any, start: int, end: int) -> None:
    held, (begin, whole) = held_run(out), whole_runs(out, start, end)
    _add(first, second, out, start, begin)
    for run in range(uintp(begin), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = narrow(widen(first[run + step]) + widen(second[run + step]), held[step])
        put_run(held, 0, out, run)
    _add(first, second, out, whole, end)
    store_fence()


@parallel(error_model="numpy")
def add_streaming(first: Any, second: Any, out: Any, pieces: int) -> None:
    """Add flat arrays with non-temporal stores, in one piece per thread."""
    for piece in prange(pieces):
        _add_streaming(first, second, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)
