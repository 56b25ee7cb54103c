"""Numba kernels of scale for the CPU. Integers stay in their dtype and wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow_for, widen_for
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


@njit(**INNER)
def _scale_range(x: Any, out: Any, scale: Any, bias: Any, after: Any, start: int, end: int) -> None:
    if after:
        for index in range(uintp(start), uintp(end)):
            out[index] = narrow_for(widen_for(x[index], scale) * scale + bias, out[index], scale)
    else:
        for index in range(uintp(start), uintp(end)):
            out[index] = narrow_for((widen_for(x[index], scale) + bias) * scale, out[index], scale)


@parallel(error_model="numpy")
def scale_flat(x: Any, out: Any, scale: Any, bias: Any, after: Any, pieces: int) -> None:
    """Scale flat x, in one piece per thread; `after`: the bias is added after scaling."""
    for piece in prange(pieces):
        _scale_range(x, out, scale, bias, after, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@njit(**INNER)
def _scale_part(x: Any, out: Any, scale: Any, bias: Any, after: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    _scale_range(x, out, scale, bias, after, start, first)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        if after:
            for step in range(uintp(RUN)):
                held[step] = narrow_for(widen_for(x[run + step], scale) * scale + bias, held[step], scale)
        else:
            for step in range(uintp(RUN)):
                held[step] = narrow_for((widen_for(x[run + step], scale) + bias) * scale, held[step], scale)
        put_run(held, 0, out, run)
    _scale_range(x, out, scale, bias, after, whole, end)
    store_fence()


@parallel(error_model="numpy")
def scale_streaming(x: Any, out: Any, scale: Any, bias: Any, after: Any, pieces: int) -> None:
    """Scale flat x with non-temporal stores, in one piece per thread."""
    for piece in prange(pieces):
        _scale_part(x, out, scale, bias, after, out.size * piece // pieces, out.size * (piece + 1) // pieces)
