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

SUMS = {"reassoc", "contract", "nsz"}
BLOCK = 1 << 10
"""Elements summed in the accumulating dtype; block sums are added in float64, so that errors do not grow."""
DEPTH = 32
"""Rows that columns are summed over in the accumulating dtype, likewise."""


@njit(fastmath=SUMS, **INNER)
def _moments(x: Any, channel: int, zero: Any) -> Any:
    """Mean and biased variance of one channel of (N, C, post), two passes."""
    whole_registers()
    images, _, post = x.shape
    count = np.float64(images * post)
    total = np.float64(0)
    for image in range(images):
        for first in range(0, post, BLOCK):
            some = zero
            for index in range(first, min(first + BLOCK, post)):
                some += widen(x[image, channel, index])
            total += np.float64(some)
    middle = type(zero)(total / count)
    squares = np.float64(0)
    for image in range(images):
        for first in range(0, post, BLOCK):
            some = zero
            for index in range(first, min(first + BLOCK, post)):
                distance = widen(x[image, channel, index]) - middle
                some += distance * distance
            squares += np.float64(some)
    return middle, type(zero)(squares / count)


@njit(**INNER)
def _apply(x: Any, image: int, channel: int, middle: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Compute (x - middle) scale + shift, plus the addend, for one channel of one image."""
    if addend.size:
        for index in range(x.shape[2]):
            value = (widen(x[image, channel, index]) - middle) * scale + shift
            y[image, channel, index] = narrow(value + widen(addend[image, channel, index]), x[image, channel, index])
    else:
        for index in range(x.shape[2]):
            value = (widen(x[image, channel, index]) - middle) * scale + shift
            y[image, channel, index] = narrow(value, x[image, channel, index])


@parallel(error_model="numpy")
def train_rows(
    x: Any, gamma: Any, beta: Any, epsilon: Any, addend: Any, y: Any, mean: Any, variance: Any, inverse: Any
) -> None:
    """All of training for (N, C, post), each channel by one thread while it is in that thread's cache."""
    images, channels, _ = x.shape
    zero = gamma.dtype.type(0)
    for task in prange(channels):
        channel = np.int64(task)
        middle, spread = _moments(x, channel, zero)
        factor = type(zero)(1) / sqrt(spread + epsilon)
        mean[channel] = middle
        variance[channel] = spread
        inverse[channel] = factor
        for image in range(images):
            _apply(x, image, channel, middle, factor * gamma[channel], beta[channel], addend, y)


@parallel(error_model="numpy")
def moments_of_rows(x: Any, mean: Any, variance: Any) -> None:
    """Mean and biased variance of each channel of (N, C, post)."""
    zero = mean.dtype.type(0)
    for channel in prange(x.shape[1]):
        mean[channel], variance[channel] = _moments(x, np.int64(channel), zero)


@parallel(error_model="numpy")
def apply_to_rows(x: Any, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Compute (x - mean) scale + shift, plus the addend, for (N, C, post)."""
    images, channels, _ = x.shape
    for index in prange(images * channels):
        image, channel = index // channels, index % channels
        _apply(x, image, channel, mean[channel], scale[channel], shift[channel], addend, y)


@njit(**INNER)
def _add_rows(partial: Any, divisor: Any, total: Any, leads: Any) -> None:
    """Sums of each channel, over `divisor`, to all of its columns; leads: the first column of each one's channel.

    Serial, as np.sum in a parallel function would start threads for each column.
    """
    for row in range(1, partial.shape[0]):
        for column in range(total.size):
            partial[0, column] += partial[row, column]
    for column in range(total.size):
        if leads[column] != column:
            partial[0, leads[column]] += partial[0, column]
    for column in range(total.size):
        total[column] = partial[0, leads[column]] / divisor


@njit(**INNER)
def _add_values(x: Any, first: int, end: int, chunk: int, partial: Any) -> None:
    """Set partial[chunk] to the sum of rows first to end."""
    totals = np.zeros(x.shape[1], type(widen(x[0, 0])))
    partial[chunk, :] = 0
    for begin in range(first, end, DEPTH):
        for row in range(begin, min(begin + DEPTH, end)):
            for channel in range(totals.size):
                totals[channel] += widen(x[row, channel])
        for channel in range(totals.size):
            partial[chunk, channel] += totals[channel]
            totals[channel] = 0


@njit(fastmath={"contract"}, **INNER)
def _add_squares(x: Any, first: int, end: int, mean: Any, chunk: int, partial: Any) -> None:
    """Set partial[chunk] to the sum of squared distances from the mean."""
    totals = np.zeros(mean.size, mean.dtype)
    partial[chunk, :] = 0
    for begin in range(first, end, DEPTH):
        for row in range(begin, min(begin + DEPTH, end)):
            for channel in range(totals.size):
                distance = widen(x[row, channel]) - mean[channel]
                totals[channel] += distance * distance
        for channel in range(totals.size):
            partial[chunk, channel] += totals[channel]
            totals[channel] = 0


@parallel(error_model="numpy")
def moments_of_columns(x: Any, mean: Any, variance: Any, partial: Any, leads: Any, size: int) -> None:
    """Mean and biased variance of each column of (rows, columns), two passes; partial (chunks, columns), float64.

    Columns of one channel, `size` elements in all, have the same moments; leads: the first of them.
    """
    rows, chunks = x.shape[0], partial.shape[0]
    count = np.float64(size)
    for chunk in prange(chunks):
        first, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
        _add_values(x, first, end, np.int64(chunk), partial)
    _add_rows(partial, count, mean, leads)
    for chunk in prange(chunks):
        first, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
        _add_squares(x, first, end, mean, np.int64(chunk), partial)
    _add_rows(partial, count, variance, leads)


@njit(**INNER)
def _apply_to_row(x: Any, row: int, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    if addend.size:
        for channel in range(x.shape[1]):
            value = (widen(x[row, channel]) - mean[channel]) * scale[channel] + shift[channel]
            y[row, channel] = narrow(value + widen(addend[row, channel]), x[row, channel])
    else:
        for channel in range(x.shape[1]):
            value = (widen(x[row, channel]) - mean[channel]) * scale[channel] + shift[channel]
            y[row, channel] = narrow(value, x[row, channel])


@parallel(error_model="numpy")
def apply_to_columns(x: Any, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """Like `apply_to_rows`, for (rows, C)."""
    for row in prange(x.shape[0]):
        _apply_to_row(x, np.int64(row), mean, scale, shift, addend, y)
