"""Numba kernels for convolutions of stride 1 in bfloat16: pixels of padded images by the filter, in pairs.

Pixels are counted through all padded images, one after the other, margins included. Channels last, pixels are the rows
of a product and channels of dx its columns; channels first it is the other way round, so that neither is transposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, borrowed, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_amx import BLOCK, SIDE, address_of
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, turn
from opgauge.ops._cpu.tile.jit_pairs import begin_products, end_products, multiply_block

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
NUMBERS = 64
"""Numbers of the filter that are repacked together: theirs are few enough cache lines."""


@njit(**INNER)
def pair_of(first: Any, second: Any) -> Any:
    """Two numbers in 16 bits as they lie in memory, the first one first."""
    return np.int32(np.uint32(np.uint16(first)) | np.uint32(np.uint16(second)) << np.uint32(16))


@parallel(error_model="numpy")
def lay_channels(dy: Any, image: Any, padded: Any, margins: Any, groups: int, depth: int) -> None:
    """Copy dy (N, D, H, W, Co) to image, flat (N, *padded, groups, depth), `margins` away from its start."""
    batch, planes, height, width, channels = dy.shape
    flat, each = dy.reshape(-1), channels // groups
    for task in prange(batch * planes * height):
        n, d, h = task // (planes * height), task // height % planes, task % height
        place = ((n * padded[0] + d + margins[0]) * padded[1] + h + margins[1]) * padded[2] + margins[2]
        count, step = (width * groups, each) if depth != each else (1, width * channels)
        for part in range(count):
            given, laid = uintp(task * width * channels + part * step), uintp((place * groups + part) * depth)
            for index in range(uintp(step)):
                image[laid + index] = flat[given + index]


@parallel(error_model="numpy")
def lay_pairs(dy: Any, pairs: Any, length: int, padded: Any, margins: Any, groups: int, depth: int) -> None:
    """Copy dy (N, Co, D, H, W) to pairs of channels, flat (groups, depth / 2, length of *padded images)."""
    batch, channels, planes, height, width = dy.shape
    flat, each, size = dy.reshape(-1), channels // groups, planes * height * width
    own = -(-each // 2)
    for task in prange(batch * groups * own):
        n, pair = task // (groups * own), task % (groups * own)
        channel = pair // own * each + pair % own * 2
        both = pair % own * 2 + 1 < each
        for row in range(planes * height):
            d, h = row // height, row % height
            place = ((n * padded[0] + d + margins[0]) * padded[1] + h + margins[1]) * padded[2] + margins[2]
            given = uintp((n * channels + channel) * size + row * width)
            laid = uintp((pair // own * (depth // 2) + pair % own) * length + place)
            if both:
                for w in range(uintp(width)):
                    pairs[laid + w] = pair_of(flat[given + w], flat[given + uintp(size) + w])
            else:
                for w in range(uintp(width)):
                    pairs[laid + w] = pair_of(flat[given + w], 0)


@parallel(error_model="numpy")
def pack_pairs(weight: Any, groups: int, depth: int, side: int, packed: Any) -> None:
    """Pack weight (Co, taps, C / groups) to pairs, flat (groups, tiles of C, taps, depth / 2, side)."""
    outs, taps, channels = weight.shape
    each, tiles = outs // groups, -(-channels // side)
    for task in prange(groups * tiles * taps):
        group, tile, tap = task // (tiles * taps), task // taps % tiles, task % taps
        used = min(side, channels - tile * side)
        for row in range(0, each, 2):
            place, first = uintp((task * (depth // 2) + row // 2) * side), group * each + row
            if row + 1 < each:
                for column in range(uintp(used)):
                    where = uintp(tile * side) + column
                    packed[place + column] = pair_of(weight[first, tap, where], weight[first + 1, tap, where])
            else:
                for column in range(uintp(used)):
                    packed[place + column] = pair_of(weight[first, tap, uintp(tile * side) + column], 0)


@njit(**INNER)
def _pair_up(weight: Any, row: int, end: int, first: int, count: int, pairs: Any) -> None:
    """Rows from `row` up to `end` of weight, of its numbers from `first`, two by two, to pairs (lanes, NUMBERS)."""
    for pair in range(lanes_of(pairs)):
        place, now = uintp(pair * NUMBERS), row + 2 * pair
        if now + 1 < end:
            for number in range(uintp(count)):
                where = uintp(first) + number
                pairs[place + number] = pair_of(weight[now, where], weight[now + 1, where])
        else:
            for number in range(uintp(count)):
                pairs[place + number] = pair_of(weight[now, uintp(first) + number], 0) if now < end else 0


@parallel(error_model="numpy")
def pack_rows(weight: Any, groups: int, taps: int, depth: int, packed: Any) -> None:
    """Pack weight (Co, C / groups times taps) to pairs, flat (groups, C in whole tiles, taps, depth / 2)."""
    outs, numbers = weight.shape
    each, rows, half = outs // groups, -(-numbers // taps // SIDE) * SIDE, depth // 2
    parts, lanes = -(-numbers // NUMBERS), lanes_of(packed)
    for task in prange(groups * parts):
        group, first, pairs = task // parts, task % parts * NUMBERS, np.empty(NUMBERS * lanes, np.int32)
        count, place = min(NUMBERS, numbers - first), (group * rows * taps + first) * half
        for pair in range(0, -(-each // 2), lanes):
            _pair_up(weight, group * each + 2 * pair, (group + 1) * each, first, count, pairs)
            turned = count - count % lanes if pair + lanes <= half else 0
            for number in range(0, turned, lanes):
                turn(pairs, number, NUMBERS, packed, place + number * half + pair, half)
            for number in range(turned, count):
                for index in range(min(lanes, half - pair)):
                    packed[uintp(place + number * half + pair + index)] = pairs[uintp(index * NUMBERS + number)]


@njit(**INNER)
def _write_run(
    tile: Any, place: int, step: int, addend: Any, dx: Any, start: int, pitch: int, rows: int, count: int
) -> None:
    """Write rows of `count` sums, `step` apart, plus the addend, to flat dx, `pitch` apart from `start` on."""
    for row in range(rows):
        given, laid = uintp(place + row * step), uintp(start + row * pitch)
        if addend.size:
            for index in range(uintp(count)):
                dx[laid + index] = narrow(tile[given + index] + widen(addend[laid + index]), dx[laid + index])
        else:
            for index in range(uintp(count)):
                dx[laid + index] = narrow(tile[given + index], dx[laid + index])


@njit(**INNER)
def _write_block(
    tile: Any, first: int, addend: Any, dx: Any, column: int, used: int, sizes: Any, padded: Any, last: Any
) -> None:
    """Write the block's pixels that dx has, row by row: all else is margin."""
    batch, channels, planes, height, width = sizes
    size, index, row = planes * height * width, 0, first // padded[2]
    w = first - row * padded[2]
    while index < BLOCK:
        h, plane = row % padded[1], row // padded[1]
        n, d = plane // padded[0], plane % padded[0]
        if w < width and h < height and d < planes and n < batch:
            count, pixel = min(width - w, BLOCK - index), (d * height + h) * width + w
            if last:
                start = (n * size + pixel) * channels + column
                _write_run(tile, index * BLOCK, BLOCK, addend, dx, start, channels, count, used)
            else:
                start = (n * channels + column) * size + pixel
                _write_run(tile, index, BLOCK, addend, dx, start, size, used, count)
        index += padded[2] - w
        row, w = row + 1, 0


