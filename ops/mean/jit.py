"""Numba kernels of mean for the CPU: sums in the accumulating dtype within a piece, in float64 between pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, whole_registers, widen
from opgauge.ops._cpu.threads import parallel

TILE = 256
"""Columns that a thread sums at a time: their sums stay in the first-level cache."""
DEPTH = 64
"""Rows that a column is summed over before the sum is widened."""


@njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)
def _sum(x: Any, row: int, first: int, end: int, zero: Any) -> Any:
    """Sum of x[row, first:end]."""
    whole_registers()
    total = zero
    at, start = np.uint64(row), np.uint64(first)
    for index in range(np.uint64(end - first)):
        total += widen(x[at, start + index])
    return np.float64(total)


@njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)
def _divide_rows(x: Any, begin: int, end: int, zero: Any, out: Any) -> None:
    """Means of the rows from `begin` to `end`: a call for each would cost more than a short row."""
    whole_registers()
    length = np.uint64(x.shape[1])
    for row in range(np.uint64(begin), np.uint64(end)):
        total = zero
        for index in range(length):
            total += widen(x[row, index])
        out[row] = narrow(np.float64(total) / np.int64(length), out[row])


@parallel(error_model="numpy")
def mean_of_rows(x: Any, out: Any, zero: Any, pieces: int) -> None:
    """Means of x (rows, length) into out (rows,), in `pieces` of many rows each."""
    rows = x.shape[0]
    for piece in prange(pieces):
        _divide_rows(x, rows * np.int64(piece) // pieces, rows * (np.int64(piece) + 1) // pieces, zero, out)


@parallel(error_model="numpy")
def mean_of_pieces(x: Any, out: Any, partial: Any, zero: Any) -> None:
    """Means of x (a pieces b, length) into out (a b,); rows in blocks, partial (a, b, pieces, blocks)."""
    a, b, pieces, blocks = partial.shape
    length = x.shape[1]
    for task in prange(a * pieces * b * blocks):
        row, block = np.int64(task) // blocks, np.int64(task) % blocks
        i, u, j = row // (pieces * b), row // b % pieces, row % b
        first, end = length * block // blocks, length * (block + 1) // blocks
        partial[i, j, u, block] = _sum(x, row, first, end, zero)
    parts = partial.reshape(a * b, pieces * blocks)
    for slot in range(a * b):
        out[slot] = narrow(_sum(parts, slot, 0, pieces * blocks, 0.0) / (pieces * length), out[slot])


@njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)
def _sum_pieces(x: Any, i: int, begin: int, end: int, pieces: int, b: int, zero: Any, out: Any) -> None:
    """Means of the slots from `begin` to `end` of group `i`: the rows of all pieces, each in one go."""
    whole_registers()
    length, width = np.uint64(x.shape[1]), np.uint64(end - begin)
    totals = np.zeros(width)
    for u in range(pieces):
        first = np.uint64((i * pieces + u) * b + begin)
        for k in range(width):
            total = zero
            for index in range(length):
                total += widen(x[first + k, index])
            totals[k] += total
    for k in range(width):
        at = np.uint64(i * b + begin) + k
        out[at] = narrow(totals[k] / (pieces * np.int64(length)), out[at])


@parallel(error_model="numpy")
def mean_of_short_pieces(x: Any, out: Any, b: int, pieces: int, tasks: int, zero: Any) -> None:
    """Like `mean_of_pieces`, for rows of at most a block: x (a pieces b, length) into out (a b,), in `tasks` per a."""
    groups = out.size // b
    for task in prange(groups * tasks):
        i, part = np.int64(task) // tasks, np.int64(task) % tasks
        _sum_pieces(x, i, b * part // tasks, b * (part + 1) // tasks, pieces, b, zero, out)


@njit(**INNER)
def _add_lines(x: Any, row: int, first: int, end: int, totals: Any) -> None:
    """Add x[row, first:end], lines as long as totals, to totals, four at a time: totals are read a quarter as often."""
    at, start, line, stop = np.uint64(row), np.uint64(first), np.uint64(totals.size), np.uint64(end)
    two, three = line + line, line + line + line
    while start + two + two <= stop:
        for k in range(line):
            low = widen(x[at, start + k]) + widen(x[at, start + line + k])
            totals[k] += low + (widen(x[at, start + two + k]) + widen(x[at, start + three + k]))
        start += two + two
    while start < stop:
        for k in range(min(line, stop - start)):
            totals[k] += widen(x[at, start + k])
        start += line


@njit(**INNER)
def _add_rows(x: Any, row: int, count: int, first: int, totals: Any) -> None:
    """Add x[row + n, first + index] to totals[index] for `count` rows, two at a time: totals are read half as often."""
    whole_registers()
    base, start, size = np.uint64(row), np.uint64(first), np.uint64(totals.size)
    for pair in range(np.uint64(count // 2)):
        upper = base + np.uint64(2) * pair
        for index in range(size):
            totals[index] += widen(x[upper, start + index]) + widen(x[upper + np.uint64(1), start + index])
    if count % 2:
        last = base + np.uint64(count - 1)
        for index in range(size):
            totals[index] += widen(x[last, start + index])


@njit(**INNER)
def _spill(totals: Any, into: Any, zero: Any) -> None:
    for index in range(totals.size):
        into[index] += totals[index]
        totals[index] = zero


@njit(**INNER)
def _divide(sums: Any, length: Any, out: Any) -> None:
    for index in range(sums.size):
        out[index] = narrow(sums[index] / length, out[index])


@njit(**INNER)
def _add_parts(partial: Any, length: int, out: Any) -> None:
    """Means of columns whose sums are in several parts; these are few."""
    for index in range(out.size):
        total = partial[0, index]
        for part in range(1, partial.shape[0]):
            total += partial[part, index]
        out[index] = narrow(total / length, out[index])


@parallel(error_model="numpy")
def mean_of_few_rows(x: Any, out: Any, zero: Any, pieces: int) -> None:
    """Means of x (a, rows, c) into out (a, c), for at most `DEPTH` rows and few columns, in `pieces` for threads."""
    a, rows, c = x.shape
    for piece in prange(pieces):
        totals = np.empty(c, type(zero))
        for i in range(a * np.int64(piece) // pieces, a * (np.int64(piece) + 1) // pieces):
            for k in range(c):
                totals[k] = widen(x[i, 0, k])
            for row in range(1, rows):
                for k in range(c):
                    totals[k] += widen(x[i, row, k])
            _divide(totals, type(zero)(rows), out[i])


@njit(**INNER)
def _fold(sums: Any, length: int, out: Any) -> None:
    """Means of columns that repeat along the rows of sums (parts, line)."""
    columns = out.size
    for column in range(columns):
        total = 0.0
        for part in range(sums.shape[0]):
            for at in range(column, sums.shape[1], columns):
                total += sums[part, at]
        out[column] = narrow(total / length, out[column])


@parallel(error_model="numpy")
def mean_of_narrow_columns(x: Any, out: Any, partial: Any, zero: Any) -> None:
    """Means of x (a, rows c) into out (a, c), lines of several rows at a time; partial (a, parts, line), float64."""
    a, size = x.shape
    parts, line = partial.shape[1], partial.shape[2]
    lines, length = (size + line - 1) // line, size // out.shape[1]
    for task in prange(a * parts):
        i, part = np.int64(task) // parts, np.int64(task) % parts
        totals, into = np.full(line, zero), partial[i, part]
        into[:] = 0
        end = min(lines * (part + 1) // parts * line, size)
        for first in range(lines * part // parts * line, end, DEPTH * line):
            _add_lines(x, i, first, min(first + DEPTH * line, end), totals)
            _spill(totals, into, zero)
        if parts == 1:
            _fold(partial[i], length, out[i])
    if parts > 1:
        for i in range(a):
            _fold(partial[i], length, out[i])


@parallel(error_model="numpy")
def mean_of_short_columns(x: Any, out: Any, zero: Any, shape: Any, tile: int) -> None:
    """Means of x (a r1 b r2, c) into out (a b, c), for at most `DEPTH` rows, by tiles of columns.

    Such sums need no float64: it would be most of the time, and an array of the size of x for two rows.
    """
    _, r1, b, r2, c = shape
    tiles = (c + tile - 1) // tile
    for task in prange(out.shape[0] * tiles):
        slot, first = np.int64(task) // tiles, np.int64(task) % tiles * tile
        end = min(first + tile, c)
        totals = np.full(end - first, zero)
        for u in range(r1):
            _add_rows(x, ((slot // b * r1 + u) * b + slot % b) * r2, r2, first, totals)
        _divide(totals, type(zero)(r1 * r2), out[slot, first:end])


@parallel(error_model="numpy")
def mean_of_columns(x: Any, out: Any, partial: Any, zero: Any, shape: Any) -> None:
    """Means of x (a r1 b r2, c) into out (a b, c), rows shared by threads: partial (parts, a b, c), float64."""
    _, r1, b, r2, c = shape
    parts, slots = partial.shape[0], partial.shape[1]
    tiles = (c + TILE - 1) // TILE
    for task in prange(parts * slots * tiles):
        part, slot = np.int64(task) // (slots * tiles), np.int64(task) // tiles % slots
        first = np.int64(task) % tiles * TILE
        end = min(first + TILE, c)
        totals = np.full(end - first, zero)
        into = partial[part, slot, first:end]
        into[:] = 0
        step, last = r1 * r2 * part // parts, r1 * r2 * (part + 1) // parts
        while step < last:
            u, v = step // r2, step % r2
            count = min(r2 - v, last - step, DEPTH)
            _add_rows(x, ((slot // b * r1 + u) * b + slot % b) * r2 + v, count, first, totals)
            _spill(totals, into, zero)
            step += count
        if parts == 1:
            _divide(into, r1 * r2, out[slot, first:end])
    if parts > 1:
        _add_parts(partial.reshape(parts, slots * c), r1 * r2, out.reshape(slots * c))
