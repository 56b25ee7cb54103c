"""Numba kernels of deformable_conv for the CPU.

Images are stored channels last, padded by a pixel on all sides and by one more row below: a corner is a
run of channels that vectors read, no test is needed, and a sample outside reads the two rows of
zeros at the end, whatever the image contains. A block of pixels is sampled some taps at a time and
multiplied while it is in cache. 16-bit floats arrive in the format of `opgauge.ops._cpu.jit.storage`.
"""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
from numba import get_num_threads, get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.tile.jit import (
    LANES_BYTES,
    ROWS,
    load,
    multiply_add,
    multiply_tile,
    spread,
    store,
    tile_columns,
    total,
)

uintp = np.uintp
"""Unsigned index type, without the test for negative indices, so that loops vectorise."""
CHANNELS = 16
"""Channels transposed at once."""
DEPTH = 256
"""Depth of a partial product: its operands fit the first-level cache, its rounding is that of a short sum."""


@njit(**INNER)
def _lay_row(x: Any, n: int, h: int, image: Any, start: int) -> None:
    channels, width = x.shape[1], x.shape[3]
    for base in range(0, channels, CHANNELS):
        for w in range(width):
            for channel in range(base, min(base + CHANNELS, channels)):
                image[uintp(start + w * channels + channel)] = widen(x[n, uintp(channel), h, w])


@njit(cache=True, parallel=True, error_model="numpy")
def lay_out(x: Any, image: Any) -> None:
    """Copy x (N, C, H, W) to image, flat (N, H + 3, W + 2, C); the margins are not written."""
    batch, channels, height, width = x.shape
    for task in prange(batch * height):
        n, h = task // height, task % height
        _lay_row(x, n, h, image, ((n * (height + 3) + h + 1) * (width + 2) + 1) * channels)


@njit(**INNER)
def _pack_panel(weight: Any, group: int, per_group: int, first: int, columns: int, packed: Any, start: int) -> None:
    _, depth, taps = weight.shape
    for channel in range(depth):
        for tap in range(taps):
            place, row = start + (tap * depth + channel) * columns, group * per_group + first
            for column in range(min(columns, per_group - first)):
                packed[uintp(place + column)] = widen(weight[uintp(row + column), channel, tap])


