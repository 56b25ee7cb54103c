"""Numba kernels of sign for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow_for, widen_for
from opgauge.ops._cpu.streaming.jit import RUN, held_run, put_run, store_fence, whole_runs
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp


@njit(inline="always", error_model="numpy")
def _sign(x: Any, zero: Any, one: Any) -> Any:
    """Sign of a stored element. The constants have the type that x widens to, so that nothing is converted."""
    number = widen_for(x, zero)
    value = number + zero  # NaN stays NaN, and a negative zero becomes zero
    value = one if number > zero else value
    return narrow_for(zero - one if number < zero else value, x, zero)


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


@njit(inline="always", error_model="numpy")
def _finite_part(part: Any, other: Any, zero: Any, one: Any, infinite: Any) -> Any:
    """A part of a complex number; its sign where it alone is infinite, zero where only the other one is."""
    kept = part * zero if abs(other) == infinite else part
    return one if kept == infinite else (zero - one if kept == -infinite else kept)


@njit(**INNER)
def _complex_signs(x: Any, out: Any, start: int, end: int, zero: Any, one: Any) -> None:
    infinite = one / zero
    for index in range(uintp(start), uintp(end)):
        at = index + index  # a product with a signed number is signed, and the loop is not vectorised
        beside = at + uintp(1)
        real = _finite_part(x[at], x[beside], zero, one, infinite)
        imaginary = _finite_part(x[beside], x[at], zero, one, infinite)
        largest = max(abs(real), abs(imaginary))
        scale = one if largest == zero else largest
        real, imaginary = real / scale, imaginary / scale
        size = np.sqrt(real * real + imaginary * imaginary)
        divisor = one if largest == zero else size
        out[at], out[beside] = real / divisor + zero, imaginary / divisor + zero


@parallel(error_model="numpy")
def sign_complex(x: Any, out: Any, zero: Any, one: Any, pieces: int) -> None:
    """Write x / |x|, in one piece per thread; x and out are flat pairs of a real and an imaginary part.

    Numbers are divided by their larger part first, so that the magnitude neither overflows nor vanishes.
    """
    size = x.size // 2
    for piece in prange(pieces):
        _complex_signs(x, out, size * piece // pieces, size * (piece + 1) // pieces, zero, one)
