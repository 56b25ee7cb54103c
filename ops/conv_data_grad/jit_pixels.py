"""Numba kernels for 1x1 convolutions with channels first: blocks of pixels times the packed filter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, ROWS, multiply_tile, multiply_tile_onto, tile_columns

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""


@njit(**INNER)
def _pack_rows(weight: Any, block: int, end: int, packed: Any) -> None:
    out_channels, channels = weight.shape
    for row in range(out_channels):
        for now in range(block, end):
            place, channel = uintp((now * out_channels + row) * ROWS), uintp(now * ROWS)
            if (now + 1) * ROWS <= channels:
                for index in range(uintp(ROWS)):
                    packed[place + index] = widen(weight[uintp(row), channel + index])
            else:
                for index in range(ROWS):
                    is_used = now * ROWS + index < channels
                    packed[place + uintp(index)] = widen(weight[row, now * ROWS + index]) if is_used else 0


@parallel(error_model="numpy")
def pack_rows(weight: Any, at_once: int, packed: Any) -> None:
    """Pack weight (Co, C) to flat (blocks, Co, a tile's rows of C); `at_once` blocks are read together."""
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


@parallel(error_model="numpy")
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
    """Compute dx (N, C, P) = filter dy (N, Co, P) + addend (N, C, P) or empty, `pixels` at a time.

    packed by `pack_rows`; each block of pixels is `parts` tasks. direct: addend and dx, flat, if tiles can be
    written to them, else both empty. given, tile: scratch of each thread.
    """
    batch, channels, length = dx.shape
    spans, blocks = -(-length // pixels), -(-channels // ROWS)
    for task in prange(batch * spans * parts):
        span, part, thread = task // parts, task % parts, (get_thread_id() if threads > 1 else 0)
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
