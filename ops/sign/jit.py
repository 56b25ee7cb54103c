"""Numba kernels of sign for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ops._core.jit import INNER, narrow, widen
from ops._core.streaming.jit import RUN, held_run, put_run, settle, whole_runs

uintp = np.uintp


@njit(inline="always", error_model="numpy")
def _sign(x: Any) -> Any:
    number = widen(x)
    value = (number > 0) * 1 - (number < 0) * 1
    return x if number != number else narrow(value, x)  # noqa: PLR0124  NaN is NaN


@njit(cache=True, error_model="numpy")
def sign_of_few(x: Any, out: Any) -> None:
    """Flat, by the calling thread."""
    for index in range(x.size):
        out[index] = _sign(x[index])


@njit(cache=True, parallel=True, error_model="numpy")
def sign_of_many(x: Any, out: Any) -> None:
    """Flat, in parallel."""
    for index in prange(x.size):
        out[index] = _sign(x[index])


@njit(**INNER)
def _sign_part(x: Any, out: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    sign_of_few(x[start:first], out[start:first])
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = _sign(x[run + step])
        put_run(held, 0, out, run)
    sign_of_few(x[whole:end], out[whole:end])
    settle()


@njit(cache=True, parallel=True, error_model="numpy")
def sign_streaming(x: Any, out: Any, pieces: int) -> None:
    """Flat, in `pieces` for as many threads, written past the caches."""
    for piece in prange(pieces):
        _sign_part(x, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)
