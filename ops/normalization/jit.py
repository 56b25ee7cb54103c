"""Numba kernels of normalization for the CPU. Sums may be reordered; NaN and infinities keep their meaning."""

from __future__ import annotations

from typing import Any

from numba import njit, prange

SUMS = {"reassoc", "contract", "nsz"}


@njit(cache=True, parallel=True, fastmath=SUMS, error_model="numpy")
def moments_of_rows(x: Any, mean: Any, variance: Any) -> None:
    """Mean and biased variance of each channel of (N, C, post), two passes."""
    images, channels, post = x.shape
    zero = x.dtype.type(0)
    for channel in prange(channels):
        total = zero
        for image in range(images):
            for index in range(post):
                total += x[image, channel, index]
        middle = total / x.dtype.type(images * post)
        squares = zero
        for image in range(images):
            for index in range(post):
                distance = x[image, channel, index] - middle
                squares += distance * distance
        mean[channel] = middle
        variance[channel] = squares / x.dtype.type(images * post)


@njit(cache=True, error_model="numpy")
def add_rows(partial: Any, divisor: Any, total: Any) -> None:
    """Column sums over `divisor`; serial, as np.sum in a parallel function would start threads for each column."""
    for channel in range(total.size):
        total[channel] = 0
    for row in range(partial.shape[0]):
        for channel in range(total.size):
            total[channel] += partial[row, channel]
    for channel in range(total.size):
        total[channel] /= divisor


@njit(cache=True, parallel=True, fastmath=SUMS, error_model="numpy")
def moments_of_columns(x: Any, mean: Any, variance: Any, partial: Any) -> None:
    """Mean and biased variance of each column of (rows, C), two passes; partial (chunks, C)."""
    rows, channels = x.shape
    chunks = partial.shape[0]
    for chunk in prange(chunks):
        partial[chunk] = 0
        for row in range(rows * chunk // chunks, rows * (chunk + 1) // chunks):
            for channel in range(channels):
                partial[chunk, channel] += x[row, channel]
    add_rows(partial, x.dtype.type(rows), mean)
    for chunk in prange(chunks):
        partial[chunk] = 0
        for row in range(rows * chunk // chunks, rows * (chunk + 1) // chunks):
            for channel in range(channels):
                distance = x[row, channel] - mean[channel]
                partial[chunk, channel] += distance * distance
    add_rows(partial, x.dtype.type(rows), variance)


@njit(cache=True, parallel=True, error_model="numpy")
def apply_to_rows(x: Any, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """(x - mean) scale + shift, plus the addend unless it is empty, for (N, C, post)."""
    images, channels, post = x.shape
    adds = addend.size > 0
    for index in prange(images * channels):
        image, channel = index // channels, index % channels
        middle, factor, offset = mean[channel], scale[channel], shift[channel]
        if adds:
            for place in range(post):
                value = (x[image, channel, place] - middle) * factor + offset
                y[image, channel, place] = value + addend[image, channel, place]
        else:
            for place in range(post):
                y[image, channel, place] = (x[image, channel, place] - middle) * factor + offset


@njit(cache=True, parallel=True, error_model="numpy")
def apply_to_columns(x: Any, mean: Any, scale: Any, shift: Any, addend: Any, y: Any) -> None:
    """The same for (rows, C)."""
    rows, channels = x.shape
    adds = addend.size > 0
    for row in prange(rows):
        if adds:
            for channel in range(channels):
                value = (x[row, channel] - mean[channel]) * scale[channel] + shift[channel]
                y[row, channel] = value + addend[row, channel]
        else:
            for channel in range(channels):
                y[row, channel] = (x[row, channel] - mean[channel]) * scale[channel] + shift[channel]
