"""Numba kernels of scale for the CPU. Integers stay in their dtype and wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, settle, whole_runs

uintp = np.uintp


@njit(cache=True, error_model="numpy")
def scale_few(x: Any, out: Any, scale: Any, bias: Any, after: Any) -> None:
    """Flat, by the calling thread."""
    if after:
        for index in range(x.size):
            out[index] = narrow(widen(x[index]) * scale + bias, out[index])
    else:
        for index in range(x.size):
            out[index] = narrow((widen(x[index]) + bias) * scale, out[index])


@njit(cache=True, parallel=True, error_model="numpy")
def scale_many(x: Any, out: Any, scale: Any, bias: Any, after: Any) -> None:
    """Flat, in parallel."""
    if after:
        for index in prange(x.size):
            out[index] = narrow(widen(x[index]) * scale + bias, out[index])
    else:
        for index in prange(x.size):
            out[index] = narrow((widen(x[index]) + bias) * scale, out[index])


@njit(**INNER)
def _scale_part(x: Any, out: Any, scale: Any, bias: Any, after: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    scale_few(x[start:first], out[start:first], scale, bias, after)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        if after:
            for step in range(uintp(RUN)):
                held[step] = narrow(widen(x[run + step]) * scale + bias, held[step])
        else:
            for step in range(uintp(RUN)):
                held[step] = narrow((widen(x[run + step]) + bias) * scale, held[step])
        put_run(held, 0, out, run)
    scale_few(x[whole:end], out[whole:end], scale, bias, after)
    settle()


@njit(cache=True, parallel=True, error_model="numpy")
def scale_streaming(x: Any, out: Any, scale: Any, bias: Any, after: Any, pieces: int) -> None:
    """Flat, in `pieces` for as many threads, written past the caches."""
    for piece in prange(pieces):
        _scale_part(x, out, scale, bias, after, out.size * piece // pieces, out.size * (piece + 1) // pieces)
