"""Numba kernels of p_norm and its gradient for the CPU: one pass over memory, in pieces of bounded length.

Sums are taken in the accumulating dtype within a piece and in float64 between pieces. Only sums may
be reordered; NaN, infinities and signs keep their meaning. Loops over contiguous elements stand in
functions of their own, one for each order, so that each vectorises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ops._core.jit import narrow, power, widen

COUNT, ABS, SQUARE, CUBE, POWER, LARGEST, SMALLEST = range(7)
SIGN, LINEAR, QUADRATIC, GENERAL, BELOW_ONE = range(5)
SUMS = {"reassoc", "contract", "nsz"}
TILE = 256
"""Columns that a thread takes at a time: their sums stay in the first-level cache."""
DEPTH = 64
"""Rows that a column is summed over before the sum is widened."""


@njit(cache=True, fastmath=SUMS, error_model="numpy")
def _sum(x: Any, mode: int, p: Any) -> Any:
    total = type(p)(0)
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
    best = type(p)(0)
    if mode == SMALLEST:
        best = abs(widen(x[0]))
        for index in range(x.size):
            value = abs(widen(x[index]))
            best = value if value < best or value != value else best  # noqa: PLR0124  NaN stays
    else:
        for index in range(x.size):
            value = abs(widen(x[index]))
            best = value if value > best or value != value else best  # noqa: PLR0124  NaN stays
    return np.float64(best)


@njit(error_model="numpy")
def _reduce(x: Any, mode: int, p: Any) -> Any:
    if mode in {COUNT, LARGEST, SMALLEST}:
        return _pick(x, mode, p)
    return _sum(x, mode, p)


@njit(error_model="numpy")
def _merge(total: Any, part: Any, mode: int) -> Any:
    if mode == LARGEST:
        return part if part > total or part != part else total  # noqa: PLR0124  NaN stays
    if mode == SMALLEST:
        return part if part < total or part != part else total  # noqa: PLR0124  NaN stays
    return total + part


@njit(error_model="numpy")
def _finish(total: Any, mode: int, p: Any) -> Any:
    if mode == SQUARE:
        return np.sqrt(total)
    if mode in {CUBE, POWER}:
        return total ** (1.0 / np.float64(p))
    return total


@njit(cache=True, parallel=True, error_model="numpy")
def norm_rows(x: Any, y: Any, mode: int, p: Any) -> None:
    """x (rows, length) to y (rows,)."""
    for row in prange(x.shape[0]):
        y[row] = narrow(_finish(_reduce(x[row], mode, p), mode, p), y[row])


@njit(cache=True, parallel=True, error_model="numpy")
def norm_pieces(x: Any, y: Any, partial: Any, mode: int, p: Any) -> None:
    """x (a, pieces, b, length) to y (a, b); each row of x in blocks, partial (a, b, pieces, blocks)."""
    a, b, pieces, blocks = partial.shape
    length = x.shape[3]
    for task in prange(a * pieces * b * blocks):
        row, block = task // blocks, task % blocks
        i, u, j = row // (pieces * b), row // b % pieces, row % b
        first, end = length * block // blocks, length * (block + 1) // blocks
        partial[i, j, u, block] = _reduce(x[i, u, j, first:end], mode, p)
    for i in range(a):
        for j in range(b):
            total = partial[i, j, 0, 0]
            for other in range(1, pieces * blocks):
                total = _merge(total, partial[i, j, other // blocks, other % blocks], mode)
            y[i, j] = narrow(_finish(total, mode, p), y[i, j])


@njit(cache=True, error_model="numpy")
def _add_row(x: Any, totals: Any, mode: int, p: Any) -> None:
    if mode == COUNT:
        for index in range(x.size):
            totals[index] += widen(x[index]) != 0
    elif mode == ABS:
        for index in range(x.size):
            totals[index] += abs(widen(x[index]))
    elif mode == SQUARE:
        for index in range(x.size):
            value = widen(x[index])
            totals[index] += value * value
    elif mode == CUBE:
        for index in range(x.size):
            value = abs(widen(x[index]))
            totals[index] += value * value * value
    elif mode == POWER:
        for index in range(x.size):
            totals[index] += power(abs(widen(x[index])), p)
    else:
        for index in range(x.size):
            totals[index] = _merge(totals[index], abs(widen(x[index])), mode)


@njit(error_model="numpy")
def _spill(totals: Any, into: Any, start: Any, mode: int) -> None:
    for index in range(totals.size):
        into[index] = _merge(into[index], np.float64(totals[index]), mode)
        totals[index] = start


@njit(cache=True, parallel=True, error_model="numpy")
def norm_columns(x: Any, y: Any, partial: Any, start: Any, mode: int, p: Any) -> None:
    """x (a, r1, b, r2, c) to y (a, b, c), the rows shared among threads: partial (parts, a, b, c), float64."""
    a, r1, b, r2, c = x.shape
    parts = partial.shape[0]
    tiles = (c + TILE - 1) // TILE
    for task in prange(parts * a * b * tiles):
        part, slot = task // (a * b * tiles), task % (a * b * tiles)
        i, j, first = slot // (b * tiles), slot // tiles % b, slot % tiles * TILE
        end = min(first + TILE, c)
        totals = np.full(end - first, start)
        into = partial[part, i, j, first:end]
        into[:] = np.float64(start)
        row = r1 * r2 * part // parts
        u, v = row // r2, row % r2
        for step in range(r1 * r2 * (part + 1) // parts - row):
            _add_row(x[i, u, j, v, first:end], totals, mode, p)
            v += 1
            if v == r2:
                u, v = u + 1, 0
            if step % DEPTH == DEPTH - 1:
                _spill(totals, into, start, mode)
        _spill(totals, into, start, mode)
    for slot in prange(a * b):
        i, j = slot // b, slot % b
        for k in range(c):
            total = partial[0, i, j, k]
            for part in range(1, parts):
                total = _merge(total, partial[part, i, j, k], mode)
            y[i, j, k] = narrow(_finish(total, mode, p), y[i, j, k])


@njit(error_model="numpy")
def _gradient(x: Any, y: Any, dy: Any, slope: int, q: Any) -> Any:
    if slope == SIGN:
        sign = type(q)(1) if x > 0 else (type(q)(-1) if x < 0 else x)
        return sign * dy
    ratio = x / y
    size = abs(ratio)
    if slope == LINEAR:
        value = ratio * dy
    elif slope == QUADRATIC:
        value = ratio * size * dy
    else:
        value = power(size, q)
        value = (value if x > 0 else -value) * dy
    masked = x == 0 if slope == BELOW_ONE else y == 0
    return type(q)(0) if masked else value


def _loops(slope: int) -> tuple[Any, Any]:
    """For one slope, the loop along a row and that across columns."""

    @njit(error_model="numpy")
    def along(x: Any, y: Any, dy: Any, dx: Any, q: Any) -> None:
        for index in range(x.size):
            dx[index] = narrow(_gradient(widen(x[index]), y, dy, slope, q), dx[index])

    @njit(error_model="numpy")
    def across(x: Any, y: Any, dy: Any, dx: Any, q: Any) -> None:
        for index in range(x.size):
            value = _gradient(widen(x[index]), widen(y[index]), widen(dy[index]), slope, q)
            dx[index] = narrow(value, dx[index])

    return along, across


_SIGN, _LINEAR, _QUADRATIC, _GENERAL, _BELOW_ONE = (_loops(slope) for slope in range(5))
_along_sign, _along_linear, _along_quadratic, _along_general, _along_below_one = (
    loops[0] for loops in (_SIGN, _LINEAR, _QUADRATIC, _GENERAL, _BELOW_ONE)
)
_across_sign, _across_linear, _across_quadratic, _across_general, _across_below_one = (
    loops[1] for loops in (_SIGN, _LINEAR, _QUADRATIC, _GENERAL, _BELOW_ONE)
)


@njit(cache=True, parallel=True, error_model="numpy")
def grad_rows(x: Any, y: Any, dy: Any, dx: Any, blocks: int, slope: int, q: Any) -> None:
    """x, dx (a, r1, b, length); y, dy (a, b); each row in `blocks` pieces."""
    a, r1, b, length = x.shape
    for task in prange(a * r1 * b * blocks):
        row, first, end = task // blocks, 0, length
        if blocks > 1:
            block = task - row * blocks
            first, end = length * block // blocks, length * (block + 1) // blocks
        i, u, j = row // (r1 * b), 0, 0
        if r1 * b > 1:
            u, j = row // b % r1, row % b
        norm, given = widen(y[i, j]), widen(dy[i, j])
        source, target = x[i, u, j, first:end], dx[i, u, j, first:end]
        if slope == LINEAR:
            _along_linear(source, norm, given, target, q)
        elif slope == QUADRATIC:
            _along_quadratic(source, norm, given, target, q)
        elif slope == SIGN:
            _along_sign(source, norm, given, target, q)
        elif slope == GENERAL:
            _along_general(source, norm, given, target, q)
        else:
            _along_below_one(source, norm, given, target, q)


@njit(cache=True, parallel=True, error_model="numpy")
def grad_columns(x: Any, y: Any, dy: Any, dx: Any, slope: int, q: Any) -> None:
    """x, dx (a, r1, b, r2, c); y, dy (a, b, c)."""
    a, r1, b, r2, _ = x.shape
    for row in prange(a * r1 * b):
        i, u, j = row // (r1 * b), row // b % r1, row % b
        norms, given = y[i, j], dy[i, j]
        for v in range(r2):
            source, target = x[i, u, j, v], dx[i, u, j, v]
            if slope == LINEAR:
                _across_linear(source, norms, given, target, q)
            elif slope == QUADRATIC:
                _across_quadratic(source, norms, given, target, q)
            elif slope == SIGN:
                _across_sign(source, norms, given, target, q)
            elif slope == GENERAL:
                _across_general(source, norms, given, target, q)
            else:
                _across_below_one(source, norms, given, target, q)


@njit(error_model="numpy")
def _ties(x: Any, y: Any) -> Any:
    return abs(x) == y or x != x  # noqa: PLR0124  NaN ties with a NaN norm


@njit(error_model="numpy")
def _share(x: Any, y: Any, share: Any) -> Any:
    nothing = share * type(x)(0)  # NaN where dy is not finite, as 0 dy is
    value = share if x > 0 else (-share if x < 0 else nothing)
    value = value if abs(x) == y else nothing
    return x if x != x else value  # noqa: PLR0124  NaN


@njit(cache=True, parallel=True, error_model="numpy")
def grad_extreme_rows(x: Any, y: Any, dy: Any, dx: Any) -> None:
    """porder +-inf on (rows, length): count the ties of each row, then share dy among them."""
    rows, length = x.shape
    for row in prange(rows):
        norm, given = widen(y[row]), widen(dy[row])
        count = 0
        for index in range(length):
            count += _ties(widen(x[row, index]), norm)
        share = given / type(given)(max(count, 1))
        for index in range(length):
            dx[row, index] = narrow(_share(widen(x[row, index]), norm, share), dx[row, index])


@njit(cache=True, parallel=True, error_model="numpy")
def grad_extreme(x: Any, y: Any, dy: Any, dx: Any) -> None:
    """porder +-inf on (a, r1, b, r2, c), columns in tiles."""
    a, r1, b, r2, c = x.shape
    tiles = (c + TILE - 1) // TILE
    for task in prange(a * b * tiles):
        i, j, first = task // (b * tiles), task // tiles % b, task % tiles * TILE
        width = min(TILE, c - first)
        counts = np.zeros(width, np.int64)
        shares = np.empty(width, np.float64)
        for u in range(r1):
            for v in range(r2):
                for k in range(width):
                    counts[k] += _ties(widen(x[i, u, j, v, first + k]), widen(y[i, j, first + k]))
        for k in range(width):
            shares[k] = np.float64(widen(dy[i, j, first + k])) / max(counts[k], 1)
        for u in range(r1):
            for v in range(r2):
                for k in range(width):
                    value = widen(x[i, u, j, v, first + k])
                    value = _share(value, widen(y[i, j, first + k]), type(value)(shares[k]))
                    dx[i, u, j, v, first + k] = narrow(value, dx[i, u, j, v, first + k])
