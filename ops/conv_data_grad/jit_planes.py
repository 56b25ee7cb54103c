"""Numba kernels for convolutions of stride 1 with few channels per group: tiles of channels by pixels of a plane.

A group's dy is laid out with margins, so that each tap is one distance for all pixels, those between rows included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, borrowed
from opgauge.ops._cpu.jit_store import copy_row, store_sums
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, LISTED_ROWS, listed_columns, multiply_listed
from opgauge.ops._cpu.tile.jit_lanes import turn_block

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
PIXELS = 240
"""Pixels whose sums are in the first-level cache: whole tiles."""


@njit(**INNER)
def _pack(weight: Any, group: int, per_group: int, outs: int, taps: int, last: Any, packed: Any) -> None:
    blocks = -(-per_group // LISTED_ROWS)
    of_row, of_tap = (1, per_group) if last else (taps, 1)
    for block in range(blocks):
        used = min(LISTED_ROWS, per_group - block * LISTED_ROWS)
        for out in range(outs):
            first = (group * outs + out) * per_group * taps + block * LISTED_ROWS * of_row
            for tap in range(taps):
                place = ((group * blocks + block) * taps + tap) * outs + out
                for row in range(used):
                    packed[uintp(place * LISTED_ROWS + row)] = weight[uintp(first + row * of_row + tap * of_tap)]


@parallel(error_model="numpy")
def pack_groups(weight: Any, groups: int, per_group: int, outs: int, last: Any, packed: Any) -> None:
    """Pack flat weight (groups outs, channels, taps) to (groups, blocks, taps, outs, a tile's rows of channels).

    Its taps come before channels if `last`.
    """
    taps = weight.size // (groups * outs * per_group)
    for group in prange(groups):
        _pack(weight, np.int64(group), per_group, outs, taps, last, packed)


@njit(**INNER)
def _lay_out(dy: Any, start: int, outs: int, lengths: Any, padded: Any, margins: Any, image: Any, to: int) -> None:
    """Copy the channels of dy from `start` on to image, each (*padded), `margins` away from its start."""
    depth, height, width = lengths
    for out in range(outs):
        for d in range(depth):
            for h in range(height):
                given = start + ((out * depth + d) * height + h) * width
                row = ((out * padded[0] + d + margins[0]) * padded[1] + h + margins[1]) * padded[2] + margins[2]
                copy_row(dy, given, width, image, to + row)


@njit(**INNER)
def _lay_out_last(
    dy: Any, start: int, channels: int, outs: int, lengths: Any, padded: Any, margins: Any, image: Any, to: int
) -> None:
    """Like `_lay_out`, of `outs` neighbours among the channels of each pixel from `start` on."""
    depth, height, width = lengths
    for d in range(depth):
        for h in range(height):
            row = ((d + margins[0]) * padded[1] + h + margins[1]) * padded[2] + margins[2]
            volume = padded[0] * padded[1] * padded[2]
            turn_block(dy, start + (d * height + h) * width * channels, channels, width, outs, image, to + row, volume)


@njit(**INNER)
def _store(
    total: Any, place: int, line: int, left: int, right: int, size: Any, addend: Any, dx: Any, channel: int, used: int
) -> None:
    """Store sums from `place` on to columns `left` to `right` of a row of dx, of `used` channels from `channel` on."""
    for row in range(used):
        target = ((channel + row) * size[0] * size[1] + line) * size[2] + left
        if addend.size:
            store_sums(total, place + row * PIXELS, addend, dx, target, right - left)
        else:
            copy_row(total, place + row * PIXELS, right - left, dx, target)


@njit(**INNER)
def _move(
    begins: Any,
    first: int,
    count: int,
    numbers: Any,
    image: int,
    channel: int,
    used: int,
    addend: Any,
    dx: Any,
    total: Any,
    place: int,
) -> None:
    """Store `count` sums of padded pixels from `first` on to dx; or, channels last, begin them with the addend."""
    channels, size, padded = numbers[1] * numbers[2], numbers[4:7], numbers[10:13]
    for row in range(first // padded[2], (first + count - 1) // padded[2] + 1):
        d, h = row // padded[1], row % padded[1]
        left, right = max(first - row * padded[2], 0), min(first + count - row * padded[2], size[2])
        if d >= size[0] or h >= size[1] or left >= right:
            continue
        line, given = d * size[1] + h, place + row * padded[2] + left - first
        if not numbers[16]:
            _store(total, given, line, left, right, size, addend, dx, image * channels + channel, used)
            continue
        at = ((image * size[0] * size[1] + line) * size[2] + left) * channels + channel
        if begins:
            turn_block(addend, at, channels, right - left, used, total, given, PIXELS)
        else:
            turn_block(total, given, PIXELS, used, right - left, dx, at, channels)


@njit(**INNER)
def _convolve_group(
    numbers: Any,
    places: Any,
    packed: Any,
    number: int,
    addend: Any,
    dx: Any,
    given: Any,
    to: int,
    total: Any,
    place: int,
) -> None:
    """One group of one image of dx, from dy as laid out."""
    per_group, size, padded = numbers[2], numbers[4:7], numbers[10:13]
    image, group = number // numbers[1], number % numbers[1]
    columns = listed_columns(given)
    blocks, pixels = -(-per_group // LISTED_ROWS), ((size[0] - 1) * padded[1] + size[1] - 1) * padded[2] + size[2]
    for block in range(blocks):
        weights, before = (group * blocks + block) * places.size * LISTED_ROWS, block * LISTED_ROWS
        channel, used = group * per_group + before, min(LISTED_ROWS, per_group - before)
        for first in range(0, pixels, PIXELS):
            count = min(PIXELS, pixels - first)
            begins = numbers[16] and addend.size > 0
            if begins:
                _move(True, first, count, numbers, image, channel, used, addend, dx, total, place)
            for column in range(0, count, columns):
                for step in range(0, places.size, DEPTH):
                    multiply_listed(
                        packed,
                        weights + step * LISTED_ROWS,
                        given,
                        to + first + column,
                        places,
                        step,
                        min(DEPTH, places.size - step),
                        total,
                        place + column,
                        PIXELS,
                        begins or step > 0,
                    )
            _move(False, first, count, numbers, image, channel, used, addend, dx, total, place)


@njit(**INNER)
def _lay_group(numbers: Any, dy: Any, number: int, given: Any, to: int) -> None:
    groups, outs, lengths, padded, margins = numbers[1], numbers[3], numbers[7:10], numbers[10:13], numbers[13:16]
    pixels = lengths[0] * lengths[1] * lengths[2]
    if numbers[16]:
        start = number // groups * pixels * groups * outs + number % groups * outs
        _lay_out_last(dy, start, groups * outs, outs, lengths, padded, margins, given, to)
    else:
        _lay_out(dy, number * outs * pixels, outs, lengths, padded, margins, given, to)


@parallel(error_model="numpy")
def convolve_groups(
    numbers: Any, places: Any, dy: Any, packed: Any, addend: Any, dx: Any, given: Any, total: Any, threads: int
) -> None:
    """Compute dx one group of an image at a time; arrays are flat, the addend may be empty.

    numbers: images, groups, channels and outs of a group, sizes of dx and of dy, padded sizes, margins, and whether
    channels are last. places: distance in dy as laid out of each tap's output channels. packed by `pack_groups`.
    given, total: scratch of each thread; given is zero where nothing is laid.
    """
    source, factors, added, target = borrowed(dy), borrowed(packed), borrowed(addend), borrowed(dx)
    distances, laid, sums = borrowed(places), borrowed(given), borrowed(total)
    for task in prange(numbers[0] * numbers[1]):
        thread = get_thread_id() if threads > 1 else 0
        to, place = thread * (laid.size // threads), thread * (sums.size // threads)
        _lay_group(numbers, source, np.int64(task), laid, to)
        _convolve_group(numbers, distances, factors, np.int64(task), added, target, laid, to, sums, place)
