"""Streaming copies and fills: non-temporal stores need not read the lines that they overwrite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs

uintp = np.uintp


@njit(**INNER)
def _copy_range(source: Any, target: Any, start: int, end: int) -> None:
    for index in range(uintp(start), uintp(end)):
        target[index] = source[index]


@njit(**INNER)
def _copy_part(source: Any, target: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(target), whole_runs(target, start, end)
    _copy_range(source, target, start, first)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = source[run + step]
        put_run(held, 0, target, run)
    _copy_range(source, target, whole, end)
    store_fence()


@njit(cache=True, parallel=True)
def copy(source: Any, target: Any, pieces: int) -> None:
    """Copy one flat array to another of the same length, in one piece per thread."""
    for piece in prange(pieces):
        _copy_part(source, target, target.size * piece // pieces, target.size * (piece + 1) // pieces)


@njit(**INNER)
def _fill_part(target: Any, value: float, start: int, end: int) -> None:
    held, (first, whole) = held_run(target), whole_runs(target, start, end)
    held[:] = value
    target[start:first] = value
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        put_run(held, 0, target, run)
    target[whole:end] = value
    store_fence()


@njit(cache=True, parallel=True)
def fill(target: Any, value: float, pieces: int) -> None:
    """Fill a flat array, in one piece per thread."""
    for piece in prange(pieces):
        _fill_part(target, value, target.size * piece // pieces, target.size * (piece + 1) // pieces)
