"""Numba kernels of deformable_conv for the CPU.

The image is padded by a pixel all around and by one more row below: no corner needs a test, and a sample
outside is taken from the two rows of zeros at the end, whatever the image holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_num_threads, get_thread_id, njit, prange


@njit(cache=True, parallel=True)
def tabulate(
    offset: Any,
    mask: Any,
    places: Any,
    fractions: Any,
    height: int,
    width: int,
    out_width: int,
    kernel_w: int,
    strides: tuple[int, int],
    paddings: tuple[int, int],
    dilations: tuple[int, int],
) -> None:
    """Where each sample lies, once for all channels of its deformable group.

    offset (dg, taps, 2, P), mask (dg, taps, P) or (0, 0, 0). places (dg, taps, P): flat index of the
    upper left corner in the padded image, that of row H + 1 outside. fractions (dg, taps, 3, P): rows, columns, mask.
    """
    groups, taps, _, pixels = offset.shape
    one = offset.dtype.type(1)
    for index in prange(groups * taps):
        group, tap = index // taps, index % taps
        base_h = (tap // kernel_w) * dilations[0] - paddings[0]
        base_w = (tap % kernel_w) * dilations[1] - paddings[1]
        for pixel in range(pixels):
            h = (pixel // out_width) * strides[0] + base_h + offset[group, tap, 0, pixel]
            w = (pixel % out_width) * strides[1] + base_w + offset[group, tap, 1, pixel]
            if h > -1 and h < height and w > -1 and w < width:
                h0, w0 = np.floor(h), np.floor(w)
                places[group, tap, pixel] = (int(h0) + 1) * (width + 2) + int(w0) + 1
                fractions[group, tap, 0, pixel] = h - h0
                fractions[group, tap, 1, pixel] = w - w0
                fractions[group, tap, 2, pixel] = mask[group, tap, pixel] if mask.size else one
            else:
                places[group, tap, pixel] = (height + 1) * (width + 2)
                fractions[group, tap, 0, pixel] = 0
                fractions[group, tap, 1, pixel] = 0
                fractions[group, tap, 2, pixel] = 0


@njit(cache=True, parallel=True)
def unfold(padded: Any, places: Any, fractions: Any, column: Any, width: int) -> None:
    """The column buffer of one image: padded (C, (H + 3)(W + 2)) to column (C, taps, P)."""
    channels, taps, pixels = column.shape
    per_group = channels // places.shape[0]
    stride = width + 2
    for channel in prange(channels):
        group = channel // per_group
        image = padded[channel]
        for tap in range(taps):
            for pixel in range(pixels):
                place = places[group, tap, pixel]
                lh, lw = fractions[group, tap, 0, pixel], fractions[group, tap, 1, pixel]
                v00, v01 = image[place], image[place + 1]
                v10, v11 = image[place + stride], image[place + stride + 1]
                top = v00 + lw * (v01 - v00)
                bottom = v10 + lw * (v11 - v10)
                column[channel, tap, pixel] = (top + lh * (bottom - top)) * fractions[group, tap, 2, pixel]


@njit(cache=True, parallel=True)
def fold(
    padded: Any,
    places: Any,
    fractions: Any,
    column: Any,
    padded_grad: Any,
    partial: Any,
    width: int,
) -> None:
    """From the columns' gradient: the image's, the offsets' and the mask's; leaves the columns themselves behind.

    column (C, taps, P) holds the gradient and is overwritten by the sampled columns. padded_grad
    (C, (H + 3)(W + 2)) is added to. partial (threads, dg, taps, 3, P) collects rows, columns, mask.
    """
    channels, taps, pixels = column.shape
    groups = places.shape[0]
    per_group = channels // groups
    stride = width + 2
    outside = padded.shape[1] - 2 * stride
    for channel in prange(channels):
        group = channel // per_group
        thread = get_thread_id()
        image, grad = padded[channel], padded_grad[channel]
        for tap in range(taps):
            for pixel in range(pixels):
                place = places[group, tap, pixel]
                given = column[channel, tap, pixel]
                if place >= outside:
                    column[channel, tap, pixel] = 0
                    continue
                lh, lw = fractions[group, tap, 0, pixel], fractions[group, tap, 1, pixel]
                m = fractions[group, tap, 2, pixel]
                v00, v01 = image[place], image[place + 1]
                v10, v11 = image[place + stride], image[place + stride + 1]
                top = v00 + lw * (v01 - v00)
                bottom = v10 + lw * (v11 - v10)
                sampled = top + lh * (bottom - top)
                partial[thread, group, tap, 0, pixel] += given * m * (bottom - top)
                slope_w = (v01 - v00) + lh * ((v11 - v10) - (v01 - v00))
                partial[thread, group, tap, 1, pixel] += given * m * slope_w
                partial[thread, group, tap, 2, pixel] += given * sampled
                column[channel, tap, pixel] = sampled * m
                moved = given * m
                below = moved * lh
                above = moved - below
                grad[place] += above - above * lw
                grad[place + 1] += above * lw
                grad[place + stride] += below - below * lw
                grad[place + stride + 1] += below * lw


def threads() -> int:
    """Threads that `fold` may use."""
    return int(get_num_threads())
