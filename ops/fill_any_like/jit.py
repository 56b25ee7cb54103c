"""Numba kernels of fill_any_like for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, settle, whole_runs

uintp = np.uintp


@njit(cache=True)
def fill_few(out: Any, value: Any) -> None:
    """Flat, by the calling thread."""
    out[:] = value


@njit(**INNER)
def _fill(out: Any, value: Any, start: int, end: int) -> None:
    for index in range(uintp(start), uintp(end)):
        out[index] = value


@njit(**INNER)
def _fill_in_turns(out: Any, value: Any, start: int, end: int, turn: int) -> None:
    half = (end - start) // (2 * turn) * turn
    for at in range(start, start + half, turn):
        _fill(out, value, at, at + turn)
        _fill(out, value, at + half, at + half + turn)
    _fill(out, value, start + 2 * half, end)


@njit(cache=True, parallel=True)
def fill_many(out: Any, value: Any, pieces: int, turn: int) -> None:
    """Flat, in `pieces` for as many threads, which write `turn` elements to each half of their part in turn."""
    for piece in prange(pieces):
        _fill_in_turns(out, value, out.size * piece // pieces, out.size * (piece + 1) // pieces, turn)


@njit(**INNER)
def _fill_part(out: Any, value: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    held[:] = value
    _fill(out, value, start, first)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        put_run(held, 0, out, run)
    _fill(out, value, whole, end)
    settle()


@njit(cache=True, parallel=True)
def fill_streaming(out: Any, value: Any, pieces: int) -> None:
    """Flat, in `pieces` for as many threads, past the caches."""
    for piece in prange(pieces):
        _fill_part(out, value, out.size * piece // pieces, out.size * (piece + 1) // pieces)
