"""Numba functions for images that are sampled bilinearly at fractional positions.

Images are stored channels last, padded by a pixel on all sides and by one more row below: a corner is a run of channels
that vectors read, no test is needed, and a sample outside reads the two rows of zeros at the end, whatever the image
contains.
"""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import tile_columns
from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES, load, multiply_add, spread, store, total

uintp = np.uintp
"""Unsigned index type, without the test for negative indices, so that loops vectorise."""
CHANNELS = 16
"""Channels transposed at once."""


@njit(**INNER)
def _lay_row(x: Any, n: int, h: int, image: Any, start: int) -> None:
    channels, width = x.shape[1], x.shape[3]
    for base in range(0, channels, CHANNELS):
        for w in range(width):
            for channel in range(base, min(base + CHANNELS, channels)):
                image[uintp(start + w * channels + channel)] = widen(x[n, uintp(channel), h, w])


@parallel(error_model="numpy")
def lay_out(x: Any, image: Any) -> None:
    """Copy x (N, C, H, W) to image, flat (N, H + 3, W + 2, C); the margins are not written."""
    batch, channels, height, width = x.shape
    for task in prange(batch * height):
        n, h = task // height, task % height
        _lay_row(x, n, h, image, ((n * (height + 3) + h + 1) * (width + 2) + 1) * channels)


@njit(**INNER)
def _collect_row(image_grad: Any, start: int, x_grad: Any, n: int, h: int) -> None:
    channels, width = x_grad.shape[1], x_grad.shape[3]
    for base in range(0, channels, CHANNELS):
        for w in range(width):
            for channel in range(base, min(base + CHANNELS, channels)):
                value, where = image_grad[uintp(start + w * channels + channel)], uintp(channel)
                x_grad[n, where, h, w] = narrow(value, x_grad[n, where, h, w])


@parallel(error_model="numpy")
def collect_image(image_grad: Any, x_grad: Any) -> None:
    """The inverse of `lay_out`."""
    batch, channels, height, width = x_grad.shape
    for task in prange(batch * height):
        n, h = task // height, task % height
        _collect_row(image_grad, ((n * (height + 3) + h + 1) * (width + 2) + 1) * channels, x_grad, n, h)


@njit(**INNER)
def locate(
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
def blend(
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
def spread_back(
    image: Any,
    image_grad: Any,
    start: int,
    channels: int,
    pitch: int,
    unit: int,
    base: int,
    first: int,
    count: int,
    places: Any,
    weights: Any,
    column: Any,
    target: int,
    block: int,
    needs: Any,
    slopes: Any,
    n: int,
    tap: int,
    owner: int,
) -> None:
    """Gradient of the samples of a unit's channels at one tap, for `count` pixels from `first` on.

    Adds to the gradients of the image, the offset and the mask; also stores the samples themselves. start: of the unit
    in its image, as flat index. base: of its channels in the columns of its chunk.
    """
    need_x, need_slopes, need_filter = needs
    step, columns = LANES_BYTES // image.itemsize, tile_columns(image)
    none = spread(image.dtype.type(0))
    whole = unit - unit % step if base % step == 0 else 0
    for index in range(count):
        w00, w01, w10, w11 = weights[0, index], weights[1, index], weights[2, index], weights[3, index]
        v00, v01, v10, v11 = spread(w00), spread(w01), spread(w10), spread(w11)
        d00, d01, d10, d11 = none, none, none, none
        top = start + places[index] * channels
        low = top + pitch
        for c in range(0, whole, step):
            place = target + (base + c) // columns * block * columns + (base + c) % columns + index * columns
            x00, x01 = load(image, top + c), load(image, top + c + channels)
            x10, x11 = load(image, low + c), load(image, low + c + channels)
            given = load(column, place)
            if need_slopes:
                d00, d01 = multiply_add(x00, given, d00), multiply_add(x01, given, d01)
                d10, d11 = multiply_add(x10, given, d10), multiply_add(x11, given, d11)
            if need_x:
                store(image_grad, top + c, multiply_add(given, v00, load(image_grad, top + c)))
                store(image_grad, top + c + channels, multiply_add(given, v01, load(image_grad, top + c + channels)))
                store(image_grad, low + c, multiply_add(given, v10, load(image_grad, low + c)))
                store(image_grad, low + c + channels, multiply_add(given, v11, load(image_grad, low + c + channels)))
            if need_filter:
                upper = multiply_add(x01, v01, multiply_add(x00, v00, none))
                store(column, place, multiply_add(x11, v11, multiply_add(x10, v10, upper)))
        s00, s01, s10, s11 = total(d00), total(d01), total(d10), total(d11)
        for c in range(whole, unit):
            place = target + (base + c) // columns * block * columns + (base + c) % columns + index * columns
            left, right, given = top + c, top + c + channels, column[place]
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
            slopes[owner, n, tap, 0, first + index] = m * (kw * (s10 - s00) + lw * (s11 - s01))
            slopes[owner, n, tap, 1, first + index] = m * (kh * (s01 - s00) + lh * (s11 - s10))
            slopes[owner, n, tap, 2, first + index] = kh * (kw * s00 + lw * s01) + lh * (kw * s10 + lw * s11)
