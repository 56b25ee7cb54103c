"""Numba kernels of normalization for the CPU. Sums may be reordered; NaN and infinities keep their meaning.

x, addend and y are 16-bit floats in the format of `opgauge.ops._cpu.jit.storage`; statistics are in the
accumulating dtype. An empty addend means none.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, whole_registers, widen
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Type of indices known to be non-negative: loops over them vectorise."""
SUMS = {"reassoc", "contract", "nsz"}
BLOCK = 1 << 10
"""Elements summed in the accumulating dtype; block sums are added in float64, so that errors do not grow."""
FEW = 16
"""Most elements of a row that are summed one by one: a call and a loop of vectors take longer."""
PIECES = 64
"""Parts of the rows that threads take."""
DEPTH = 32
"""Rows that columns are summed over in the accumulating dtype, likewise."""


@njit(fastmath=SUMS, **INNER)
def _sum(x: Any, row: int, first: int, end: int, zero: Any) -> Any:
    """Sum of x[row, first:end]."""
    whole_registers()
    total = zero
    at, start = uintp(row), uintp(first)
    for index in range(uintp(end - first)):
        total += widen(x[at, start + index])
    return np.float64(total)


@njit(fastmath=SUMS, **INNER)
def _sum_squares(x: Any, row: int, first: int, end: int, middle: Any) -> Any:
    """Sum of the squared distances of x[row, first:end] from `middle`."""
    whole_registers()
    total = middle * 0
    at, start = uintp(row), uintp(first)
    for index in range(uintp(end - first)):
        distance = widen(x[at, start + index]) - middle
        total += distance * distance
    return np.float64(total)


