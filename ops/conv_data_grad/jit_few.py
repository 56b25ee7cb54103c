"""Numba kernels for convolutions of few outputs: products with the filter as it lies, which is read once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, borrowed, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, load, load_widened, multiply_add, spread, store

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
SPAN_BYTES = 1 << 11
"""Size of a span of sums of one output; those of all outputs fit the nearest cache."""
DEPTH = 4
"""Rows of the filter that are multiplied at once."""


@njit(**INNER)
def _add_rows(
    given: Any, start: int, pitch: int, weight: Any, at: int, length: int, sums: Any, to: int, apart: int, count: int
) -> None:
    """Add the products of two outputs' next `DEPTH` numbers, `pitch` apart, with rows of weight, `length` apart."""
    step, end = uintp(lanes_of(sums)), uintp(count - count % lanes_of(sums))
    i0, i1, i2, i3 = uintp(at), uintp(at + length), uintp(at + 2 * length), uintp(at + 3 * length)
    s0, s1, g0, g1 = uintp(to), uintp(to + apart), uintp(start), uintp(start + pitch)
    a0, a1 = spread(given[g0]), spread(given[g0 + uintp(1)])
    a2, a3 = spread(given[g0 + uintp(2)]), spread(given[g0 + uintp(3)])
    b0, b1 = spread(given[g1]), spread(given[g1 + uintp(1)])
    b2, b3 = spread(given[g1 + uintp(2)]), spread(given[g1 + uintp(3)])
    for index in range(uintp(0), end, step):
        w0, w1 = load_widened(weight, i0 + index, sums), load_widened(weight, i1 + index, sums)
        w2, w3 = load_widened(weight, i2 + index, sums), load_widened(weight, i3 + index, sums)
        first = multiply_add(a1, w1, multiply_add(a0, w0, load(sums, s0 + index)))
        second = multiply_add(b1, w1, multiply_add(b0, w0, load(sums, s1 + index)))
        store(sums, s0 + index, multiply_add(a3, w3, multiply_add(a2, w2, first)))
        store(sums, s1 + index, multiply_add(b3, w3, multiply_add(b2, w2, second)))
    for row in range(DEPTH):
        _add_row(given[g0 + uintp(row)], weight, at + row * length, sums, to, end, count)
        _add_row(given[g1 + uintp(row)], weight, at + row * length, sums, to + apart, end, count)


@njit(**INNER)
def _add_row(factor: Any, weight: Any, at: int, sums: Any, to: int, first: int, end: int) -> None:
    """Add a row of weight times the factor to sums."""
    for index in range(uintp(first), uintp(end)):
        sums[uintp(to) + index] += factor * widen(weight[uintp(at) + index])


@parallel(error_model="numpy")
def multiply_few(given: Any, weight: Any, groups: int, sums: Any, outputs: int, span: int) -> None:
    """Set sums (outputs, groups, columns), to given (outputs, groups, depth) times weight (groups, depth, columns).

    Arrays are flat; `outputs` is even.
    """
    source, factors, total = borrowed(given), borrowed(weight), borrowed(sums)
    depth, columns = given.size // (outputs * groups), sums.size // (outputs * groups)
    spans = -(-columns // span)
    for task in prange(groups * spans):
        group, first = np.int64(task) // spans, np.int64(task) % spans * span
        count, place, pitch = min(span, columns - first), group * columns + first, groups * depth
        for output in range(outputs):
            to = uintp(output * groups * columns + place)
            for index in range(uintp(count)):
                total[to + index] = 0
        for row in range(0, depth, DEPTH):
            at = (group * depth + row) * columns + first
            for output in range(0, outputs, 2):
                start, to = output * pitch + group * depth + row, output * groups * columns + place
                if row + DEPTH <= depth:
                    _add_rows(source, start, pitch, factors, at, columns, total, to, groups * columns, count)
                    continue
                for rest in range(depth - row):
                    line = at + rest * columns
                    _add_row(source[uintp(start + rest)], factors, line, total, to, 0, count)
                    below = to + groups * columns
                    _add_row(source[uintp(start + pitch + rest)], factors, line, total, below, 0, count)
