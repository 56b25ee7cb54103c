"""Numba kernels of p_norm for the CPU: one pass over memory, in pieces of bounded length.

Sums are in the accumulating dtype within a piece and in float64 between pieces. Only sums may
be reordered; NaN, infinities and signs keep their meaning. Each order has its own loop, with the order as
a constant, so that each vectorises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import (
    INNER,
    magnitude,
    magnitude_nan_first,
    narrow,
    value_of_magnitude,
    value_of_magnitude_nan_first,
    whole_registers,
    widen,
)
from opgauge.ops._cpu.jit_powers import power, power_of_halves
from opgauge.ops._cpu.jit_roots import cube_root, root
from opgauge.ops._cpu.threads import parallel

HALVES, POWER, COUNT, LARGEST, SMALLEST = range(5)
SUMS = {"reassoc", "contract", "nsz"}
TILE = 256
"""Columns that a thread takes at a time: their sums stay in the first-level cache."""
NARROW, LEAST_RUNS = 64, 4
"""Maximum columns of which several rows are summed in one vector loop, and the least number of such loops."""
FEW_AT_ONCE = 1 << 10
"""Elements of several groups of few rows and columns that are raised to the order in one loop."""
DEPTH = 64
"""Rows that a column is summed over before the sum is widened."""


@njit(fastmath=SUMS, **INNER)
def _term(x: Any, mode: int, p: Any, order: int) -> Any:
    """|x|^p; order: p if it is known to be 1, 2 or 3 when compiled, else 0."""
    value = abs(x)
    if order == 1:
        return value
    if order == 2:
        return value * value
    if order == 3:
        return value * value * value
    return power_of_halves(value, np.int64(p + p)) if mode == HALVES else power(value, p)


def _summing(mode: int, order: int = 0) -> Any:
    """Sum x[row, column] into sums[row - rows[0]] for one mode, and one order, or 0 for any.

    A call for each row would cost more than a short row, and so does a choice that depends on the order.
    """

    @njit(fastmath=SUMS, **INNER)
    def loop(x: Any, rows: Any, columns: Any, sums: Any, p: Any) -> None:
        whole_registers()
        base, first, size = np.uint64(rows[0]), np.uint64(columns[0]), np.uint64(columns[1] - columns[0])
        for row in range(np.uint64(rows[1] - rows[0])):
            total = type(p)(0)
            for index in range(size):
                total += _term(widen(x[base + row, first + index]), mode, p, order)
            sums[row] = np.float64(total)

    return loop


_sum_absolute, _sum_squares, _sum_cubes = (_summing(HALVES, order) for order in (1, 2, 3))
_sum_halves, _sum_powers = (_summing(mode) for mode in (HALVES, POWER))


@njit(fastmath=SUMS, **INNER)
def _sum_columns(x: Any, rows: Any, first: int, totals: Any, mode: int, p: Any) -> None:
    """Add x[row, first + index] to totals[index] for a run of rows."""
    base, start, size = np.uint64(rows[0]), np.uint64(first), np.uint64(totals.size)
    count = np.uint64(rows[1] - rows[0])
    if p == 3:
        for row in range(count):
            for index in range(size):
                totals[index] += _term(widen(x[base + row, start + index]), HALVES, p, 3)
    elif mode == HALVES:
        for row in range(count):
            for index in range(size):
                totals[index] += _term(widen(x[base + row, start + index]), HALVES, p, 0)
    else:
        for row in range(count):
            for index in range(size):
                totals[index] += _term(widen(x[base + row, start + index]), POWER, p, 0)


@njit(**INNER)
def _pick_rows(x: Any, rows: Any, columns: Any, picked: Any, mode: int) -> None:
    """Like `_summing`, for counts, maximum and minimum."""
    whole_registers()
    base, first, size = np.uint64(rows[0]), np.uint64(columns[0]), np.uint64(columns[1] - columns[0])
    for row in range(np.uint64(rows[1] - rows[0])):
        if mode == COUNT:
            count = 0
            for index in range(size):
                count += widen(x[base + row, first + index]) != 0
            picked[row] = np.float64(count)
            continue
        one = x[base + row, first]
        if mode == SMALLEST:
            least = magnitude_nan_first(one)
            for index in range(size):
                key = magnitude_nan_first(x[base + row, first + index])
                least = min(least, key)
            picked[row] = np.float64(widen(value_of_magnitude_nan_first(least, one)))
        else:
            most = magnitude(one)
            for index in range(size):
                key = magnitude(x[base + row, first + index])
                most = max(most, key)
            picked[row] = np.float64(widen(value_of_magnitude(most, one)))


@njit(inline="always", error_model="numpy")
def _reduce_rows(x: Any, rows: Any, columns: Any, into: Any, mode: int, p: Any) -> None:
    if mode >= COUNT:
        _pick_rows(x, rows, columns, into, mode)
    elif p == 1:
        _sum_absolute(x, rows, columns, into, p)
    elif p == 2:
        _sum_squares(x, rows, columns, into, p)
    elif p == 3:
        _sum_cubes(x, rows, columns, into, p)
    elif mode == HALVES:
        _sum_halves(x, rows, columns, into, p)
    else:
        _sum_powers(x, rows, columns, into, p)


@njit(**INNER)
def _merge(total: Any, part: Any, mode: int) -> Any:
    if mode == LARGEST:
        return part if part > total or part != part else total  # noqa: PLR0124  NaN stays
    if mode == SMALLEST:
        return part if part < total or part != part else total  # noqa: PLR0124  NaN stays
    return total + part


@njit(inline="always", error_model="numpy")
def _halves_of_root(mode: int, p: Any) -> Any:
    """Halves of 1 / p, for roots that are powers of a number of halves; 0 for others, and for what was picked 2."""
    if mode >= COUNT:
        return 2
    halves = np.int64(2 / p)
    return halves if mode == HALVES and halves * p == 2 else 0


@njit(**INNER)
def _finish_all(sums: Any, y: Any, mode: int, p: Any) -> None:
    """The norms of sums, or what was picked; one loop for each kind of root, so that it vectorises."""
    count, halves = np.uint64(y.size), _halves_of_root(mode, p)
    if halves != 0:
        for row in range(count):
            y[row] = narrow(power_of_halves(sums[row], halves), y[row])
    elif p == 3:
        for row in range(count):
            y[row] = narrow(cube_root(np.float64(sums[row])), y[row])
    else:
        for row in range(count):
            y[row] = narrow(root(np.float64(sums[row]), p), y[row])


@parallel(error_model="numpy")
def norm_rows(x: Any, y: Any, partial: Any, chunks: int, mode: int, p: Any) -> None:
    """Norms of x (a pieces b, length) into y (a b,), chunks of rows or of a block; partial (a, pieces, b, blocks)."""
    _, pieces, b, blocks = partial.shape
    flat, length, parts = partial.reshape(-1), x.shape[1], pieces * blocks
    for chunk in prange(chunks):
        begin, end = flat.size * chunk // chunks, flat.size * (chunk + 1) // chunks
        row, block = begin // blocks, begin % blocks
        columns = length * block // blocks, length * (block + 1) // blocks
        _reduce_rows(x, (row, row + end - begin), columns, flat[begin:end], mode, p)
        if parts == 1:
            _finish_all(flat[begin:end], y[begin:end], mode, p)
    if parts > 1:
        totals = np.empty(y.size)
        for slot in range(y.size):
            first = (slot // b * pieces * b + slot % b) * blocks
            totals[slot] = flat[first]
            for other in range(1, parts):
                totals[slot] = _merge(totals[slot], flat[first + other // blocks * b * blocks + other % blocks], mode)
        _finish_all(totals, y, mode, p)


@njit(**INNER)
def _pick_columns(x: Any, rows: Any, first: int, totals: Any, mode: int) -> None:
    base, start, size = np.uint64(rows[0]), np.uint64(first), np.uint64(totals.size)
    for row in range(np.uint64(rows[1] - rows[0])):
        if mode == COUNT:
            for index in range(size):
                totals[index] += widen(x[base + row, start + index]) != 0
        else:
            for index in range(size):
                totals[index] = _merge(totals[index], abs(widen(x[base + row, start + index])), mode)


@njit(inline="always", error_model="numpy")
def _add_rows(x: Any, rows: Any, first: int, totals: Any, mode: int, p: Any) -> None:
    if mode >= COUNT:
        _pick_columns(x, rows, first, totals, mode)
    else:
        _sum_columns(x, rows, first, totals, mode, p)


@njit(**INNER)
def _add_contiguous(x: Any, rows: Any, totals: Any, mode: int, p: Any) -> None:
    """Add a run of whole rows to totals, as many elements at a time as there are totals."""
    columns, wide = x.shape[1], totals.size
    flat = x.reshape(-1)[rows[0] * columns : rows[1] * columns]
    whole = flat.size // wide
    rest = flat[whole * wide :]
    _add_rows(flat[: whole * wide].reshape(whole, wide), (0, whole), 0, totals, mode, p)
    if rest.size:
        _add_rows(rest.reshape(1, rest.size), (0, 1), 0, totals[: rest.size], mode, p)


@njit(**INNER)
def _spill(totals: Any, into: Any, start: Any, mode: int) -> None:
    column = 0
    for index in range(totals.size):
        into[column] = _merge(into[column], np.float64(totals[index]), mode)
        totals[index] = start
        column = column + 1 if column + 1 < into.size else 0


@njit(**INNER)
def _norm_tile(x: Any, partial: Any, start: Any, shape: Any, task: int, mode: int, p: Any) -> None:
    _, r1, b, r2, c = shape
    parts, slots, _ = partial.shape
    tiles = (c + TILE - 1) // TILE
    part, slot, first = task // (slots * tiles), task // tiles % slots, task % tiles * TILE
    into = partial[part, slot, first : min(first + TILE, c)]
    step, last = r1 * r2 * part // parts, r1 * r2 * (part + 1) // parts
    at_once = max(1, min(TILE // c, (last - step) // LEAST_RUNS)) if c <= NARROW else 1
    totals = np.empty(into.size * at_once, type(p))
    totals[:] = start
    into[:] = start
    u, v = step // r2, step % r2
    row = (slot // b * r1 + u) * b + slot % b
    row, pending = row * r2 + v, 0
    while step < last:
        run = min(r2 - v, last - step, DEPTH * at_once)
        if at_once > 1:
            _add_contiguous(x, (row, row + run), totals, mode, p)
        else:
            _add_rows(x, (row, row + run), first, totals, mode, p)
        step, row, v, pending = step + run, row + run, v + run, pending + run
        if v == r2:
            row, v = row + (b - 1) * r2, 0
        if pending >= DEPTH * at_once or step == last:
            _spill(totals, into, start, mode)
            pending = 0


@njit(**INNER)
def _merge_parts(partial: Any, y: Any, slot: int, mode: int, p: Any) -> None:
    for part in range(1, partial.shape[0]):
        for k in range(y.shape[1]):
            partial[0, slot, k] = _merge(partial[0, slot, k], partial[part, slot, k], mode)
    _finish_all(partial[0, slot], y[slot], mode, p)


@parallel(error_model="numpy")
def norm_columns(x: Any, y: Any, partial: Any, start: Any, shape: Any, mode: int, p: Any) -> None:
    """Norms of x (a r1 b r2, c) into y (a b, c), rows shared by threads: partial (parts, a, b, c), float64."""
    tiles = (y.shape[1] + TILE - 1) // TILE
    for task in prange(partial.shape[0] * y.shape[0] * tiles):
        _norm_tile(x, partial, start, shape, np.int64(task), mode, p)
    for slot in prange(y.shape[0]):
        _merge_parts(partial, y, np.int64(slot), mode, p)


@parallel(error_model="numpy")
def norm_short_columns(x: Any, y: Any, start: Any, shape: Any, mode: int, p: Any, tile: int) -> None:
    """Norms of x (a r1 b r2, c) into y (a b, c), for at most `DEPTH` rows, by tiles of columns: no float64 sums."""
    _, r1, b, r2, c = shape
    tiles = (c + tile - 1) // tile
    for task in prange(y.shape[0] * tiles):
        slot, first = np.int64(task) // tiles, np.int64(task) % tiles * tile
        end = min(first + tile, c)
        totals = np.full(end - first, start)
        for u in range(r1):
            row = ((slot // b * r1 + u) * b + slot % b) * r2
            _add_rows(x, (row, row + r2), first, totals, mode, p)
        _finish_all(totals, y[slot, first:end], mode, p)


@njit(**INNER)
def _write_terms(x: Any, first: int, terms: Any, mode: int, p: Any) -> None:
    """Terms of the sums, or magnitudes to pick from, of the elements of flat x from `first` on."""
    start, count = np.uint64(first), np.uint64(terms.size)
    if mode == HALVES:
        for index in range(count):
            terms[index] = _term(widen(x[start + index]), HALVES, p, 0)
    elif mode == POWER:
        for index in range(count):
            terms[index] = _term(widen(x[start + index]), POWER, p, 0)
    elif mode == COUNT:
        for index in range(count):
            terms[index] = widen(x[start + index]) != 0
    else:
        for index in range(count):
            terms[index] = abs(widen(x[start + index]))


@njit(**INNER)
def _merge_terms(terms: Any, length: int, c: int, sums: Any, mode: int) -> None:
    """Sums of terms (a, length, c), or what is picked, into flat sums (a c)."""
    for result in range(sums.size):
        at = result // c * length * c + result % c
        total = terms[at]
        if mode <= COUNT:
            for row in range(1, length):
                total += terms[at + row * c]
        else:
            for row in range(1, length):
                total = _merge(total, terms[at + row * c], mode)
        sums[result] = total


@parallel(error_model="numpy")
def norm_of_few_rows(x: Any, y: Any, sizes: Any, pieces: int, mode: int, p: Any) -> None:
    """Norms of flat x (a, length, c) into flat y (a, c), of few elements each, in `pieces`. sizes: a, length, c."""
    a, length, c = sizes
    each = max(1, FEW_AT_ONCE // (length * c))
    for piece in prange(pieces):
        terms, sums = np.empty(each * length * c, type(p)), np.empty(each * c)
        begin, last = a * np.int64(piece) // pieces, a * (np.int64(piece) + 1) // pieces
        for first in range(begin, last, each):
            end = min(first + each, last)
            some, results = terms[: (end - first) * length * c], sums[: (end - first) * c]
            _write_terms(x, first * length * c, some, mode, p)
            if c == 1 and mode == POWER:
                _sum_absolute(some.reshape(end - first, length), (0, end - first), (0, length), results, p)
            else:
                _merge_terms(some, length, c, results, mode)
            _finish_all(results, y[first * c : end * c], mode, p)
