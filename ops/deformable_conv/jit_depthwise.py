"""Numba kernels of depthwise deformable_conv and its gradient for the CPU: one channel of x per group, no product.

In the gradient, `several` outputs of each of a unit's channels, and its weights, have channels last, in panels of as
many as a tile has columns; what is beyond the unit is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.bilinear.jit import blend, locate, spread_back
from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import tile_columns
from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES, load, multiply_add, spread, store

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


@njit(**INNER)
def _take(
    out_grad: Any, n: int, row: int, sizes: Any, first: int, count: int, given: Any, origin: int, block: int
) -> None:
    unit, several, panels = sizes
    columns = tile_columns(given)
    for index in range(unit * several):
        channel, number = index // several, index % several
        place = uintp(origin + (number * panels + channel // columns) * block * columns + channel % columns)
        for pixel in range(uintp(count)):
            given[place + pixel * uintp(columns)] = widen(out_grad[n, row + index, uintp(first) + pixel])


@njit(**INNER)
def _multiply(
    given: Any,
    origin: int,
    weight: Any,
    at: int,
    apart: int,
    column: Any,
    target: int,
    sizes: Any,
    count: int,
    block: int,
) -> None:
    """Columns of one tap: the outputs' gradients times the weights, which are `apart` for each further output."""
    _, several, panels = sizes
    columns, step = tile_columns(column), LANES_BYTES // column.itemsize
    for panel in range(panels):
        for lane in range(0, columns, step):
            for index in range(count):
                place = (panel * block + index) * columns + lane
                value = spread(column.dtype.type(0))
                for number in range(several):
                    out_grad = load(given, origin + number * panels * block * columns + place)
                    value = multiply_add(out_grad, load(weight, at + number * apart + panel * columns + lane), value)
                store(column, target + place, value)


@njit(**INNER)
def _add_filter(
    given: Any,
    origin: int,
    column: Any,
    target: int,
    sums: Any,
    at: int,
    apart: int,
    sizes: Any,
    count: int,
    block: int,
) -> None:
    """Add to a tap's sums, `apart` for each further output, the outputs' gradients times the samples in `column`."""
    _, several, panels = sizes
    columns, step = tile_columns(column), LANES_BYTES // column.itemsize
    for row in range(several * panels):
        panel, number = row % panels, row // panels
        for lane in range(0, columns, step):
            place = at + number * apart + panel * columns + lane
            total, samples, grads = load(sums, place), target + panel * block * columns, origin + row * block * columns
            for index in range(count):
                at_index = index * columns + lane
                total = multiply_add(load(given, grads + at_index), load(column, samples + at_index), total)
            store(sums, place, total)


@njit(**INNER)
def _differentiate_block(
    image: Any,
    offset: Any,
    mask: Any,
    out_grad: Any,
    packed: Any,
    image_grad: Any,
    slopes: Any,
    filter_sums: Any,
    n: int,
    owner: int,
    sums_at: int,
    first: int,
    count: int,
    block: int,
    sizes: Any,
    numbers: Any,
    needs: Any,
    places: Any,
    weights: Any,
    given: Any,
    origin: int,
    column: Any,
    target: int,
) -> None:
    channels, parts, unit, taps = sizes
    columns, several = tile_columns(image), out_grad.shape[1] // channels
    panels, pitch, channel = -(-unit // columns), (numbers[1] + 2) * channels, owner * unit
    shape, part, apart = (unit, several, panels), channel // (channels // parts), taps * panels * columns
    _take(out_grad, n, channel * several, shape, first, count, given, origin, block)
    for tap in range(taps):
        at = tap * panels * columns
        if needs[0] or needs[1]:
            _multiply(given, origin, packed, owner * several * apart + at, apart, column, target, shape, count, block)
        locate(offset, mask, n, part * taps + tap, tap, first, count, numbers, places, weights)
        sampled = 0, first, count, places, weights, column, target, block
        start = n * (numbers[0] + 3) * pitch + channel
        spread_back(image, image_grad, start, channels, pitch, unit, *sampled, needs, slopes, n, tap, owner)
        if needs[2]:
            _add_filter(given, origin, column, target, filter_sums, sums_at + at, apart, shape, count, block)


@parallel(error_model="numpy")
def differentiate_depthwise(
    image: Any,
    offset: Any,
    mask: Any,
    out_grad: Any,
    packed: Any,
    image_grad: Any,
    slopes: Any,
    filter_sums: Any,
    shares: int,
    block: int,
    sizes: Any,
    numbers: Any,
    needs: Any,
    places: Any,
    weights: Any,
    given: Any,
    column: Any,
) -> None:
    """All gradients, each unit of channels by one thread for a share of the images; the last four arrays are scratch.

    Arguments as in `jit_grad.differentiate`, but: packed is flat (units, outputs of a group, taps, panels, columns);
    filter_sums is laid out alike, for each share. sizes: channels, deformable groups, channels of a unit, taps.
    """
    batch, _, pixels = out_grad.shape
    units, threads = sizes[0] // sizes[2], places.shape[0]
    for task in prange(shares * units):
        share, owner, thread = task // units, task % units, get_thread_id() if threads > 1 else 0
        size = filter_sums.size // (shares * units)
        for index in range(task * size, (task + 1) * size):
            filter_sums[index] = 0
        for n in range(share, batch, shares):
            for first in range(0, pixels, block):
                _differentiate_block(
                    image,
                    offset,
                    mask,
                    out_grad,
                    packed,
                    image_grad,
                    slopes,
                    filter_sums,
                    n,
                    owner,
                    task * size,
                    first,
                    min(block, pixels - first),
                    block,
                    sizes,
                    numbers,
                    needs,
                    places[thread],
                    weights[thread],
                    given,
                    thread * (given.size // threads),
                    column,
                    thread * (column.size // threads),
                )
