"""Numba kernels for convolutions of stride 1 without groups: rows of pixels, channels last, times the packed filter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, GROUP, ROWS, multiply_tile_onto, tile_columns
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, turn, turn_block

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
LAID_ROWS = 8
"""Rows per repacking task, contiguous in each channel."""


@njit(**INNER)
def _lay_rows(
    dy: Any, start: int, pitch: int, channels: int, rows: int, width: int, image: Any, place: int, step: int
) -> None:
    lanes = lanes_of(image)
    for channel in range(
        0, channels, lanes
    ):  # few at a time, as a power of two between them puts them in one cache set
        given, laid, count = start + channel * pitch, place + channel, min(lanes, channels - channel)
        for row in range(rows):
            turn_block(dy, given + row * width, pitch, count, width, image, laid + row * step, channels)


@parallel(error_model="numpy")
def lay_out(dy: Any, image: Any, padded: Any, margins: Any, last: Any) -> None:
    """Copy dy to image, flat (N, *padded, Co), `margins` away from its start.

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
    """Offset of a group of pixels in a plane of the image; beyond the plane, that of the tile's first group."""
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
    """Store rows of products plus the addend, laid out like `out` from `place` on, or empty.

    lines: pixels of a row of dx as counted, from `begin` on, and as stored in the image. A tile finishes
    all its partial sums before the next begins: it stays in the first-level cache, the factors in the second. Runs
    that read only margins are skipped, except one for pixels that read nothing else.
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
                turn_block(tile, place + index * pitch, pitch, right - left, used, flat, target, length)
                continue
            given, step = (place + index * pitch, pitch) if last else (turned + index, block)
            _finish_row(addend, dx, n, pixel + left, pixel + right, column, used, last, tile, given, step)


@parallel(error_model="numpy")
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
    """Compute dx (N, P, C) if `last`, else (N, C, P), from image (N, planes, rows, columns, Co), flat and padded.

    A pixel at q of the image multiplies `depth` numbers from q + shift, for each of `shifts`, with packed, see
    `jit_pack`. reach: for each shift the planes and rows of dx, first and end, that read more than margins.
    sizes: planes, rows and columns of dx; columns as counted: those of dx if they are whole groups of a tile's
    rows, else as padded; padded columns, and padded pixels of a plane and of an image.
    A block of pixels by `at_once` panels is a task. direct: addend and dx, flat, if tiles can be written
    to them, transposed if not `last`, else both empty. tile is each thread's scratch.
    """
    planes, rows, width, line, padded, plane_size, image_size = sizes
    channels, columns = dx.shape[2] if last else dx.shape[1], tile_columns(image)
    panels, blocks = -(-channels // columns), -(-(rows * line) // block)
    parts = -(-panels // at_once)
    for task in prange(dx.shape[0] * planes * blocks * parts):
        n, plane = task // (planes * blocks * parts), task // (blocks * parts) % planes
        first, panel = task // parts % blocks * block, task % parts * at_once
        count, now = min(block, rows * line - first), min(at_once, panels - panel)
        place, pitch = (get_thread_id() if threads > 1 else 0) * (tile.size // threads), at_once * columns
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
