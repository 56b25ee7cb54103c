"""Numba kernels of fill_any_like for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


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


@parallel()
def fill_flat(out: Any, value: Any, pieces: int, turn: int) -> None:
    """Fill flat memory in one piece per thread, which alternates between its halves after `turn` elements."""
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
    store_fence()


@parallel()
def fill_streaming(out: Any, value: Any, pieces: int) -> None:
    """Fill flat memory with non-temporal stores, in one piece per thread."""
    for piece in prange(pieces):
        _fill_part(out, value, out.size * piece // pieces, out.size * (piece + 1) // pieces)
