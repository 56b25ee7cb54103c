"""Numba kernels of depthwise deformable_conv for the CPU: one channel of x per group, no matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.bilinear.jit import blend, locate
from opgauge.ops._cpu.jit import INNER, narrow
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Unsigned index type, without the test for negative indices, so that loops vectorise."""


@njit(**INNER)
def _add_products(weight: Any, at: int, column: Any, target: int, sums: Any, place: int, count: int, size: int) -> None:
    """Add to sums (count, size) the products of column (count, size) and `size` weights."""
    for index in range(count):
        given, to = uintp(target + index * size), uintp(place + index * size)
        for channel in range(uintp(size)):
            sums[to + channel] += column[given + channel] * weight[uintp(at) + channel]


@njit(**INNER)
def _convolve_block(
    image: Any,
    offset: Any,
    mask: Any,
    weight: Any,
    out: Any,
    n: int,
    first: int,
    count: int,
    sizes: Any,
    numbers: Any,
    places: Any,
    weights: Any,
    column: Any,
    target: int,
    sums: Any,
    place: int,
) -> None:
    channels, parts, taps = sizes
    several, length = out.shape[1] // channels, channels // parts
    pitch = (numbers[1] + 2) * channels
    for index in range(uintp(place), uintp(place + several * count * channels)):
        sums[index] = 0
    for tap in range(taps):
        for part in range(parts):
            locate(offset, mask, n, part * taps + tap, tap, first, count, numbers, places, weights)
            start, to = n * (numbers[0] + 3) * pitch + part * length, target + part * length
            blend(image, start, pitch, channels, length, places, weights, column, to, channels, count)
        for number in range(several):
            at, to = (number * taps + tap) * channels, place + number * count * channels
            _add_products(weight, at, column, target, sums, to, count, channels)
    for channel in range(channels):
        for number in range(several):
            row, given = channel * several + number, place + number * count * channels + channel
            for index in range(count):
                where = uintp(first + index)
                out[n, row, where] = narrow(sums[uintp(given + index * channels)], out[n, row, where])


@parallel(error_model="numpy")
def convolve_depthwise(
    image: Any,
    offset: Any,
    mask: Any,
    weight: Any,
    out: Any,
    block: int,
    sizes: Any,
    numbers: Any,
    places: Any,
    weights: Any,
    column: Any,
    sums: Any,
) -> None:
    """The whole convolution, one block of pixels at a time; the last four arrays are each thread's scratch.

    image, offset, mask, out and numbers as in `jit.convolve`. weight: flat (outputs of a group, taps, channels).
    sizes: channels, deformable groups, taps.
    """
    batch, _, pixels = out.shape
    blocks, threads = -(-pixels // block), places.shape[0]
    for task in prange(batch * blocks):
        thread = get_thread_id() if threads > 1 else 0
        first = task % blocks * block
        _convolve_block(
            image,
            offset,
            mask,
            weight,
            out,
            task // blocks,
            first,
            min(block, pixels - first),
            sizes,
            numbers,
            places[thread],
            weights[thread],
            column,
            thread * (column.size // threads),
            sums,
            thread * (sums.size // threads),
        )
