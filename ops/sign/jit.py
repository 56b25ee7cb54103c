"""Numba kernels of sign for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


@njit(inline="always", error_model="numpy")
def _sign(x: Any, zero: Any, one: Any) -> Any:
    """Sign of a stored element. The constants have the type that x widens to, so that nothing is converted."""
    number = widen(x)
    if number > zero:
        return narrow(one, x)
    # neither positive nor negative: NaN stays NaN, and a negative zero becomes zero
    return narrow(zero - one if number < zero else number + zero, x)


@njit(**INNER)
def _sign_range(x: Any, zero: Any, one: Any, out: Any, start: int, end: int) -> None:
    for index in range(uintp(start), uintp(end)):
        out[index] = _sign(x[index], zero, one)


@parallel(error_model="numpy")
def sign_flat(x: Any, zero: Any, one: Any, out: Any, pieces: int) -> None:
    """Write the signs of flat x, in one piece per thread."""
    for piece in prange(pieces):
        _sign_range(x, zero, one, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@njit(**INNER)
def _sign_part(x: Any, zero: Any, one: Any, out: Any, start: int, end: int) -> None:
    held, (first, whole) = held_run(out), whole_runs(out, start, end)
    _sign_range(x, zero, one, out, start, first)
    for run in range(uintp(first), uintp(whole), uintp(RUN)):
        for step in range(uintp(RUN)):
            held[step] = _sign(x[run + step], zero, one)
        put_run(held, 0, out, run)
    _sign_range(x, zero, one, out, whole, end)
    store_fence()


@parallel(error_model="numpy")
def sign_streaming(x: Any, zero: Any, one: Any, out: Any, pieces: int) -> None:
    """Write the signs of flat x with non-temporal stores, in one piece per thread."""
    for piece in prange(pieces):
        _sign_part(x, zero, one, out, out.size * piece // pieces, out.size * (piece + 1) // pieces)


@parallel(error_model="numpy")
def sign_complex(x: Any, out: Any, large: Any, quarter: Any, zero: Any, one: Any) -> None:
    """Write x / |x|, flat; x of more than `large` in a part is scaled by a quarter first, an infinite part to 1."""
    for index in prange(x.size):
        real, imaginary = x[index].real, x[index].imag
        if max(abs(real), abs(imaginary)) > large:
            real, imaginary = real * quarter, imaginary * quarter
        if np.isinf(real) != np.isinf(imaginary):
            real = np.copysign(one, real) if np.isinf(real) else real * zero
            imaginary = np.copysign(one, imaginary) if np.isinf(imaginary) else imaginary * zero
        size = np.hypot(real, imaginary)
        out[index] = complex(zero, zero) if size == zero else complex(real / size, imaginary / size)
