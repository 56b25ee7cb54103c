"""Numba kernels of deformable_conv_grad for the CPU.

A thread takes a unit of channels: it multiplies the output's gradient by the filter, a block of pixels and some taps at
a time, and adds each sample's part to the gradients while the block is in cache. Arguments are scalars and arrays: as
named tuples they cost up to a tenth of the time of small cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.bilinear.jit import locate, spread_back
from opgauge.ops._cpu.jit import INNER, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, ROWS, multiply_tile, tile_columns

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
            sampled = (now - tap) * unit, first, count, places, weights, column, target, block
            start = n * (height + 3) * pitch + channel
            spread_back(image, image_grad, start, channels, pitch, unit, *sampled, needs, slopes, n, now, owner)
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


@njit(**INNER)
def _exchange(
    rows: Any,
    group: int,
    image: int,
    first: int,
    pixels: int,
    unit: int,
    taps: int,
    column: Any,
    target: int,
    size: int,
    is_back: Any,
) -> None:
    """Copy the samples of a unit of channels from rows to columns of tiles, or back."""
    columns = tile_columns(column)
    for pixel in range(pixels):
        for c in range(unit):
            place, given = uintp(target + (c // columns * pixels + pixel) * columns + c % columns), first + c * taps
            for tap in range(uintp(taps)):
                if is_back:
                    rows[group, uintp(image + pixel), uintp(given) + tap] = column[place + tap * uintp(size)]
                else:
                    column[place + tap * uintp(size)] = rows[group, uintp(image + pixel), uintp(given) + tap]


@njit(**INNER)
def _spread_unit(
    image: Any,
    offset: Any,
    mask: Any,
    rows: Any,
    image_grad: Any,
    slopes: Any,
    n: int,
    owner: int,
    sizes: Any,
    numbers: Any,
    needs: Any,
    places: Any,
    weights: Any,
    column: Any,
    target: int,
) -> None:
    channels, groups, parts, unit, taps = sizes
    height, width, pixels = numbers[0], numbers[1], offset.shape[3]
    columns, channel, per_group = tile_columns(image), owner * unit, channels // groups
    size, pitch = -(-unit // columns) * columns * pixels, (width + 2) * channels
    group, first, part = channel // per_group, channel % per_group * taps, channel // (channels // parts)
    places_of_rows = group, n * pixels, first, pixels, unit, taps
    if needs[0] or needs[1]:
        _exchange(rows, *places_of_rows, column, target, size, False)
    for tap in range(taps):
        locate(offset, mask, n, part * taps + tap, tap, 0, pixels, numbers, places, weights)
        sampled = 0, 0, pixels, places, weights, column, target + tap * size, pixels
        start = n * (height + 3) * pitch + channel
        spread_back(image, image_grad, start, channels, pitch, unit, *sampled, needs, slopes, n, tap, owner)
    if needs[2]:
        _exchange(rows, *places_of_rows, column, target, size, True)


@parallel(error_model="numpy")
def spread_rows(
    image: Any,
    offset: Any,
    mask: Any,
    rows: Any,
    image_grad: Any,
    slopes: Any,
    sizes: Any,
    numbers: Any,
    needs: Any,
    places: Any,
    weights: Any,
    column: Any,
) -> None:
    """All gradients but the filter's, from the samples' gradients in rows (groups, N P, C / groups taps).

    Arguments as for `differentiate`. If the filter's gradient is needed, rows receives the samples.
    """
    units, threads = sizes[0] // sizes[3], places.shape[0]
    for task in prange(units * offset.shape[0]):
        thread, owner, n = get_thread_id(), task % units, task // units
        own, share = places[thread], weights[thread]
        target = thread * (column.size // threads)
        _spread_unit(
            image,
            offset,
            mask,
            rows,
            image_grad,
            slopes,
            n,
            owner,
            sizes,
            numbers,
            needs,
            own,
            share,
            column,
            target,
        )
