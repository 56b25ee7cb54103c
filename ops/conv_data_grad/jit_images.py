"""Numba kernels for convolutions of small images: tiles of images by channels, one pixel of dx at a time.

All images of a tile read the same taps, so that those that read only margins are left out for each pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, borrowed
from opgauge.ops._cpu.jit_store import copy_row, store_sums
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import DEPTH, GROUP, SHORT_ROWS, multiply_tile_onto, tile_columns
from opgauge.ops._cpu.tile.jit_lanes import turn_block

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""


@parallel(error_model="numpy")
def lay_images(dy: Any, images: int, channels: int, last: Any, laid: Any, pitch: int) -> None:
    """Copy flat dy, (N, P, Co) if `last`, else (N, Co, P), to laid: (P, Co) of each image, `pitch` apart."""
    size = dy.size // images
    for task in prange(images):
        image = np.int64(task)
        if last:
            copy_row(dy, image * size, size, laid, image * pitch)
        else:
            turn_block(dy, image * size, size // channels, channels, size // channels, laid, image * pitch, channels)


@njit(**INNER)
def _multiply_pixels(
    laid: Any, start: int, pitch: int, lists: Any, packed: Any, panel: int, pixels: Any, sums: Any, place: int, row: int
) -> None:
    """Set sums, of the images of a tile `row` apart, to the products of the first up to the end of `pixels`."""
    (first, end), columns = pixels, tile_columns(laid)
    for pixel in range(first, end):
        target, begun = place + (pixel - first) * columns, False
        for run in range(lists[pixel], lists[pixel + 1], 3):
            depth, factors = lists[run + 2], panel + lists[run + 1] * columns
            for step in range(0, max(depth, 1), DEPTH):
                given, count = start + lists[run] + step, min(DEPTH, depth - step)
                starts, weights = (given, given + GROUP * pitch), factors + step * columns
                base = sums if begun else sums[:0]
                factor = packed, weights, columns
                multiply_tile_onto(laid, starts, pitch, 1, *factor, count, base, target, row, sums, target, row)
                begun = True


@njit(**INNER)
def _store_image(
    sums: Any, given: int, pixels: int, used: int, addend: Any, dx: Any, target: int, pitch: int, last: Any, turned: int
) -> None:
    """Store the sums of an image's `pixels` for `used` channels to dx from `target` on.

    pitch: between pixels of dx if `last`, else its channels. turned: place in sums for a transposed block.
    """
    columns = tile_columns(sums)
    if not last and not addend.size:
        turn_block(sums, given, columns, pixels, used, dx, target, pitch)
        return
    count, lines, step = (used, pixels, columns) if last else (pixels, used, pixels)
    if not last:
        turn_block(sums, given, columns, pixels, used, sums, turned, pixels)
        given = turned
    for line in range(lines):
        if addend.size:
            store_sums(sums, given + line * step, addend, dx, target + line * pitch, count)
        else:
            copy_row(sums, given + line * step, count, dx, target + line * pitch)


@parallel(error_model="numpy")
def multiply_images(
    laid: Any, pitch: int, lists: Any, packed: Any, addend: Any, dx: Any, sizes: Any, sums: Any, threads: int, last: Any
) -> None:
    """Compute flat dx (N, P, C) if `last`, else (N, C, P), plus the addend, laid out alike or empty.

    laid: by `lay_images`; packed: by `jit_pack`. lists: where in it the runs of each pixel begin, then of each run its
    place in an image of dy, its place in a panel's taps and channels, and its depth. sizes: images, pixels, pixels of
    a task, channels, and numbers of a panel's taps and channels. sums: scratch of each thread.
    """
    images, pixels, each, channels, depth = sizes
    columns, tiles, parts = tile_columns(laid), -(-images // SHORT_ROWS), -(-pixels // each)
    given, factors, added, target = borrowed(laid), borrowed(packed), borrowed(addend), borrowed(dx)
    runs, totals = borrowed(lists), borrowed(sums)
    for task in prange(-(-channels // columns) * parts * tiles):
        panel, first, image = task // (parts * tiles), task // tiles % parts * each, task % tiles * SHORT_ROWS
        place, end = (get_thread_id() if threads > 1 else 0) * (totals.size // threads), min(first + each, pixels)
        row, channel, weights = each * columns, panel * columns, panel * depth * columns
        laid_at, now = image * pitch, (first, end)
        _multiply_pixels(given, laid_at, pitch, runs, factors, weights, now, totals, place, row)
        used, between, turned = min(columns, channels - channel), channels if last else pixels, place + SHORT_ROWS * row
        start = first * channels + channel if last else channel * pixels + first
        for index in range(min(SHORT_ROWS, images - image)):
            to, at = start + (image + index) * pixels * channels, place + index * row
            _store_image(totals, at, end - first, used, added, target, to, between, last, turned)
