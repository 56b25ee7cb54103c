"""Numba kernels of deformable_conv_grad for the CPU.

A thread takes a unit of channels: it multiplies the output's gradient by the filter, a block of pixels and some taps at
a time, and adds each sample's part to the gradients while the block is in cache. Arguments are scalars and arrays: as
named tuples they cost up to a tenth of the time of small cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.bilinear.jit import locate
from opgauge.ops._cpu.jit import INNER, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, ROWS, multiply_tile, tile_columns
from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES, load, multiply_add, spread, store, total

uintp = np.uintp
"""Unsigned index type, without the test for negative indices, so that loops vectorise."""


@njit(**INNER)
def _take(
    out_grad: Any, n: int, channel: int, rows: int, first: int, count: int, given: Any, start: int, pitch: int
) -> None:
    for row in range(rows):
        for index in range(count):
            given[uintp(start + row * pitch + index)] = widen(out_grad[n, channel + row, uintp(first + index)])


@njit(**INNER)
def spread_back(
    image: Any,
    image_grad: Any,
    start: int,
    channels: int,
    pitch: int,
    unit: int,
    base: int,
    index: int,
    weights: Any,
    column: Any,
    target: int,
    block: int,
    needs: Any,
    slopes: Any,
    n: int,
    tap: int,
    pixel: int,
    owner: int,
) -> None:
    """Gradient of one pixel's sample of a unit's channels at one tap, at `base` in the columns of its chunk.

    Adds to the gradients of the image, the offset and the mask; also stores the sample itself.
    """
    need_x, need_slopes, need_filter = needs
    step, columns = LANES_BYTES // image.itemsize, tile_columns(image)
    w00, w01, w10, w11 = weights[0, index], weights[1, index], weights[2, index], weights[3, index]
    v00, v01, v10, v11 = spread(w00), spread(w01), spread(w10), spread(w11)
    none = spread(image.dtype.type(0))
    d00, d01, d10, d11 = none, none, none, none
    whole = unit - unit % step if base % step == 0 else 0
    below = start + pitch
    for c in range(0, whole, step):
        place = target + (base + c) // columns * block * columns + (base + c) % columns + index * columns
        x00, x01 = load(image, start + c), load(image, start + c + channels)
        x10, x11 = load(image, below + c), load(image, below + c + channels)
        given = load(column, place)
        if need_slopes:
            d00, d01 = multiply_add(x00, given, d00), multiply_add(x01, given, d01)
            d10, d11 = multiply_add(x10, given, d10), multiply_add(x11, given, d11)
        if need_x:
            store(image_grad, start + c, multiply_add(given, v00, load(image_grad, start + c)))
            store(image_grad, start + c + channels, multiply_add(given, v01, load(image_grad, start + c + channels)))
            store(image_grad, below + c, multiply_add(given, v10, load(image_grad, below + c)))
            store(image_grad, below + c + channels, multiply_add(given, v11, load(image_grad, below + c + channels)))
        if need_filter:
            upper = multiply_add(x01, v01, multiply_add(x00, v00, none))
            store(column, place, multiply_add(x11, v11, multiply_add(x10, v10, upper)))
    s00, s01, s10, s11 = total(d00), total(d01), total(d10), total(d11)
    for c in range(whole, unit):
        place = target + (base + c) // columns * block * columns + (base + c) % columns + index * columns
        left, right, given = start + c, start + c + channels, column[place]
        s00, s01 = s00 + given * image[left], s01 + given * image[right]
        s10, s11 = s10 + given * image[left + pitch], s11 + given * image[right + pitch]
        if need_x:
            image_grad[left] += given * w00
            image_grad[right] += given * w01
            image_grad[left + pitch] += given * w10
            image_grad[right + pitch] += given * w11
        upper = image[left] * w00 + image[right] * w01
        column[place] = upper + image[left + pitch] * w10 + image[right + pitch] * w11
    if need_slopes:
        lh, lw, m = weights[4, index], weights[5, index], weights[6, index]
        kh, kw = type(lh)(1) - lh, type(lw)(1) - lw
        slopes[owner, n, tap, 0, pixel] = m * (kw * (s10 - s00) + lw * (s11 - s01))
        slopes[owner, n, tap, 1, pixel] = m * (kh * (s01 - s00) + lh * (s11 - s10))
        slopes[owner, n, tap, 2, pixel] = kh * (kw * s00 + lw * s01) + lh * (kw * s10 + lw * s11)


@njit(**INNER)
def _add_filter(
    given: Any,
    origin: int,
    column: Any,
    target: int,
    filter_sums: Any,
    place: int,
    used: int,
    per_group: int,
    count: int,
    block: int,
) -> None:
    """Add the product of the output's gradient and the samples in `column` to the filter's gradient, by panel."""
    columns, rows = tile_columns(column), -(-per_group // ROWS) * ROWS
    for panel in range(used):
        for row in range(0, per_group, ROWS):
            multiply_tile(
                given,
                origin + row * block,
                block,
                1,
                column,
                target + panel * block * columns,
                columns,
                count,
                filter_sums,
                place + (panel * rows + row) * columns,
                columns,
            )


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
    share: int,
    first: int,
    count: int,
    block: int,
    at_once: int,
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
    channels, groups, parts, unit, taps = sizes
    height, width = numbers[0], numbers[1]
    columns, per_group, channel = tile_columns(image), out_grad.shape[1] // groups, owner * unit
    panels, chunks, pitch = -(-at_once * unit // columns), -(-taps // at_once), (width + 2) * channels
    rows = -(-per_group // ROWS) * ROWS
    group, part = channel // (channels // groups), channel // (channels // parts)
    _take(out_grad, n, group * per_group, per_group, first, count, given, origin, block)
    for chunk in range(chunks):
        tap, end = chunk * at_once, min((chunk + 1) * at_once, taps)
        used = -(-(end - tap) * unit // columns)
        for index in range(target, target + used * block * columns):
            column[uintp(index)] = 0
        if needs[0] or needs[1]:
            for panel in range(used):
                place = ((owner * chunks + chunk) * panels + panel) * per_group * columns
                for depth in range(0, per_group, DEPTH):
                    for row in range(0, count, ROWS):
                        multiply_tile(
                            given,
                            origin + depth * block + row,
                            1,
                            block,
                            packed,
                            place + depth * columns,
                            columns,
                            min(DEPTH, per_group - depth),
                            column,
                            target + (panel * block + row) * columns,
                            columns,
                        )
        for now in range(tap, end):
            locate(offset, mask, n, part * taps + now, now, first, count, numbers, places, weights)
            for index in range(count):
                start = n * (height + 3) * pitch + places[index] * channels + channel
                spread_back(
                    image,
                    image_grad,
                    start,
                    channels,
                    pitch,
                    unit,
                    (now - tap) * unit,
                    index,
                    weights,
                    column,
                    target,
                    block,
                    needs,
                    slopes,
                    n,
                    now,
                    first + index,
                    owner,
                )
        if needs[2]:
            place = ((share * (channels // unit) + owner) * chunks + chunk) * panels * rows * columns
            _add_filter(given, origin, column, target, filter_sums, place, used, per_group, count, block)


@parallel(error_model="numpy")
def differentiate(
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
    at_once: int,
    sizes: Any,
    numbers: Any,
    needs: Any,
    places: Any,
    weights: Any,
    given: Any,
    column: Any,
) -> None:
    """All gradients, each unit of channels by one thread for a share of the images; the last four arrays are scratch.

    Arguments as in `convolve`, except that sizes has the channels of a unit instead of a group's, and packed is from
    `pack_transposed`. image_grad, laid out like image, is added to. slopes
    (units, N, taps, 3, P) receives the gradients of rows, columns and mask; filter_sums, flat
    (shares, units, chunks, panels, rows of Co / groups, columns), the filter's. needs: of x, of slopes, of filter.
    """
    batch, _, pixels = out_grad.shape
    units, threads = sizes[0] // sizes[3], places.shape[0]
    for task in prange(shares * units):
        share, owner, thread = task // units, task % units, get_thread_id()
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
                    share,
                    first,
                    min(block, pixels - first),
                    block,
                    at_once,
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
