"""Numba kernels of deformable_conv for the CPU.

A block of pixels is sampled some taps at a time and multiplied while it is in cache. 16-bit floats arrive in the format
of `opgauge.ops._cpu.jit.storage`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.bilinear.jit import blend, locate
from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, ROWS, multiply_tile, tile_columns
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, turn

uintp = np.uintp
"""Unsigned index type, without the test for negative indices, so that loops vectorise."""
LINE = 16
"""Elements between rows of a filter that are transposed, so that they do not share a set of the cache."""


@njit(**INNER)
def _pack_panel(weight: Any, group: int, per_group: int, first: int, columns: int, packed: Any, start: int) -> None:
    _, depth, taps = weight.shape
    used, size, lanes = min(columns, per_group - first), depth * taps, lanes_of(packed)
    pitch, whole, turned = size + LINE, used - used % lanes, size - size % lanes
    rows = np.empty(lanes * pitch, packed.dtype)
    for column in range(0, used, lanes):
        count = min(lanes, used - column)
        for index in range(count):
            row, place = uintp(group * per_group + first + column + index), uintp(index * pitch)
            for tap in range(uintp(taps)):
                for channel in range(uintp(depth)):
                    rows[place + tap * uintp(depth) + channel] = widen(weight[row, channel, tap])
        target = start + column
        for at in range(0, turned if column < whole else 0, lanes):
            turn(rows, at, pitch, packed, target + at * columns, columns)
        for at in range(turned if column < whole else 0, size):
            for index in range(count):
                packed[uintp(target + at * columns + index)] = rows[uintp(index * pitch + at)]


@parallel(error_model="numpy")
def pack(weight: Any, groups: int, packed: Any) -> None:
    """Pack weight (Co, C / groups, taps) to flat (groups, panels, taps, C / groups, a tile's columns of Co)."""
    out_channels, depth, taps = weight.shape
    columns, per_group = tile_columns(packed), out_channels // groups
    panels = -(-per_group // columns)
    for task in prange(groups * panels):
        group, panel = task // panels, task % panels
        _pack_panel(weight, group, per_group, panel * columns, columns, packed, task * taps * depth * columns)


@njit(**INNER)
def _sample(
    image: Any,
    offset: Any,
    mask: Any,
    n: int,
    first: int,
    count: int,
    tap: int,
    end: int,
    sizes: Any,
    numbers: Any,
    places: Any,
    weights: Any,
    column: Any,
    target: int,
) -> None:
    """The columns (count, groups, taps, C / groups) of taps from `tap` to `end`."""
    channels, groups, parts, length, taps = sizes
    height, width = numbers[0], numbers[1]
    per_group, pitch = channels // groups, (width + 2) * channels
    for segment in range(channels // length):
        channel = segment * length
        part, group = channel // (channels // parts), channel // per_group
        for now in range(tap, end):
            locate(offset, mask, n, part * taps + now, now, first, count, numbers, places, weights)
            place = target + (group * (end - tap) + now - tap) * per_group + channel % per_group
            start = n * (height + 3) * pitch + channel
            blend(image, start, pitch, channels, length, places, weights, column, place, (end - tap) * channels, count)


@njit(**INNER)
def _multiply(
    column: Any,
    target: int,
    packed: Any,
    tap: int,
    end: int,
    taps: int,
    groups: int,
    panels: int,
    per_group: int,
    sums: Any,
    place: int,
    count: int,
) -> None:
    """Add to sums (count, groups panels columns) the product of columns and filters over some taps."""
    columns = tile_columns(packed)
    depth, pitch = (end - tap) * per_group, groups * panels * columns
    for panel in range(groups * panels):
        given = target + panel // panels * depth
        weight = (panel * taps + tap) * per_group * columns
        for first in range(0, depth, DEPTH):
            for row in range(0, count, ROWS):
                multiply_tile(
                    column,
                    given + row * depth * groups + first,
                    depth * groups,
                    1,
                    packed,
                    weight + first * columns,
                    columns,
                    min(DEPTH, depth - first),
                    sums,
                    place + row * pitch + panel * columns,
                    pitch,
                )


@njit(**INNER)
def _convolve_block(
    image: Any,
    offset: Any,
    mask: Any,
    packed: Any,
    out: Any,
    n: int,
    first: int,
    count: int,
    at_once: int,
    sizes: Any,
    numbers: Any,
    places: Any,
    weights: Any,
    column: Any,
    target: int,
    sums: Any,
    place: int,
) -> None:
    channels, groups, _, _, taps = sizes
    per_group, columns = out.shape[1] // groups, tile_columns(packed)
    panels = -(-per_group // columns)
    pitch = groups * panels * columns
    for index in range(place, place + -(-count // ROWS) * ROWS * pitch):
        sums[uintp(index)] = 0
    for tap in range(0, taps, at_once):
        end = min(tap + at_once, taps)
        _sample(image, offset, mask, n, first, count, tap, end, sizes, numbers, places, weights, column, target)
        _multiply(column, target, packed, tap, end, taps, groups, panels, channels // groups, sums, place, count)
    for channel in range(out.shape[1]):
        group = channel // per_group
        given = place + group * panels * columns + channel % per_group
        for index in range(count):
            value, where = sums[uintp(given + index * pitch)], uintp(first + index)
            out[n, channel, where] = narrow(value, out[n, channel, where])


@parallel(error_model="numpy")
def convolve(
    image: Any,
    offset: Any,
    mask: Any,
    packed: Any,
    out: Any,
    block: int,
    at_once: int,
    sizes: Any,
    numbers: Any,
    places: Any,
    weights: Any,
    column: Any,
    sums: Any,
) -> None:
    """The whole convolution, one block of pixels at a time; the last four arrays are each thread's scratch.

    image from `lay_out`, packed from `pack`, offset (N, dg taps, 2, P), mask (N, dg taps, P) or
    empty, out (N, Co, P). sizes: channels, groups, deformable groups, channels that share both, taps.
    numbers: sizes of the image (H, W), columns of out and of the kernel, then strides, paddings, dilations.
    """
    batch, _, pixels = out.shape
    blocks = -(-pixels // block)
    threads = places.shape[0]
    for task in prange(batch * blocks):
        thread = get_thread_id()
        first = task % blocks * block
        _convolve_block(
            image,
            offset,
            mask,
            packed,
            out,
            task // blocks,
            first,
            min(block, pixels - first),
            at_once,
            sizes,
            numbers,
            places[thread],
            weights[thread],
            column,
            thread * (column.size // threads),
            sums,
            thread * (sums.size // threads),
        )


@parallel(error_model="numpy")
def sample_taps(
    image: Any, offset: Any, mask: Any, sizes: Any, numbers: Any, places: Any, weights: Any, column: Any
) -> None:
    """Sample all pixels of each image: flat column (N, taps, P, C). Arguments as for `convolve`."""
    channels, taps, pixels = sizes[0], sizes[4], offset.shape[3]
    for task in prange(offset.shape[0] * taps):
        thread, n, tap = get_thread_id(), task // taps, task % taps
        own, share = places[thread], weights[thread]
        place = task * pixels * channels
        _sample(image, offset, mask, n, 0, pixels, tap, tap + 1, sizes, numbers, own, share, column, place)


@njit(**INNER)
def _turn_pixel(column: Any, rows: Any, pixel: int, pixels: int, taps: int) -> None:
    groups, _, depth = rows.shape
    per_group, n = depth // taps, pixel // pixels
    for group in range(groups):
        for tap in range(taps):
            start = (((n * taps + tap) * pixels + pixel % pixels) * groups + group) * per_group
            for channel in range(uintp(per_group)):
                rows[group, pixel, channel * uintp(taps) + uintp(tap)] = column[uintp(start) + channel]


@parallel(error_model="numpy")
def turn_taps(column: Any, rows: Any, pixels: int, taps: int) -> None:
    """Copy flat column (N, taps, P, C) to rows (groups, N P, C / groups taps)."""
    for pixel in prange(rows.shape[1]):
        _turn_pixel(column, rows, pixel, pixels, taps)
