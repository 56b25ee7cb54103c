"""Numba kernels of p_norm and its gradient for the CPU: one pass over memory, rows cut into blocks of bounded length.

Sums are taken in the accumulating dtype within a block and in float64 between blocks. Only sums
may be reordered; NaN, infinities and signs keep their meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ops._core.jit import narrow, power, widen

COUNT, ABS, SQUARE, CUBE, POWER, LARGEST, SMALLEST = range(7)
FLAT, SIGN, LINEAR, QUADRATIC, ROOT, ROOT_CUBED, GENERAL, BELOW_ONE = range(8)
SUMS = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _sum(x: Any, mode: int, p: Any) -> Any:
    total = p * 0
    if mode == ABS:
        for index in range(x.size):
            total += abs(widen(x[index]))
    elif mode == SQUARE:
        for index in range(x.size):
            value = widen(x[index])
            total += value * value
    elif mode == CUBE:
        for index in range(x.size):
            value = abs(widen(x[index]))
            total += value * value * value
    else:
        for index in range(x.size):
            total += power(abs(widen(x[index])), p)
    return np.float64(total)


@njit(cache=True, error_model="numpy")
def _pick(x: Any, mode: int, p: Any) -> Any:
    if mode == COUNT:
        count = 0
        for index in range(x.size):
            count += widen(x[index]) != 0
        return np.float64(count)
    best = p * 0
    if mode == SMALLEST:
        best += abs(widen(x[0]))
        for index in range(x.size):
            value = abs(widen(x[index]))
            best = value if value < best or value != value else best  # noqa: PLR0124  NaN stays
    else:
        for index in range(x.size):
            value = abs(widen(x[index]))
            best = value if value > best or value != value else best  # noqa: PLR0124  NaN stays
    return np.float64(best)


@njit(inline="always", error_model="numpy")
def _merge(total: Any, part: Any, mode: int) -> Any:
    if mode == LARGEST:
        return part if part > total or part != part else total  # noqa: PLR0124  NaN stays
    if mode == SMALLEST:
        return part if part < total or part != part else total  # noqa: PLR0124  NaN stays
    return total + part


@njit(inline="always", error_model="numpy")
def _finish(total: Any, mode: int, p: Any) -> Any:
    if mode == SQUARE:
        return np.sqrt(total)
    if mode in {CUBE, POWER}:
        return total ** (1.0 / np.float64(p))
    return total


@njit(cache=True, parallel=True, error_model="numpy")
def norm_rows(x: Any, y: Any, partial: Any, mode: int, p: Any) -> None:
    """x (rows, length) to y (rows,); partial (rows, blocks)."""
    rows, length = x.shape
    blocks = partial.shape[1]
    for task in prange(rows * blocks):
        row, block = task // blocks, task % blocks
        piece = x[row, length * block // blocks : length * (block + 1) // blocks]
        if mode in {COUNT, LARGEST, SMALLEST}:
            value = _pick(piece, mode, p)
        else:
            value = _sum(piece, mode, p)
        if blocks == 1:
            y[row] = narrow(_finish(value, mode, p), y[row])
        else:
            partial[row, block] = value
    if blocks > 1:
        for row in range(rows):
            total = partial[row, 0]
            for block in range(1, blocks):
                total = _merge(total, partial[row, block], mode)
            y[row] = narrow(_finish(total, mode, p), y[row])


@njit(cache=True, parallel=True, error_model="numpy")
def norm_columns(x: Any, y: Any, mode: int, p: Any) -> None:
    """x (a, r1, b, r2, c) to y (a, b, c), columns in chunks."""
    a, r1, b, r2, c = x.shape
    chunk = 64
    chunks = (c + chunk - 1) // chunk
    for task in prange(a * b * chunks):
        i, j, first = task // (b * chunks), task // chunks % b, task % chunks * chunk
        width = min(chunk, c - first)
        totals = np.zeros(width, np.float64)
        if mode == SMALLEST:
            totals[:] = np.inf
        for u in range(r1):
            for v in range(r2):
                for k in range(width):
                    value = abs(widen(x[i, u, j, v, first + k]))
                    if mode == COUNT:
                        totals[k] += value != 0
                    elif mode == ABS:
                        totals[k] += value
                    elif mode == SQUARE:
                        totals[k] += np.float64(value) * value
                    elif mode == CUBE:
                        totals[k] += np.float64(value) * value * value
                    elif mode == POWER:
                        totals[k] += power(value, p)
                    else:
                        totals[k] = _merge(totals[k], np.float64(value), mode)
        for k in range(width):
            y[i, j, first + k] = narrow(_finish(totals[k], mode, p), y[i, j, first + k])


@njit(inline="always", error_model="numpy")
def _sign(x: Any) -> Any:
    if x > 0:
        return x * 0 + 1
    return x * 0 - 1 if x < 0 else x


@njit(inline="always", error_model="numpy")
def _slope(x: Any, before: Any, inverse: Any, dy: Any, slope: int, q: Any) -> Any:
    ratio = x * before * inverse
    size = abs(ratio)
    if slope == LINEAR:
        return ratio * dy
    if slope == QUADRATIC:
        return ratio * size * dy
    if slope == SIGN:
        return np.copysign(q * 0 + (x != 0), x) * dy if x == x else x  # noqa: PLR0124  NaN is NaN
    if slope == ROOT:
        return np.copysign(np.sqrt(size), x) * dy
    if slope == ROOT_CUBED:
        return ratio * np.sqrt(size) * dy
    value = np.copysign(power(size, q), x) * dy
    return q * 0 if slope == BELOW_ONE and x == 0 else value


@njit(inline="always", error_model="numpy")
def _scale(y: Any, slope: int, one: Any, large: Any, limit: Any) -> Any:
    """What brings y into a range where neither it nor its reciprocal is subnormal, and that reciprocal; 0 for y = 0."""
    before = one
    if y * limit < one:
        before = large
    elif y > limit:
        before = one / large
    inverse = one / (y * before)
    if y == 0 and slope != BELOW_ONE:
        return one * 0, one * 0
    return before, inverse


def _line(slope: int) -> Any:
    """A loop over a row for one slope, which a loop that asks for the slope each time would not vectorise."""

    @njit(error_model="numpy")
    def loop(source: Any, target: Any, before: Any, inverse: Any, given: Any, q: Any) -> None:
        for index in range(source.size):
            value = _slope(widen(source[index]), before, inverse, given, slope, q)
            target[index] = narrow(value, target[index])

    return loop


_grad_line, _grad_square, _grad_power, _grad_below_one = (
    _line(slope) for slope in (LINEAR, QUADRATIC, GENERAL, BELOW_ONE)
)


@njit(cache=True, parallel=True, error_model="numpy")
def grad_rows(x: Any, y: Any, dy: Any, dx: Any, blocks: int, slope: int, q: Any, large: Any, limit: Any) -> None:
    """x, dx (rows, length); y, dy (rows,); each row in `blocks` pieces."""
    rows, length = x.shape
    one = q * 0 + 1
    for task in prange(rows * blocks):
        row, block = task // blocks, task % blocks
        first, end = length * block // blocks, length * (block + 1) // blocks
        given = widen(dy[row])
        before, inverse = _scale(widen(y[row]), slope, one, large, limit)
        if inverse == 0 and before == 0:
            given = one * 0
        source, target = x[row, first:end], dx[row, first:end]
        if slope == FLAT:
            target[:] = narrow(one * 0, target[0])
        elif slope == LINEAR:
            _grad_line(source, target, before, inverse, given, q)
        elif slope == QUADRATIC:
            _grad_square(source, target, before, inverse, given, q)
        elif slope == GENERAL:
            _grad_power(source, target, before, inverse, given, q)
        elif slope == BELOW_ONE:
            _grad_below_one(source, target, before, inverse, given, q)
        else:
            for index in range(source.size):
                value = _slope(widen(source[index]), before, inverse, given, slope, q)
                target[index] = narrow(value, target[index])


@njit(cache=True, parallel=True, error_model="numpy")
def grad_columns(x: Any, y: Any, dy: Any, dx: Any, slope: int, q: Any, large: Any, limit: Any) -> None:
    """x, dx (a, r1, b, r2, c); y, dy (a, b, c)."""
    a, r1, b, r2, c = x.shape
    one = q * 0 + 1
    for task in prange(a * r1 * b):
        i, u, j = task // (r1 * b), task // b % r1, task % b
        for v in range(r2):
            for k in range(c):
                given = widen(dy[i, j, k])
                before, inverse = _scale(widen(y[i, j, k]), slope, one, large, limit)
                if inverse == 0 and before == 0:
                    given = one * 0
                value = one * 0
                if slope != FLAT:
                    value = _slope(widen(x[i, u, j, v, k]), before, inverse, given, slope, q)
                dx[i, u, j, v, k] = narrow(value, dx[i, u, j, v, k])


@njit(inline="always", error_model="numpy")
def _ties(x: Any, y: Any) -> Any:
    return abs(x) == y or x != x  # noqa: PLR0124  NaN ties with a NaN norm


@njit(inline="always", error_model="numpy")
def _share(x: Any, y: Any, given: Any) -> Any:
    if x != x:  # noqa: PLR0124  NaN
        return x
    if abs(x) != y:
        return given * 0
    return given if x > 0 else (-given if x < 0 else given * 0)


@njit(cache=True, parallel=True, error_model="numpy")
def grad_extreme(x: Any, y: Any, dy: Any, dx: Any) -> None:
    """porder +-inf on (a, r1, b, r2, c): count the ties of each slice, then share dy among them."""
    a, r1, b, r2, c = x.shape
    chunk = 64
    chunks = (c + chunk - 1) // chunk
    for task in prange(a * b * chunks):
        i, j, first = task // (b * chunks), task // chunks % b, task % chunks * chunk
        width = min(chunk, c - first)
        counts = np.zeros(width, np.int64)
        for u in range(r1):
            for v in range(r2):
                for k in range(width):
                    counts[k] += _ties(widen(x[i, u, j, v, first + k]), widen(y[i, j, first + k]))
        for u in range(r1):
            for v in range(r2):
                for k in range(width):
                    given = widen(dy[i, j, first + k])
                    given /= given * 0 + max(counts[k], 1) if given * 0 == 0 else max(counts[k], 1)
                    value = _share(widen(x[i, u, j, v, first + k]), widen(y[i, j, first + k]), given)
                    dx[i, u, j, v, first + k] = narrow(value, dx[i, u, j, v, first + k])


@njit(cache=True, parallel=True, error_model="numpy")
def grad_extreme_rows(x: Any, y: Any, dy: Any, dx: Any) -> None:
    """porder +-inf on (rows, length)."""
    rows, length = x.shape
    for row in prange(rows):
        norm, given = widen(y[row]), widen(dy[row])
        count = 0
        for index in range(length):
            count += _ties(widen(x[row, index]), norm)
        part = given / type(given)(max(count, 1))
        for index in range(length):
            dx[row, index] = narrow(_share(widen(x[row, index]), norm, part), dx[row, index])
