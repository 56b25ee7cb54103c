"""Rows copied, and sums stored with an addend, for Numba kernels: flat arrays, 16-bit floats as bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from opgauge.ops._cpu.jit import INLINE, narrow, widen
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, load_widened, store

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""


@njit(**INLINE)
def store_sums(sums: Any, given: int, addend: Any, out: Any, first: int, count: int) -> None:
    """Store `count` sums from `given` on, plus those of the addend, which may be empty, to out from `first` on."""
    if addend.size:
        for index in range(uintp(count)):
            at = uintp(first) + index
            out[at] = narrow(sums[uintp(given) + index] + widen(addend[at]), out[at])
    else:
        for index in range(uintp(count)):
            out[uintp(first) + index] = narrow(sums[uintp(given) + index], out[uintp(first) + index])


@njit(**INLINE)
def add_onto(out: Any, addend: Any, first: int, count: int) -> None:
    """Add `count` elements of the addend from `first` on to those of out, whose sums need no rounding."""
    for index in range(uintp(first), uintp(first + count)):
        out[index] += widen(addend[index])


@njit(**INLINE)
def copy_row(source: Any, first: int, count: int, target: Any, to: int) -> None:
    """Copy a row in vectors, the last of which may overlap another; 16-bit floats are widened."""
    lanes = lanes_of(target)
    if count < lanes:
        for index in range(count):
            target[uintp(to + index)] = widen(source[uintp(first + index)])
    for index in range(0, count if count >= lanes else 0, lanes):
        at = min(index, count - lanes)
        store(target, uintp(to + at), load_widened(source, uintp(first + at), target))
