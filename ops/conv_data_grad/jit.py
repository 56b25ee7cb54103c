"""Numba kernels of conv_data_grad for the CPU.

Without strides and groups the convolution is a product of what can be read in order: by `multiply_pixels`
where a pixel of dx needs one of dy and pixels lie next to each other, by `multiply_rows` where channels
do or were made to. The addend is where a sum starts. Otherwise `fold` adds up columns that a BLAS made.
16-bit floats come as `opgauge.ops._cpu.jit.storage` views them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_num_threads, get_thread_id, njit, prange
from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.tile.jit import GROUP, ROWS, lanes_of, multiply_tile, multiply_tile_onto, tile_columns, turn

uintp = np.uintp
"""Of an index, it says that it is not from the end: one comparison less, and loops vectorise."""
LAID_ROWS = 8
"""Rows that are laid out together: so much of a channel lies together."""
DEPTH = 256
"""Depth of a partial product: its operands stay in the nearest cache, its rounding is that of a short sum."""


@njit(**INNER)
def _add_spread(row: Any, at: int, stride: int, given: Any, first: int, count: int) -> None:
    """row[at::stride] += given[first : first + count]; stride 1 apart, for vector instructions."""
    if stride == 1:
        for index in range(uintp(count)):
            row[uintp(at) + index] += given[uintp(first) + index]
    else:
        for index in range(count):
            row[uintp(at + index * stride)] += given[uintp(first + index)]


@njit(**INNER)
def _fold_plane(
    column: Any, addend: Any, dx: Any, plane: int, sizes: Any, strides: Any, padding: Any, dilation: Any
) -> None:
    depth, height, width, kernel_d, kernel_h, kernel_w, out_d, out_h, out_w = sizes
    channel, d, start = plane // depth, plane % depth, plane * height * width
    if addend.size:
        for index in range(uintp(start), uintp(start + height * width)):
            dx[index] = addend[index]
    else:
        for index in range(uintp(start), uintp(start + height * width)):
            dx[index] = 0
    for i in range(kernel_d):
        od = d + padding[0] - i * dilation[0]
        if od % strides[0] != 0 or od < 0 or od // strides[0] >= out_d:
            continue
        for j in range(kernel_h):
            for oh in range(out_h):
                h = oh * strides[1] - padding[1] + j * dilation[1]
                if h < 0 or h >= height:
                    continue
                for k in range(kernel_w):
                    left = padding[2] - k * dilation[2]
                    first = max(-(-left // strides[2]), 0)
                    count = min((width - 1 + left) // strides[2] + 1, out_w) - first
                    if count > 0:
                        tap = ((channel * kernel_d + i) * kernel_h + j) * kernel_w + k
                        given = ((tap * out_d + od // strides[0]) * out_h + oh) * out_w + first
                        at = start + h * width + first * strides[2] - left
                        _add_spread(dx, at, strides[2], column, given, count)


@njit(cache=True, parallel=True, error_model="numpy")
def fold(
    column: Any,
    addend: Any,
    dx: Any,
    planes: int,
    sizes: Any,
    strides: tuple[int, int, int],
    padding: tuple[int, int, int],
    dilation: tuple[int, int, int],
) -> None:
    """Fold columns (C, kernel, output) into dx (C, D, H, W), all flat, on top of the addend unless that is empty.

    planes: C D. sizes: of dx, of the kernel and of the output.
    """
    for plane in prange(planes):
        _fold_plane(column, addend, dx, np.int64(plane), sizes, strides, padding, dilation)


@njit(cache=True, parallel=True, error_model="numpy")
def add_in_place(total: Any, addend: Any) -> None:
    """total += addend, flat."""
    for index in prange(total.size):
        total[index] += addend[index]


@njit(**INNER)
def _pack_rows(weight: Any, block: int, end: int, packed: Any) -> None:
    out_channels, channels = weight.shape
    for row in range(out_channels):
        for channel in range(block * ROWS, end * ROWS):
            value = widen(weight[row, channel]) if channel < channels else packed.dtype.type(0)
            packed[(channel // ROWS * out_channels + row) * ROWS + channel % ROWS] = value


@njit(cache=True, parallel=True, error_model="numpy")
def pack_rows(weight: Any, at_once: int, packed: Any) -> None:
    """weight (Co, C) to flat (blocks, Co, a tile's rows of C); `at_once` blocks are read together."""
    blocks = packed.size // (weight.shape[0] * ROWS)
    for task in prange(-(-blocks // at_once)):
        _pack_rows(weight, task * at_once, min((task + 1) * at_once, blocks), packed)


@njit(**INNER)
def _take_pixels(dy: Any, n: int, first: int, count: int, given: Any, start: int) -> None:
    columns, channels = tile_columns(given), dy.shape[1]
    for channel in range(channels):
        for panel in range(-(-count // columns)):
            place, pixel = start + (panel * channels + channel) * columns, first + panel * columns
            for column in range(min(columns, count - panel * columns)):
                given[uintp(place + column)] = widen(dy[n, channel, uintp(pixel + column)])


@njit(**INNER)
def _begin(addend: Any, n: int, channel: int, first: int, count: int, tile: Any, start: int) -> None:
    if addend.size:
        for column in range(count):
            tile[uintp(start + column)] = widen(addend[n, channel, uintp(first + column)])
    else:
        for column in range(count):
            tile[uintp(start + column)] = 0


@njit(**INNER)
def _multiply_through(
    packed: Any,
    now: int,
    out_channels: int,
    addend: Any,
    dx: Any,
    n: int,
    first: int,
    done: int,
    count: int,
    pitch: int,
    given: Any,
    start: int,
    tile: Any,
    place: int,
) -> None:
    columns, rows = tile_columns(given), min(ROWS, dx.shape[1] - now * ROWS)
    for row in range(rows):
        _begin(addend, n, now * ROWS + row, first + done, count - done, tile, place + row * pitch + done)
    for depth in range(0, out_channels, DEPTH):
        for panel in range(done // columns, -(-count // columns)):
            multiply_tile(
                packed,
                (now * out_channels + depth) * ROWS,
                1,
                ROWS,
                given,
                start + (panel * out_channels + depth) * columns,
                columns,
                min(DEPTH, out_channels - depth),
                tile,
                place + panel * columns,
                pitch,
            )
    for row in range(rows):
        for column in range(done, count):
            value, index = tile[uintp(place + row * pitch + column)], uintp(first + column)
            dx[n, now * ROWS + row, index] = narrow(value, dx[n, now * ROWS + row, index])


@njit(**INNER)
def _multiply_pixels(
    packed: Any,
    dy: Any,
    addend: Any,
    dx: Any,
    direct: Any,
    n: int,
    first: int,
    count: int,
    block: int,
    end: int,
    pitch: int,
    given: Any,
    start: int,
    tile: Any,
    place: int,
) -> None:
    _take_pixels(dy, n, first, count, given, start)
    (_, channels, length), out_channels, columns = dx.shape, dy.shape[1], tile_columns(given)
    base, out = direct
    for now in range(block, end):
        done = count - count % columns if out.size and (now + 1) * ROWS <= channels else 0
        for panel in range(done // columns):
            target = (n * channels + now * ROWS) * length + first + panel * columns
            for depth in range(0, out_channels, DEPTH):
                multiply_tile_onto(
                    packed,
                    (now * out_channels + depth) * ROWS,
                    1,
                    ROWS,
                    given,
                    start + (panel * out_channels + depth) * columns,
                    columns,
                    min(DEPTH, out_channels - depth),
                    out if depth else base,
                    target,
                    length,
                    out,
                    target,
                    length,
                )
        if done < count:
            _multiply_through(
                packed, now, out_channels, addend, dx, n, first, done, count, pitch, given, start, tile, place
            )


@njit(cache=True, parallel=True, error_model="numpy")
def multiply_pixels(
    packed: Any,
    dy: Any,
    addend: Any,
    dx: Any,
    direct: Any,
    pixels: int,
    parts: int,
    threads: int,
    given: Any,
    tile: Any,
) -> None:
    """dx (N, C, P) = filter dy (N, Co, P) + addend (N, C, P) or empty, `pixels` at a time.

    packed as by `pack_rows`; each block of pixels is `parts` tasks. direct: addend and dx, flat, where tiles can be
    written to them, else both empty. given, tile: scratch of each thread.
    """
    batch, channels, length = dx.shape
    spans, blocks = -(-length // pixels), -(-channels // ROWS)
    for task in prange(batch * spans * parts):
        span, part, thread = task // parts, task % parts, get_thread_id()
        first = span % spans * pixels
        _multiply_pixels(
            packed,
            dy,
            addend,
            dx,
            direct,
            span // spans,
            first,
            min(pixels, length - first),
            blocks * part // parts,
            blocks * (part + 1) // parts,
            pixels,
            given,
            thread * (given.size // threads),
            tile,
            thread * (tile.size // threads),
        )


@njit(cache=True, parallel=True, error_model="numpy")
def pack_columns(weight: Any, order: Any, packed: Any) -> None:
    """weight (Co, C, taps) or a view of that, taps in `order`, to flat (panels, taps, Co, a tile's columns of C)."""
    out_channels, channels, taps = weight.shape
    columns = tile_columns(packed)
    panels = -(-channels // columns)
    for task in prange(panels * taps):
        panel, tap = task // taps, order[task % taps]
        for row in range(out_channels):
            place = (task * out_channels + row) * columns
            for column in range(min(columns, channels - panel * columns)):
                packed[uintp(place + column)] = widen(weight[row, uintp(panel * columns + column), tap])


@njit(**INNER)
def _lay_rows(
    dy: Any, start: int, pitch: int, channels: int, rows: int, width: int, image: Any, place: int, step: int
) -> None:
    lanes = lanes_of(image)
    turned, moved = channels - channels % lanes, width - width % lanes
    for channel in range(0, turned, lanes):
        for row in range(rows):
            given, laid = start + channel * pitch + row * width, place + row * step + channel
            for w in range(0, moved, lanes):
                turn(dy, given + w, pitch, image, laid + w * channels, channels)
    for row in range(rows):
        given, laid = start + row * width, place + row * step
        for channel in range(channels):
            for w in range(moved if channel < turned else 0, width):
                image[uintp(laid + w * channels + channel)] = widen(dy[uintp(given + channel * pitch + w)])


@njit(cache=True, parallel=True, error_model="numpy")
def lay_out(dy: Any, image: Any, padded: Any, margins: Any, last: Any) -> None:
    """dy to image, flat (N, *padded, Co), `margins` away from its start.

    dy is (N, D, H, W, Co) if `last`, else (N, Co, D, H, W).
    """
    depth, height = dy.shape[1 if last else 2], dy.shape[2 if last else 3]
    width, channels = (dy.shape[3], dy.shape[4]) if last else (dy.shape[4], dy.shape[1])
    flat = dy.reshape(-1)
    groups = -(-height // LAID_ROWS)
    for task in prange(dy.shape[0] * depth * groups):
        n, d, h = task // (depth * groups), task // groups % depth, task % groups * LAID_ROWS
        rows, step = min(LAID_ROWS, height - h), padded[2] * channels
        place = (((n * padded[0] + d + margins[0]) * padded[1] + h + margins[1]) * padded[2] + margins[2]) * channels
        first = (n * depth + d) * height + h
        if last:
            for row in range(rows):
                given, laid = uintp((first + row) * width * channels), uintp(place + row * step)
                for index in range(uintp(width * channels)):
                    image[laid + index] = widen(flat[given + index])
        else:
            start = (n * channels * depth * height + d * height + h) * width
            _lay_rows(flat, start, depth * height * width, channels, rows, width, image, place, step)


@njit(**INNER)
def _finish_row(
    addend: Any,
    dx: Any,
    n: int,
    pixel: int,
    end: int,
    column: int,
    width: int,
    last: Any,
    tile: Any,
    place: int,
    pitch: int,
) -> None:
    if last:
        for index in range(end - pixel):
            for channel in range(width):
                value, where = tile[uintp(place + index * pitch + channel)], uintp(column + channel)
                if addend.size:
                    value += widen(addend[n, uintp(pixel + index), where])
                dx[n, uintp(pixel + index), where] = narrow(value, dx[n, uintp(pixel + index), where])
    else:
        for channel in range(uintp(width)):
            given, result = uintp(place) + channel * uintp(pitch), dx[n, uintp(column) + channel]
            if addend.size:
                added = addend[n, uintp(column) + channel]
                for index in range(uintp(end - pixel)):
                    where = uintp(pixel) + index
                    result[where] = narrow(tile[given + index] + widen(added[where]), result[where])
            else:
                for index in range(uintp(end - pixel)):
                    where = uintp(pixel) + index
                    result[where] = narrow(tile[given + index], result[where])


@njit(**INNER)
def _place(pixel: int, first: int, end: int, lines: tuple[int, int]) -> int:
    """Where a group of pixels lies in a plane of the image; that of the tile's first where nothing is left of it."""
    counted = pixel if pixel < end else first
    return counted // lines[0] * lines[1] + counted % lines[0]


@njit(**INNER)
def _multiply_rows(
    image: Any,
    base: int,
    shifts: Any,
    reach: Any,
    plane: int,
    lines: tuple[int, int],
    depth: int,
    packed: Any,
    panel: int,
    panels: int,
    out_channels: int,
    begin: int,
    count: int,
    addend: Any,
    out: Any,
    place: int,
    pitch: int,
) -> None:
    """Rows of products on top of the addend, which lies as they do in `out`, from `place` on, or is empty.

    lines: pixels of a row of dx as they are counted, from `begin` on, and as they lie in the image. A tile takes
    all its partial sums before the next begins: it stays in the nearest cache, the factors do in the next. Runs of
    which it would see margins alone are left out, but for one where it sees nothing else.
    """
    columns, last = tile_columns(image), shifts.size - 1
    for now in range(panels):
        for row in range(0, count, ROWS):
            target, end = place + row * pitch + now * columns, begin + count
            top, bottom = (begin + row) // lines[0], (begin + min(row + ROWS, count) - 1) // lines[0]
            starts = (
                base + _place(begin + row, begin + row, end, lines) * out_channels,
                base + _place(begin + row + GROUP, begin + row, end, lines) * out_channels,
                base + _place(begin + row + 2 * GROUP, begin + row, end, lines) * out_channels,
            )
            begun = False
            for run in range(shifts.size):
                seen = reach[run, 0] <= plane < reach[run, 1] and reach[run, 2] <= bottom and top < reach[run, 3]
                if not seen and (begun or run < last):
                    continue
                weight = ((panel + now) * shifts.size + run) * depth * columns
                for first in range(0, depth, DEPTH):
                    multiply_tile_onto(
                        image,
                        (
                            starts[0] + shifts[run] + first,
                            starts[1] + shifts[run] + first,
                            starts[2] + shifts[run] + first,
                        ),
                        out_channels,
                        1,
                        packed,
                        weight + first * columns,
                        columns,
                        min(DEPTH, depth - first),
                        out if begun or first else addend,
                        target,
                        pitch,
                        out,
                        target,
                        pitch,
                    )
                begun = True


@njit(**INNER)
def _turn_row(tile: Any, start: int, pitch: int, count: int, used: int, out: Any, place: int, length: int) -> None:
    """`count` pixels of `used` channels, which are the tile's columns from `start` on, to flat (channels, length)."""
    lanes = lanes_of(tile)
    whole = used - used % lanes if count >= lanes else 0
    for channel in range(0, whole, lanes):
        for index in range(0, count, lanes):
            at = min(index, count - lanes)  # the last pixels once more where they are no square
            turn(tile, start + at * pitch + channel, pitch, out, place + channel * length + at, length)
    for channel in range(whole, used):
        for index in range(count):
            out[uintp(place + channel * length + index)] = tile[uintp(start + index * pitch + channel)]


@njit(**INNER)
def _finish_rows(
    addend: Any,
    dx: Any,
    flat: Any,
    n: int,
    plane: int,
    first: int,
    count: int,
    column: int,
    used: int,
    sizes: Any,
    last: Any,
    tile: Any,
    place: int,
    pitch: int,
    turned: int,
    block: int,
) -> None:
    _, rows, width, line, _, _, _ = sizes
    turns = flat.size and not last
    if not last and not turns:
        lanes = lanes_of(tile)
        for index in range(0, count, lanes):
            for channel in range(0, pitch, lanes):
                turn(tile, place + index * pitch + channel, pitch, tile, turned + channel * block + index, block)
    for row in range(first // line, (first + count - 1) // line + 1):
        left = max(first - row * line, 0)
        right = min(first + count - row * line, width)
        pixel = (plane * rows + row) * width
        if right > left:
            index = row * line + left - first
            if turns:
                length = dx.shape[2]
                target = (n * dx.shape[1] + column) * length + pixel + left
                _turn_row(tile, place + index * pitch, pitch, right - left, used, flat, target, length)
                continue
            given, step = (place + index * pitch, pitch) if last else (turned + index, block)
            _finish_row(addend, dx, n, pixel + left, pixel + right, column, used, last, tile, given, step)


@njit(cache=True, parallel=True, error_model="numpy")
def multiply_rows(
    image: Any,
    shifts: Any,
    reach: Any,
    packed: Any,
    addend: Any,
    dx: Any,
    direct: Any,
    sizes: Any,
    out_channels: int,
    depth: int,
    block: int,
    at_once: int,
    threads: int,
    last: Any,
    tile: Any,
) -> None:
    """dx (N, P, C) if `last`, else (N, C, P), from image (N, planes, rows, columns, Co), flat and padded.

    A pixel at q of the image takes `depth` numbers from q + shift on, for each of `shifts`, times packed as by
    `pack_columns`. reach: for each shift the planes and rows of dx, first and end, that see more than margins so.
    sizes: planes, rows and columns of dx; columns as pixels are counted: of dx where they are whole groups of a tile's
    rows, else as padded; columns as padded, and pixels of a plane and of an image so.
    A block of pixels by `at_once` panels is a task. direct: addend and dx, flat, where tiles can be written
    to them, turned if not `last`, else both empty. tile is each thread's scratch.
    """
    planes, rows, width, line, padded, plane_size, image_size = sizes
    channels, columns = dx.shape[2] if last else dx.shape[1], tile_columns(image)
    panels, blocks = -(-channels // columns), -(-(rows * line) // block)
    parts = -(-panels // at_once)
    for task in prange(dx.shape[0] * planes * blocks * parts):
        n, plane = task // (planes * blocks * parts), task // (blocks * parts) % planes
        first, panel = task // parts % blocks * block, task % parts * at_once
        count, now = min(block, rows * line - first), min(at_once, panels - panel)
        place, pitch = get_thread_id() * (tile.size // threads), at_once * columns
        base = (n * image_size + plane * plane_size) * out_channels
        done = count - count % ROWS if last and direct[1].size else 0
        target = ((n * planes + plane) * rows * width + first) * channels + panel * columns
        factors = (image, base, shifts, reach, plane, (line, padded), depth, packed, panel, now, out_channels)
        _multiply_rows(*factors, first, done, *direct, target, channels)
        if done < count:
            first += done
            count -= done
            _multiply_rows(*factors, first, count, tile[:0], tile, place, pitch)
            used = min(now * columns, channels - panel * columns)
            turned, column, flat = place + block * pitch, panel * columns, direct[1]
            _finish_rows(
                addend, dx, flat, n, plane, first, count, column, used, sizes, last, tile, place, pitch, turned, block
            )


def threads() -> int:
    """Threads that these kernels may use."""
    return int(get_num_threads())