@njit(cache=True, parallel=True, error_model="numpy")
def pack(weight: Any, groups: int, packed: Any) -> None:
    """Pack weight (Co, C / groups, taps) to flat (groups, panels, taps, C / groups, a tile's columns of Co)."""
    out_channels, depth, taps = weight.shape
    columns, per_group = tile_columns(packed), out_channels // groups
    panels = -(-per_group // columns)
    for task in prange(groups * panels):
        group, panel = task // panels, task % panels
        _pack_panel(weight, group, per_group, panel * columns, columns, packed, task * taps * depth * columns)


@njit(**INNER)
def _locate(
    offset: Any, mask: Any, n: int, row: int, tap: int, first: int, count: int, numbers: Any, places: Any, weights: Any
) -> None:
    """Locate the samples of `count` pixels: places (count,) and weights (7, count).

    The weights are those of the four corners times the mask, the fractions of row and column, and the mask.
    offset (N, dg taps, 2, P), mask (N, dg taps, P) or empty; row is that of the group and tap in both.
    """
    height, width, out_width, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = numbers
    base_h = tap // kernel_w * dilation_h - pad_h
    base_w = tap % kernel_w * dilation_w - pad_w
    for index in range(count):
        pixel = uintp(first + index)
        h = (first + index) // out_width * stride_h + base_h + widen(offset[n, row, 0, pixel])
        w = (first + index) % out_width * stride_w + base_w + widen(offset[n, row, 1, pixel])
        inside = h > -1 and h < height and w > -1 and w < width
        h, w = (h, w) if inside else (0.0, 0.0)
        h0, w0 = floor(h), floor(w)
        lh, lw = h - h0, w - w0
        m = widen(mask[n, row, pixel]) if mask.size else weights.dtype.type(1)
        places[index] = (int(h0) + 1) * (width + 2) + int(w0) + 1 if inside else (height + 1) * (width + 2)
        weights[0, index] = (1 - lh) * (1 - lw) * m
        weights[1, index] = (1 - lh) * lw * m
        weights[2, index] = lh * (1 - lw) * m
        weights[3, index] = lh * lw * m
        weights[4, index], weights[5, index], weights[6, index] = lh, lw, m


@njit(**INNER)
def _blend(
    image: Any,
    start: int,
    pitch: int,
    channels: int,
    length: int,
    places: Any,
    weights: Any,
    column: Any,
    target: int,
    row: int,
    count: int,
) -> None:
    """Sample `length` channels from `start` on, each pixel into a row of `column`."""
    step = LANES_BYTES // image.itemsize
    for index in range(count):
        p, q = start + places[index] * channels, target + index * row
        w00, w01, w10, w11 = weights[0, index], weights[1, index], weights[2, index], weights[3, index]
        v00, v01, v10, v11 = spread(w00), spread(w01), spread(w10), spread(w11)
        whole = length - length % step
        for c in range(0, whole, step):
            upper = multiply_add(
                load(image, p + c + channels), v01, multiply_add(load(image, p + c), v00, spread(image.dtype.type(0)))
            )
            lower = multiply_add(load(image, p + c + pitch), v10, upper)
            store(column, q + c, multiply_add(load(image, p + c + pitch + channels), v11, lower))
        for c in range(whole, length):
            upper = image[p + c] * w00 + image[p + c + channels] * w01
            column[q + c] = upper + image[p + c + pitch] * w10 + image[p + c + pitch + channels] * w11


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
            _locate(offset, mask, n, part * taps + now, now, first, count, numbers, places, weights)
            place = target + (group * (end - tap) + now - tap) * per_group + channel % per_group
            start = n * (height + 3) * pitch + channel
            _blend(image, start, pitch, channels, length, places, weights, column, place, (end - tap) * channels, count)


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


@njit(cache=True, parallel=True, error_model="numpy")
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


@njit(**INNER)
def _pack_for_unit(
    weight: Any, group: int, per_group: int, channel: int, unit: int, tap: int, end: int, packed: Any, start: int
) -> None:
    columns = tile_columns(packed)
    for now in range(tap, end):
        for index in range(unit):
            j = (now - tap) * unit + index
            place = start + j // columns * per_group * columns + j % columns
            for row in range(per_group):
                packed[place + row * columns] = widen(weight[group * per_group + row, channel + index, now])


@njit(cache=True, parallel=True, error_model="numpy")
def pack_transposed(weight: Any, groups: int, unit: int, at_once: int, packed: Any) -> None:
    """Pack weight (Co, C / groups, taps) to flat (units, chunks of taps, panels, Co / groups, a tile's columns).

    A unit is as many channels; its columns for one chunk are (taps, channels), padded to whole panels.
    """
    out_channels, depth, taps = weight.shape
    per_group, columns, chunks = out_channels // groups, tile_columns(packed), -(-taps // at_once)
    size = -(-at_once * unit // columns) * columns * per_group
    for task in prange(depth * groups // unit * chunks):
        channel, tap = task // chunks * unit, task % chunks * at_once
        end = min(tap + at_once, taps)
        _pack_for_unit(weight, channel // depth, per_group, channel % depth, unit, tap, end, packed, task * size)


@njit(**INNER)
def _take(
    out_grad: Any, n: int, channel: int, rows: int, first: int, count: int, given: Any, start: int, pitch: int
) -> None:
    for row in range(rows):
        for index in range(count):
            given[uintp(start + row * pitch + index)] = widen(out_grad[n, channel + row, uintp(first + index)])


@njit(**INNER)
def _spread_back(
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
    """Gradient of one pixel's sample of a unit's channels at one tap.

    Adds to the gradients of the image, the offset and the mask; also stores the sample itself.
    """
    need_x, need_slopes, need_filter = needs
    step, columns = LANES_BYTES // image.itemsize, tile_columns(image)
    w00, w01, w10, w11 = weights[0, index], weights[1, index], weights[2, index], weights[3, index]
    v00, v01, v10, v11 = spread(w00), spread(w01), spread(w10), spread(w11)
    none = spread(image.dtype.type(0))
    d00, d01, d10, d11 = none, none, none, none
    whole = unit - unit % step if base % step == 0 and unit % step == 0 else 0
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
            _locate(offset, mask, n, part * taps + now, now, first, count, numbers, places, weights)
            for index in range(count):
                start = n * (height + 3) * pitch + places[index] * channels + channel
                _spread_back(
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


@njit(cache=True, parallel=True, error_model="numpy")
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


@njit(cache=True, parallel=True, error_model="numpy")
def clear(array: Any) -> None:
    """Set flat `array` to zero."""
    for index in prange(array.size):
        array[index] = 0


@njit(**INNER)
def _collect_row(image_grad: Any, start: int, x_grad: Any, n: int, h: int) -> None:
    channels, width = x_grad.shape[1], x_grad.shape[3]
    for base in range(0, channels, CHANNELS):
        for w in range(width):
            for channel in range(base, min(base + CHANNELS, channels)):
                value, where = image_grad[uintp(start + w * channels + channel)], uintp(channel)
                x_grad[n, where, h, w] = narrow(value, x_grad[n, where, h, w])


@njit(cache=True, parallel=True, error_model="numpy")
def collect_image(image_grad: Any, x_grad: Any) -> None:
    """The inverse of `lay_out`."""
    batch, channels, height, width = x_grad.shape
    for task in prange(batch * height):
        n, h = task // height, task % height
        _collect_row(image_grad, ((n * (height + 3) + h + 1) * (width + 2) + 1) * channels, x_grad, n, h)


@njit(cache=True, parallel=True, error_model="numpy")
def collect_slopes(slopes: Any, first: int, end: int, grad: Any) -> None:
    """Sum kinds `first` to `end` of slopes over the units of each deformable group: grad (N, dg, taps, kinds, P)."""
    batch, parts, taps, _, pixels = grad.shape
    units = slopes.shape[0] // parts
    for task in prange(batch * parts * taps):
        n, part, tap = task // (parts * taps), task // taps % parts, task % taps
        for kind in range(first, end):
            for pixel in range(pixels):
                value = slopes[part * units, n, tap, kind, pixel]
                for unit in range(1, units):
                    value += slopes[part * units + unit, n, tap, kind, pixel]
                grad[n, part, tap, kind - first, pixel] = narrow(value, grad[n, part, tap, kind - first, pixel])


@njit(cache=True, parallel=True, error_model="numpy")
def collect_filter(filter_sums: Any, shares: int, unit: int, at_once: int, groups: int, grad: Any) -> None:
    """Sum over the shares, transposed to (Co, C / groups, taps)."""
    out_channels, depth, taps = grad.shape
    per_group, columns, chunks = out_channels // groups, tile_columns(filter_sums), -(-taps // at_once)
    rows, panels = -(-per_group // ROWS) * ROWS, -(-at_once * unit // columns)
    size = filter_sums.size // shares
    for out_channel in prange(out_channels):
        group, row = out_channel // per_group, out_channel % per_group
        for channel in range(depth):
            owner, inside = (group * depth + channel) // unit, channel % unit
            for tap in range(taps):
                j = tap % at_once * unit + inside
                panel = (owner * chunks + tap // at_once) * panels + j // columns
                place = (panel * rows + row) * columns + j % columns
                value = filter_sums[place]
                for share in range(1, shares):
                    value += filter_sums[share * size + place]
                grad[out_channel, channel, tap] = narrow(value, grad[out_channel, channel, tap])


def threads() -> int:
    """Threads that these kernels may use."""
    return int(get_num_threads())