@njit(**INNER)
def _moments(x: Any, channel: int, channels: int, zero: Any) -> Any:
    """Mean and biased variance of one channel of (N C, post), two passes."""
    rows, post = x.shape
    count = np.float64(rows // channels * post)
    total = squares = np.float64(0)
    if post <= FEW:
        for row in range(uintp(channel), uintp(rows), uintp(channels)):
            part = zero
            for index in range(uintp(post)):
                part += widen(x[row, index])
            total += part
        middle = type(zero)(total / count)
        for row in range(uintp(channel), uintp(rows), uintp(channels)):
            part = zero
            for index in range(uintp(post)):
                distance = widen(x[row, index]) - middle
                part += distance * distance
            squares += part
        return middle, type(zero)(squares / count)
    for row in range(channel, rows, channels):
        for first in range(0, post, BLOCK):
            total += _sum(x, row, first, min(first + BLOCK, post), zero)
    middle = type(zero)(total / count)
    for row in range(channel, rows, channels):
        for first in range(0, post, BLOCK):
            squares += _sum_squares(x, row, first, min(first + BLOCK, post), middle)
    return middle, type(zero)(squares / count)


@njit(**INNER)
def _apply(x: Any, row: int, middle: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Compute (x - middle) scale + shift, plus the addend, for one channel of one image."""
    at = uintp(row)
    if addend.size:
        for index in range(uintp(x.shape[1])):
            value = (widen(x[at, index]) - middle) * scale + shift
            y[at, index] = narrow(value + widen(addend[at, index]), x[at, index])
    else:
        for index in range(uintp(x.shape[1])):
            value = (widen(x[at, index]) - middle) * scale + shift
            y[at, index] = narrow(value, x[at, index])


@parallel(error_model="numpy")
def train_rows(
    x: Any, gamma: Any, beta: Any, epsilon: Any, addend: Any, y: Any, mean: Any, variance: Any, inverse: Any
) -> None:
    """All of training for (N C, post), each channel by one thread while it is in that thread's cache."""
    channels = mean.size
    zero = gamma.dtype.type(0)
    for task in prange(channels):
        channel = np.int64(task)
        middle, spread = _moments(x, channel, channels, zero)
        factor = type(zero)(1) / sqrt(spread + epsilon)
        mean[channel] = middle
        variance[channel] = spread
        inverse[channel] = factor
        for row in range(channel, x.shape[0], channels):
            _apply(x, row, middle, factor * gamma[channel], beta[channel], addend, y)


@parallel(error_model="numpy")
def moments_of_rows(x: Any, mean: Any, variance: Any) -> None:
    """Mean and biased variance of each channel of (N C, post)."""
    zero = mean.dtype.type(0)
    for channel in prange(mean.size):
        mean[channel], variance[channel] = _moments(x, np.int64(channel), mean.size, zero)


@njit(**INNER)
def _apply_rows(x: Any, begin: int, end: int, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """`_apply` for rows from `begin` to `end`: a call for each would cost more than a short row."""
    channel = uintp(begin % mean.size)
    for row in range(uintp(begin), uintp(end)):
        middle, factor, offset = mean[channel], scale[channel], shift[channel]
        if addend.size:
            for index in range(uintp(x.shape[1])):
                value = (widen(x[row, index]) - middle) * factor + offset
                y[row, index] = narrow(value + widen(addend[row, index]), x[row, index])
        else:
            for index in range(uintp(x.shape[1])):
                value = (widen(x[row, index]) - middle) * factor + offset
                y[row, index] = narrow(value, x[row, index])
        channel = channel + uintp(1) if channel + uintp(1) < uintp(mean.size) else uintp(0)


@parallel(error_model="numpy")
def apply_to_rows(x: Any, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Compute (x - mean) scale + shift, plus the addend, for (N C, post)."""
    rows = x.shape[0]
    pieces = min(rows, PIECES)
    for piece in prange(pieces):
        begin, end = rows * np.int64(piece) // pieces, rows * (np.int64(piece) + 1) // pieces
        _apply_rows(x, begin, end, mean, scale, shift, addend, y)


@njit(**INNER)
def _add_runs(partial: Any, divisor: Any, total: Any, leads: Any) -> None:
    """Sums of each channel's runs of columns, over `divisor`, to all of its columns."""
    post = total.size // leads.size
    for run in range(leads.size):
        part = np.float64(0)
        for column in range(uintp(run * post), uintp(run * post + post)):
            part += partial[0, column]
        partial[0, leads[run]] = part + (partial[0, leads[run]] if leads[run] < run * post else 0)
    for run in range(leads.size):
        value = partial[0, leads[run]] / divisor
        total[run * post : run * post + post] = value


@njit(**INNER)
def _add_rows(partial: Any, divisor: Any, total: Any, leads: Any) -> None:
    """Sums of each channel, over `divisor`, to all of its columns; leads as in `moments_of_columns`.

    Serial, as np.sum in a parallel function would start threads for each column.
    """
    for row in range(1, partial.shape[0]):
        for column in range(uintp(total.size)):
            partial[0, column] += partial[uintp(row), column]
    if leads.size == 0:
        for column in range(uintp(total.size)):
            total[column] = partial[0, column] / divisor
        return
    _add_runs(partial, divisor, total, leads)


@njit(**INNER)
def _spill(totals: Any, partial: Any, chunk: int) -> None:
    """Add totals to partial[chunk], and clear them."""
    at = uintp(chunk)
    for column in range(uintp(totals.size)):
        partial[at, column] += totals[column]
        totals[column] = 0


@njit(**INNER)
def _add_row(x: Any, row: int, totals: Any) -> None:
    at = uintp(row)
    for column in range(uintp(totals.size)):
        totals[column] += widen(x[at, column])


@njit(fastmath={"contract"}, **INNER)
def _add_squared_row(x: Any, row: int, mean: Any, totals: Any) -> None:
    at = uintp(row)
    for column in range(uintp(totals.size)):
        distance = widen(x[at, column]) - mean[column]
        totals[column] += distance * distance


@njit(**INNER)
def _add_values(x: Any, first: int, end: int, chunk: int, partial: Any) -> None:
    """Set partial[chunk] to the sum of rows first to end."""
    totals = np.zeros(x.shape[1], type(widen(x[0, 0])))
    partial[chunk, :] = 0
    for begin in range(first, end, DEPTH):
        for row in range(begin, min(begin + DEPTH, end)):
            _add_row(x, row, totals)
        _spill(totals, partial, chunk)


@njit(**INNER)
def _add_squares(x: Any, first: int, end: int, mean: Any, chunk: int, partial: Any) -> None:
    """Set partial[chunk] to the sum of squared distances from the mean."""
    totals = np.zeros(mean.size, mean.dtype)
    partial[chunk, :] = 0
    for begin in range(first, end, DEPTH):
        for row in range(begin, min(begin + DEPTH, end)):
            _add_squared_row(x, row, mean, totals)
        _spill(totals, partial, chunk)


@parallel(error_model="numpy")
def moments_of_columns(x: Any, rest: Any, mean: Any, variance: Any, partial: Any, leads: Any, size: int) -> None:
    """Mean and biased variance of each column of (rows, columns), two passes; partial (chunks, columns), float64.

    Columns of one channel, `size` elements in all, have the same moments. leads: the first of them, for each run
    of so many neighbours; empty if each column is a channel. rest: a last row with fewer columns, (1, n), or empty.
    """
    rows, chunks = x.shape[0], partial.shape[0]
    count = np.float64(size)
    for chunk in prange(chunks):
        first, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
        _add_values(x, first, end, np.int64(chunk), partial)
    for column in range(rest.size):
        partial[0, column] += widen(rest[0, column])
    _add_rows(partial, count, mean, leads)
    for chunk in prange(chunks):
        first, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
        _add_squares(x, first, end, mean, np.int64(chunk), partial)
    for column in range(rest.size):
        distance = widen(rest[0, column]) - mean[column]
        partial[0, column] += distance * distance
    _add_rows(partial, count, variance, leads)


@njit(**INNER)
def _apply_columns(x: Any, begin: int, end: int, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Rows from `begin` to `end`: a call for each would cost more than a short row."""
    columns = uintp(x.shape[1])
    for row in range(uintp(begin), uintp(end)):
        if addend.size:
            for column in range(columns):
                value = (widen(x[row, column]) - mean[column]) * scale[column] + shift[column]
                y[row, column] = narrow(value + widen(addend[row, column]), x[row, column])
        else:
            for column in range(columns):
                value = (widen(x[row, column]) - mean[column]) * scale[column] + shift[column]
                y[row, column] = narrow(value, x[row, column])


@parallel(error_model="numpy")
def apply_to_columns(x: Any, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Like `apply_to_rows`, for (rows, C)."""
    rows = x.shape[0]
    pieces = min(rows, PIECES)
    for piece in prange(pieces):
        begin, end = rows * np.int64(piece) // pieces, rows * (np.int64(piece) + 1) // pieces
        _apply_columns(x, begin, end, mean, scale, shift, addend, y)
