"""Numba kernels that fold columns, the product of filter and dy, into dx."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, borrowed, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, turn_block

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
CHANNELS = 64
"""Numbers between copies whose multiples put them in few sets of a cache: all of a line are written at once."""


@njit(**INNER)
def _add_spread(row: Any, at: int, stride: int, given: Any, first: int, count: int) -> None:
    """Add given[first : first + count] to row[at::stride]; stride 1 is separate, for vector instructions."""
    if stride == 1:
        for index in range(uintp(count)):
            row[uintp(at) + index] += given[uintp(first) + index]
    else:
        for index in range(count):
            row[uintp(at + index * stride)] += given[uintp(first + index)]


@njit(**INNER)
def _spans(sizes: Any, strides: Any, padding: Any, dilation: Any) -> Any:
    """Columns of the output that each horizontal tap adds to dx: first, number, and the column of dx of the first."""
    spans = np.empty((sizes[5], 3), np.int64)
    for k in range(sizes[5]):
        left = padding[2] - k * dilation[2]
        first = max(-(-left // strides[2]), 0)
        spans[k, 0] = first
        spans[k, 1] = min((sizes[2] - 1 + left) // strides[2] + 1, sizes[8]) - first
        spans[k, 2] = first * strides[2] - left
    return spans


@njit(**INNER)
def _begin(addend: Any, dx: Any, start: int, end: int) -> None:
    """Write the addend, or zeros if it is empty."""
    if addend.size:
        for index in range(uintp(start), uintp(end)):
            dx[index] = addend[index]
    else:
        for index in range(uintp(start), uintp(end)):
            dx[index] = 0


@parallel(error_model="numpy")
def begin(addend: Any, dx: Any, pieces: int) -> None:
    """Write the addend, or zeros if it is empty, to flat dx of the same dtype."""
    for piece in prange(pieces):
        _begin(addend, dx, dx.size * piece // pieces, dx.size * (piece + 1) // pieces)


@njit(**INNER)
def _fold_plane(
    column: Any, addend: Any, dx: Any, plane: int, sizes: Any, spans: Any, strides: Any, padding: Any, dilation: Any
) -> None:
    depth, height, width, kernel_d, kernel_h, kernel_w, out_d, out_h, out_w = sizes
    channel, d, start = plane // depth, plane % depth, plane * height * width
    _begin(addend, dx, start, start + height * width)
    for i in range(kernel_d):
        moved = d + padding[0] - i * dilation[0]
        od = moved // strides[0]
        if moved < 0 or od * strides[0] != moved or od >= out_d:
            continue
        for j in range(kernel_h):
            for oh in range(out_h):
                h = oh * strides[1] - padding[1] + j * dilation[1]
                if h < 0 or h >= height:
                    continue
                for k in range(kernel_w):
                    if spans[k, 1] > 0:
                        tap = ((channel * kernel_d + i) * kernel_h + j) * kernel_w + k
                        given = ((tap * out_d + od) * out_h + oh) * out_w + spans[k, 0]
                        _add_spread(dx, start + h * width + spans[k, 2], strides[2], column, given, spans[k, 1])


@parallel(error_model="numpy")
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
    """Fold flat columns (C, kernel, output) into flat dx (C, D, H, W), plus the addend unless it is empty.

    planes: C D. sizes: of dx, of the kernel and of the output.
    """
    spans = _spans(sizes, strides, padding, dilation)
    for plane in prange(planes):
        _fold_plane(column, addend, dx, np.int64(plane), sizes, spans, strides, padding, dilation)


@parallel(error_model="numpy")
def fold_links(
    column: Any, addend: Any, dx: Any, planes: int, apart: tuple[int, int, int], source: Any, target: Any
) -> None:
    """Like `fold`, for the offsets that are added in each channel: dx[target] += column[source].

    planes: channels of all images. apart: channels, and the distances in column from one image and channel to the next.
    """
    (channels, image, block), volume = apart, uintp(dx.size // planes)
    for plane in prange(planes):
        given = uintp(plane) // uintp(channels) * uintp(image) + uintp(plane) % uintp(channels) * uintp(block)
        start = uintp(plane) * volume
        for index in range(volume):
            dx[start + index] = addend[start + index] if addend.size else 0
        for link in range(uintp(source.size)):
            dx[start + uintp(target[link])] += column[given + uintp(source[link])]


@parallel(error_model="numpy")
def add_in_place(total: Any, addend: Any) -> None:
    """Add flat addend to total."""
    for index in prange(total.size):
        total[index] += addend[index]


@parallel(error_model="numpy")
def choose(weight: Any, places: Any, taps: int, chosen: Any) -> None:
    """Copy the numbers at `places` of each `taps` numbers of flat weight to flat chosen."""
    given, listed, target = borrowed(weight), borrowed(places), borrowed(chosen)
    count = uintp(places.size)
    for row in prange(weight.size // taps):
        first, into = uintp(row) * uintp(taps), uintp(row) * count
        for index in range(count):
            target[into + index] = given[first + uintp(listed[index])]


@njit(**INNER)
def _line_of(row: int, sizes: Any) -> int:
    """The row of dx of a row of a part, see `weave`."""
    depth, height, _, part_d, part_h, _, first_d, first_h, _, stride_d, stride_h, _ = sizes
    outer, d, h = np.int64(row), 0, 0
    if part_d * part_h > 1:
        outer, d, h = row // (part_d * part_h), row // part_h % part_d, row % part_h
    return int((outer * depth + first_d + d * stride_d) * height + first_h + h * stride_h)


@njit(**INNER)
def _weave_row(part: Any, addend: Any, dx: Any, row: int, inner: int, sizes: Any) -> None:
    width, part_w, first_w, stride_w = sizes[2], sizes[5], sizes[8], sizes[11]
    start, given = (_line_of(row, sizes) * width + first_w) * inner, row * part_w * inner
    if inner == 1:
        for w in range(uintp(part_w)):
            target = uintp(start) + w * uintp(stride_w)
            value = part[uintp(given) + w]
            dx[target] = narrow(value + widen(addend[target]) if addend.size else value, dx[target])
        return
    for w in range(part_w):
        target, source = uintp(start + w * stride_w * inner), uintp(given + w * inner)
        if addend.size:
            for index in range(uintp(inner)):
                value = part[source + index] + widen(addend[target + index])
                dx[target + index] = narrow(value, dx[target + index])
        else:
            for index in range(uintp(inner)):
                dx[target + index] = narrow(part[source + index], dx[target + index])


@parallel(error_model="numpy")
def weave(part: Any, addend: Any, dx: Any, rows: int, inner: int, sizes: Any) -> None:
    """Write the pixels of one residue class to flat dx, plus the addend unless it is empty.

    rows: of the part. inner: contiguous channels of a pixel. sizes: of dx and of the part; first pixel; strides.
    """
    given, added, target = borrowed(part), borrowed(addend), borrowed(dx)
    for row in prange(rows):
        _weave_row(given, added, target, np.int64(row), inner, sizes)


@njit(**INNER)
def _weave_two(even: Any, first: int, odd: Any, second: int, addend: Any, dx: Any, start: int, count: int) -> None:
    """Write `count` numbers of each part in turns to dx from `start` on, plus the addend unless it is empty."""
    if addend.size:
        for index in range(uintp(count)):
            left, right = uintp(start) + uintp(2) * index, uintp(start + 1) + uintp(2) * index
            dx[left] = narrow(even[uintp(first) + index] + widen(addend[left]), dx[left])
            dx[right] = narrow(odd[uintp(second) + index] + widen(addend[right]), dx[right])
    else:
        for index in range(uintp(count)):
            left, right = uintp(start) + uintp(2) * index, uintp(start + 1) + uintp(2) * index
            dx[left] = narrow(even[uintp(first) + index], dx[left])
            dx[right] = narrow(odd[uintp(second) + index], dx[right])


@parallel(error_model="numpy")
def weave_two(even: Any, odd: Any, addend: Any, dx: Any, rows: int, sizes: Any) -> None:
    """Like `weave`, channels first, of the two classes of columns of stride 2; sizes: for the even one."""
    evens, odds, added, target = borrowed(even), borrowed(odd), borrowed(addend), borrowed(dx)
    width, half = sizes[2], sizes[2] // 2
    for row in prange(rows):
        line, first, second = _line_of(np.int64(row), sizes), np.int64(row) * (width - half), np.int64(row) * half
        _weave_two(evens, first, odds, second, added, target, line * width, half)
        if width > 2 * half:
            last, value = uintp(line * width + 2 * half), evens[uintp(first + half)]
            target[last] = narrow(value + widen(added[last]) if added.size else value, target[last])


@parallel(error_model="numpy")
def turn_images(given: Any, rows: int, columns: int, out: Any) -> None:
    """Transpose each image of rows by columns of flat given to flat out, which may be wider."""
    source, target = borrowed(given), borrowed(out)
    strip = columns if rows % CHANNELS else min(columns, lanes_of(out))
    for image in prange(given.size // (rows * columns)):
        start = np.int64(image) * rows * columns
        for column in range(0, columns, strip):
            first = min(column, columns - strip)
            turn_block(source, start + first, columns, rows, strip, target, start + first * rows, rows)