@njit(**INNER)
def _convolve_block(
    configuration: Any,
    image: Any,
    packed: Any,
    strides: Any,
    places: Any,
    spans: Any,
    addend: Any,
    dx: Any,
    begin: int,
    end: int,
    group: int,
    channels: int,
    sizes: Any,
    padded: Any,
    last: Any,
    tile: Any,
) -> None:
    """Pixels from begin to end of a group; `strides` as in `convolve`."""
    image_group, image_pixel, image_row, image_step = strides[:4]
    packed_group, packed_block, packed_tile, packed_row, packed_step, steps = strides[4:]
    begin_products(configuration)
    for column in range(0, channels, BLOCK):
        second = packed_tile if column + SIDE < channels else 0
        given = (
            address_of(packed) + group * packed_group + column // BLOCK * packed_block,
            packed_row,
            second,
            packed_step,
        )
        used, sums = min(BLOCK, channels - column), address_of(tile)
        for first in range(begin, end, BLOCK):
            at = 2 * (first // BLOCK)
            reached = places[2 * spans[at] : 2 * spans[at + 1]]
            if not reached.size:
                continue
            start, count = address_of(image) + group * image_group + first * image_pixel, min(BLOCK, end - first)
            laid = start, image_row, SIDE * image_pixel, image_step
            if last:
                multiply_block(laid, given, reached, steps, (count, used), sums)
            else:
                multiply_block(given, laid, reached, steps, (used, count), sums)
            _write_block(tile, first, addend, dx, group * channels + column, used, sizes, padded, last)
    end_products()


@parallel(error_model="numpy")
def convolve(
    configuration: Any,
    image: Any,
    packed: Any,
    strides: Any,
    places: Any,
    spans: Any,
    addend: Any,
    dx: Any,
    groups: int,
    block: int,
    sizes: Any,
    padded: Any,
    last: Any,
) -> None:
    """Compute flat dx (N, D, H, W, C) if `last`, else (N, C, D, H, W), plus the addend, laid out alike, or empty.

    image: dy by `lay_channels` if `last`, else by `lay_pairs`; packed: the filter by `pack_pairs`, or by `pack_rows`.
    strides, in bytes: of the image, of a group, a pixel, a row of a tile and a depth; of the filter, of a group, a
    block, the second tile of AMX, a row of a tile and a depth; then the number of depths. places: distances of listed
    taps in image and filter if `last`, else in filter and image; spans: first and end of those of each block of pixels.
    `block` pixels of a group are a task.
    """
    pixels = sizes[0] * padded[0] * padded[1] * padded[2]
    blocks = -(-pixels // block)
    listed, block_spans = borrowed(places), borrowed(spans)
    for task in prange(groups * blocks):
        tile, first = np.empty(BLOCK * BLOCK, np.float32), task % blocks * block
        end = min(first + block, pixels)
        _convolve_block(
            configuration,
            image,
            packed,
            strides,
            listed,
            block_spans,
            addend,
            dx,
            first,
            end,
            task // blocks,
            sizes[1] // groups,
            sizes,
            padded,
            last,
            tile,
        )
