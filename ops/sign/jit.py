"""Numba kernels of sign for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, settle, whole_runs

uintp = np.uintp


@njit(inline="always", error_model="numpy")
def _sign(x: Any, zero: Any, one: Any) -> Any:
    """Both constants are of the type that x is widened to: with others, numbers would be converted there and back."""
    number = widen(x)
    if number > zero:
        return narrow(one, x)
    # what is neither is NaN, or a zero that loses its sign
    return narrow(zero - one if number < zero else number + zero, x)


@njit(cache=True, error_model="numpy")
def sign_of_few(x: Any, zero: Any, one: Any, out: Any) -> None:
    """Flat, by the calling thread."""
    for index in range(x.size):
        out[index] = _sign(x[index], zero, one)


@njit(cache=True, parallel=True, error_model="numpy")
def sign_of_many(x: Any, zero: Any, one: Any, out: Any) -> None:
    """Flat, in parallel."""
    for index in prange(x.size):
        out[index] = _sign(x[index], zero, one)


@njit(**INNER)
def _sign_part(x: Any, zero: Any, one: Any, out: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    sign_of_few(x[start:first], zero, one, out[start:first])
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = _sign(x[run + step], zero, one)
        put_run(held, 0, out, run)
    sign_of_few(x[whole:end], zero, one, out[whole:end])
    settle()


@njit(cache=True, parallel=True, error_model="numpy")
def sign_streaming(x: Any, zero: Any, one: Any, out: Any, pieces: int) -> None:
    """Flat, in `pieces` for as many threads, written past the caches."""
    for piece in prange(pieces):
        _sign_part(x, zero, one, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)
