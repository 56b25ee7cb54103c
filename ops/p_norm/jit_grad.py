"""Numba kernels of p_norm_grad for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import (
    INLINE,
    INNER,
    half_registers,
    narrow,
    whole_registers,
    widen,
)
from opgauge.ops._cpu.jit_powers import power, power_of_halves, power_of_integer
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES, lanes_of, load_widened, store

SIGN, LINEAR, QUADRATIC, INTEGER, HALVES, GENERAL, BELOW_ONE = range(7)
"""Gradient modes: by `porder`."""
TILE = 256
"""Columns that a thread takes at a time: their counts and shares stay in the first-level cache."""
COPIED = 512
"""Elements whose norms are copied, one for each, so that one loop takes many short rows."""
MOST_COPIED = 8192
"""The same where rows have the same norms in turn, which are copied once."""


@njit(**INNER)
def _gradient(x: Any, y: Any, dy: Any, slope: int, q: Any) -> Any:
    if slope == SIGN:
        sign = type(q)(1) if x > 0 else (type(q)(-1) if x < 0 else x)
        return sign * dy
    inverse = slope == INTEGER and q < 0  # one division, not another one of the result
    ratio = (y if inverse else x) / (x if inverse else y)
    size = abs(ratio)
    if slope == LINEAR:
        value = ratio * dy
    elif slope == QUADRATIC:
        value = ratio * size * dy
    else:
        if slope == INTEGER:
            value = power_of_integer(size, abs(np.int64(q)))
        else:
            value = power_of_halves(size, np.int64(q + q)) if slope == HALVES else power(size, q)
        value = (value if x > 0 else -value) * dy
    # the power of a ratio that underflows is infinite, and 0 times that is NaN
    infinite = type(q)(np.inf)  # of the same width: another one would widen all
    is_far = size == infinite if inverse else size == 0
    lost = (x == 0) | (is_far & (dy == 0) & (y < infinite))  # without branches, so that loops vectorise
    masked = lost if slope == BELOW_ONE or (slope in (INTEGER, HALVES) and q < 0) else y == 0
    return type(q)(0) if masked else value


def _registers(slope: int) -> Any:
    """Vector width for one gradient mode: powers take longer than stores that cross cache lines."""
    return whole_registers if slope in (GENERAL, BELOW_ONE) else half_registers


def _along(slope: int) -> Any:
    """The loop along a row for one gradient mode."""
    prefer = _registers(slope)

    @njit(**INNER)
    def loop(x: Any, row: int, first: int, end: int, y: Any, dy: Any, dx: Any, q: Any) -> None:
        prefer()
        start = np.uint64(first)
        for index in range(np.uint64(end - first)):
            at = start + index
            dx[row, at] = narrow(_gradient(widen(x[row, at]), y, dy, slope, q), dx[row, at])

    return loop


def _across(slope: int) -> Any:
    """The loop across columns for one gradient mode."""
    prefer = _registers(slope)

    @njit(**INNER)
    def loop(x: Any, row: int, y: Any, dy: Any, slot: int, dx: Any, q: Any) -> None:
        prefer()
        for k in range(x.shape[1]):
            value = _gradient(widen(x[row, k]), widen(y[slot, k]), widen(dy[slot, k]), slope, q)
            dx[row, k] = narrow(value, dx[row, k])

    return loop


def loop_over_elements(slope: int) -> Any:
    """The loop over elements with a norm each for one gradient mode."""
    prefer = _registers(slope)

    @njit(**INNER)
    def loop(x: Any, first: int, count: int, norms: Any, grads: Any, dx: Any, q: Any) -> None:
        prefer()
        start = np.uint64(first)
        for k in range(np.uint64(count)):
            value = _gradient(widen(x[start + k]), norms[k], grads[k], slope, q)
            dx[start + k] = narrow(value, dx[start + k])

    return loop


_along_sign, _along_linear, _along_quadratic, _along_integer, _along_halves, _along_general, _along_below_one = (
    _along(slope) for slope in (SIGN, LINEAR, QUADRATIC, INTEGER, HALVES, GENERAL, BELOW_ONE)
)
_across_sign, _across_linear, _across_quadratic, _across_integer, _across_halves, _across_general, _across_below_one = (
    _across(slope) for slope in (SIGN, LINEAR, QUADRATIC, INTEGER, HALVES, GENERAL, BELOW_ONE)
)
_each_sign, _each_linear, _each_quadratic, _each_integer, _each_halves, _each_general, _each_below_one = (
    loop_over_elements(slope) for slope in (SIGN, LINEAR, QUADRATIC, INTEGER, HALVES, GENERAL, BELOW_ONE)
)


@parallel(error_model="numpy")
def grad_rows(x: Any, y: Any, dy: Any, dx: Any, pieces: int, b: int, blocks: int, slope: int, q: Any) -> None:
    """Gradient along rows: x, dx (a pieces b, length); y, dy (a b,); each row in `blocks` parts."""
    rows, length = x.shape
    for task in prange(rows * blocks):
        row, first, end = np.int64(task), 0, length
        if blocks > 1:
            row = np.int64(task) // blocks
            block = np.int64(task) - row * blocks
            first, end = length * block // blocks, length * (block + 1) // blocks
        slot = row // (pieces * b) * b + row % b if pieces > 1 else row
        norm, given = widen(y[slot]), widen(dy[slot])
        if slope == LINEAR:
            _along_linear(x, row, first, end, norm, given, dx, q)
        elif slope == QUADRATIC:
            _along_quadratic(x, row, first, end, norm, given, dx, q)
        elif slope == SIGN:
            _along_sign(x, row, first, end, norm, given, dx, q)
        elif slope == INTEGER:
            _along_integer(x, row, first, end, norm, given, dx, q)
        elif slope == HALVES:
            _along_halves(x, row, first, end, norm, given, dx, q)
        elif slope == GENERAL:
            _along_general(x, row, first, end, norm, given, dx, q)
        else:
            _along_below_one(x, row, first, end, norm, given, dx, q)


@parallel(error_model="numpy")
def grad_columns(x: Any, y: Any, dy: Any, dx: Any, shape: Any, slope: int, q: Any) -> None:
    """Gradient across columns: x, dx (a r1 b r2, c); y, dy (a b, c)."""
    _, r1, b, r2, _ = shape
    for task in prange(x.shape[0]):
        row = np.int64(task)
        slot = row // (r1 * b * r2) * b + row // r2 % b
        if slope == LINEAR:
            _across_linear(x, row, y, dy, slot, dx, q)
        elif slope == QUADRATIC:
            _across_quadratic(x, row, y, dy, slot, dx, q)
        elif slope == SIGN:
            _across_sign(x, row, y, dy, slot, dx, q)
        elif slope == INTEGER:
            _across_integer(x, row, y, dy, slot, dx, q)
        elif slope == HALVES:
            _across_halves(x, row, y, dy, slot, dx, q)
        elif slope == GENERAL:
            _across_general(x, row, y, dy, slot, dx, q)
        else:
            _across_below_one(x, row, y, dy, slot, dx, q)


@njit(**INNER)
def _repeat(given: Any, first: int, count: int, width: int, each: Any) -> None:
    """Set `each` to the values of `given` for `count` rows of `width` elements from row `first` on, one value a row."""
    at = np.uint64(0)
    for row in range(np.uint64(first), np.uint64(first + count)):
        value = widen(given[row])
        for k in range(np.uint64(width)):
            each[at + k] = value
        at += np.uint64(width)


@njit(**INLINE)
def _copy_row(given: Any, first: int, each: Any, at: int, width: int) -> None:
    """Set width elements of `each` from `at` on, and some behind them, to those of `given` from `first` on."""
    lanes = lanes_of(each)
    if first + (width + lanes - 1) // lanes * lanes <= given.size:
        for k in range(0, width, lanes):
            store(each, np.uint64(at + k), load_widened(given, np.uint64(first + k), each))
    else:
        for k in range(width):
            each[np.uint64(at + k)] = widen(given[np.uint64(first + k)])


@njit(**INNER)
def _copy(given: Any, first: int, count: int, width: int, shape: Any, each: Any) -> None:
    """Set `each` to the values of `given` that belong to the elements of `count` rows from row `first` on."""
    _, r1, b, r2, columns = shape
    v, j, u, i = first % r2, first // r2 % b, first // (r2 * b) % r1, first // (r2 * b * r1)
    at = np.uint64(0)
    for _ in range(count):
        slot = i * b + j
        if columns == 1:
            value = widen(given[slot])
            for _ in range(width):
                each[at] = value
                at += np.uint64(1)
        else:
            _copy_row(given, slot * columns, each, at, width)
            at += np.uint64(width)
        v += 1  # no division per row
        if v == r2:
            v, j = 0, j + 1
            if j == b:
                j, u = 0, u + 1
                if u == r1:
                    u, i = 0, i + 1


@parallel(error_model="numpy")
def grad_short(x: Any, y: Any, dy: Any, dx: Any, shape: Any, slope: int, q: Any, width: int, pieces: int) -> None:
    """Gradient along short rows, or across few columns: flat x, dx (a r1 b r2 width,), y, dy (a b columns,).

    shape: (a, r1, b, r2, columns), where columns is 1 or the width; in `pieces` for as many threads. Norms that many
    rows have in turn are copied once for all.
    """
    a, r1, b, r2, columns = shape
    given_once = r1 * r2 * columns == 1
    slice_rows, turn, at_once = r1 * b * r2, 1 if b == 1 else b * r2, max(1, COPIED // width)
    if turn * width <= MOST_COPIED and slice_rows > 2 * max(turn, at_once):
        at_once = max(1, at_once // turn) * turn
    else:
        turn = 0
    step = max(turn, 1)
    steps = a * slice_rows // step
    for piece in prange(pieces):
        first, end = steps * np.int64(piece) // pieces * step, steps * (np.int64(piece) + 1) // pieces * step
        size = at_once * width + LANES_BYTES
        norms, grads = np.empty(size, type(q)), np.empty(size, type(q))
        copied = np.int64(-1)
        while first < end:
            count, i = min(at_once, end - first), first // slice_rows
            if turn:
                count = min(count, (i + 1) * slice_rows - first)
            if given_once:
                _repeat(y, first, count, width, norms)
                _repeat(dy, first, count, width, grads)
            elif not turn or i != copied:
                start, rows = (i * slice_rows, at_once) if turn else (first, count)
                _copy(y, start, rows, width, shape, norms)
                _copy(dy, start, rows, width, shape, grads)
                copied = i
            start, size = first * width, count * width
            if slope == LINEAR:
                _each_linear(x, start, size, norms, grads, dx, q)
            elif slope == QUADRATIC:
                _each_quadratic(x, start, size, norms, grads, dx, q)
            elif slope == SIGN:
                _each_sign(x, start, size, norms, grads, dx, q)
            elif slope == INTEGER:
                _each_integer(x, start, size, norms, grads, dx, q)
            elif slope == HALVES:
                _each_halves(x, start, size, norms, grads, dx, q)
            elif slope == GENERAL:
                _each_general(x, start, size, norms, grads, dx, q)
            else:
                _each_below_one(x, start, size, norms, grads, dx, q)
            first += count


@njit(**INNER)
def _ties(x: Any, y: Any) -> Any:
    return abs(x) == y or x != x  # noqa: PLR0124  NaN ties with a NaN norm


@njit(**INNER)
def _share(x: Any, y: Any, share: Any) -> Any:
    """The share of dy with x's sign if x ties, else zero: a product, as branches on signs are mispredicted.

    It is NaN if dy is not finite and x does not tie.
    """
    signed = share if x > 0 else -share
    value = signed * type(x)((abs(x) == y) & (x != 0))
    return x if x != x else value  # noqa: PLR0124  NaN


@parallel(error_model="numpy")
def grad_inf_rows(x: Any, y: Any, dy: Any, dx: Any) -> None:
    """Gradient for porder +-inf on (rows, length): count the ties of each row, then share dy among them."""
    rows, length = x.shape
    for row in prange(rows):
        norm, given = widen(y[row]), widen(dy[row])
        count = 0
        for index in range(length):
            count += _ties(widen(x[row, index]), norm)
        share = given / type(given)(max(count, 1))
        for index in range(length):
            dx[row, index] = narrow(_share(widen(x[row, index]), norm, share), dx[row, index])


@njit(**INNER)
def _grad_inf_slots(x: Any, y: Any, dy: Any, dx: Any, shape: Any, tiles: int, begin: int, end: int) -> None:
    _, r1, b, r2, c = shape
    counts, shares = np.empty(min(TILE, c), np.int64), np.empty(min(TILE, c), np.float64)
    for task in range(begin, end):
        slot, first = np.uint64(task // tiles), np.uint64(task % tiles * TILE)
        width, top = np.uint64(min(TILE, c - np.int64(first))), np.int64(slot) // b * r1 * b + np.int64(slot) % b
        for k in range(width):
            counts[k] = 0
        for u in range(r1):
            for row in range(np.uint64((top + u * b) * r2), np.uint64((top + u * b + 1) * r2)):
                for k in range(width):
                    counts[k] += _ties(widen(x[row, first + k]), widen(y[slot, first + k]))
        for k in range(width):
            shares[k] = np.float64(widen(dy[slot, first + k])) / max(counts[k], 1)
        for u in range(r1):
            for row in range(np.uint64((top + u * b) * r2), np.uint64((top + u * b + 1) * r2)):
                for k in range(width):
                    value = widen(x[row, first + k])
                    value = _share(value, widen(y[slot, first + k]), type(value)(shares[k]))
                    dx[row, first + k] = narrow(value, dx[row, first + k])


@parallel(error_model="numpy")
def grad_inf(x: Any, y: Any, dy: Any, dx: Any, shape: Any, pieces: int) -> None:
    """Gradient for porder +-inf on x, dx (a r1 b r2, c); y, dy (a b, c), columns in tiles; in `pieces` for threads."""
    tiles = (shape[4] + TILE - 1) // TILE
    total = y.shape[0] * tiles
    for piece in prange(pieces):
        begin, end = total * np.int64(piece) // pieces, total * (np.int64(piece) + 1) // pieces
        _grad_inf_slots(x, y, dy, dx, shape, tiles, begin, end)
