"""Numba kernels for convolutions with small groups, channels first: multiply-adds tap by tap, no matrix product.

Sums are accumulated in a scratch array of each thread, in the accumulator dtype, and rounded once.
16-bit floats arrive in the format of `opgauge.ops._cpu.jit.storage`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
Three = tuple[int, int, int]


class DirectShape(NamedTuple):
    """Shape of a convolution: sizes of dx, of dy and of the filter, by depth, height and width."""

    batch: int
    groups: int
    per_group: int
    group_outs: int
    size: Three
    out: Three
    kernel: Three
    strides: Three
    padding: Three
    dilation: Three


def numbers_of(shape: DirectShape) -> tuple[int, ...]:
    """A shape as one flat tuple: Numba cannot pass nested tuples into a parallel loop."""
    axes = (shape.size, shape.out, shape.kernel, shape.strides, shape.padding, shape.dilation)
    return (shape.batch, shape.groups, shape.per_group, shape.group_outs, *(number for axis in axes for number in axis))


@njit(**INNER)
def _shape(numbers: Any) -> DirectShape:
    """The inverse of `numbers_of`."""
    return DirectShape(
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        (numbers[4], numbers[5], numbers[6]),
        (numbers[7], numbers[8], numbers[9]),
        (numbers[10], numbers[11], numbers[12]),
        (numbers[13], numbers[14], numbers[15]),
        (numbers[16], numbers[17], numbers[18]),
        (numbers[19], numbers[20], numbers[21]),
    )


@njit(**INNER)
def _source(at: int, shape: Any, axis: int, tap: int) -> int:
    """Index along an axis of dy that `tap` connects to index `at` of dx; -1 if there is none."""
    moved = at + shape.padding[axis] - tap * shape.dilation[axis]
    index = moved // shape.strides[axis]
    return index if moved >= 0 and moved % shape.strides[axis] == 0 and index < shape.out[axis] else -1


@njit(**INNER)
def _columns(shape: Any, tap: int) -> Any:
    """First column of dy that a horizontal tap reads, the number of columns, and the first column of dx."""
    stride, left = shape.strides[2], shape.padding[2] - tap * shape.dilation[2]
    first = max(-(-left // stride), 0)
    return first, min((shape.size[2] - 1 + left) // stride + 1, shape.out[2]) - first, first * stride - left


@njit(**INNER)
def _add_row(total: Any, at: int, stride: int, given: Any, first: int, count: int, weight: Any) -> None:
    """Add weight * given[first : first + count] to total[at::stride]."""
    if stride == 1:
        for index in range(uintp(count)):
            total[uintp(at) + index] += weight * given[uintp(first) + index]
    else:
        for index in range(count):
            total[uintp(at + index * stride)] += weight * given[uintp(first + index)]


@njit(**INNER)
def _add_slice(shape: Any, given: int, weight: Any, tap: int, total: Any, to: int) -> None:
    """Add the products of the taps from `tap` on with a depth slice of dy, at `given` in `total`, to dx at `to`."""
    _, height, width = shape.size
    for j in range(shape.kernel[1]):
        for h in range(shape.out[1]):
            row = h * shape.strides[1] - shape.padding[1] + j * shape.dilation[1]
            if row < 0 or row >= height:
                continue
            for k in range(shape.kernel[2]):
                first, count, column = _columns(shape, k)
                if count > 0:
                    factor = widen(weight[tap + j * shape.kernel[2] + k])
                    at = given + h * shape.out[2] + first
                    _add_row(total, to + row * width + column, shape.strides[2], total, at, count, factor)


@njit(**INNER)
def _begin_row(addend: Any, first: int, count: int, total: Any, to: int) -> None:
    if addend.size:
        for index in range(uintp(count)):
            total[uintp(to) + index] = widen(addend[uintp(first) + index])
    else:
        for index in range(uintp(count)):
            total[uintp(to) + index] = 0


@njit(**INNER)
def _add_padded(shape: Any, dy: Any, start: int, weight: Any, tap: int, total: Any, to: int, given: int) -> None:
    """Add the products of a depth slice of dy, from `start` on, with its taps, each of them in one loop."""
    pitch = shape.size[2] + 2 * shape.padding[2]
    outs, width = shape.out[1], shape.out[2]
    for h in range(outs):
        row, first = uintp(given + h * pitch), uintp(start + h * width)
        for index in range(uintp(width)):
            total[row + index] = widen(dy[first + index])
        for index in range(uintp(width), uintp(pitch)):
            total[row + index] = 0
    span = (outs - 1) * pitch + width
    for j in range(shape.kernel[1]):
        for k in range(shape.kernel[2]):
            factor = widen(weight[tap + j * shape.kernel[2] + k])
            at = to + j * shape.dilation[1] * pitch + k * shape.dilation[2]
            _add_row(total, at, 1, total, given, span, factor)


@njit(**INNER)
def _crop(shape: Any, total: Any, to: int, addend: Any, dx: Any, start: int) -> None:
    """Store a slice of dx, whose first pixel is at the padding."""
    _, height, width = shape.size
    pitch = width + 2 * shape.padding[2]
    for h in range(height):
        row, first = uintp(to + (h + shape.padding[1]) * pitch + shape.padding[2]), uintp(start + h * width)
        if addend.size:
            for index in range(uintp(width)):
                dx[first + index] = narrow(total[row + index] + widen(addend[first + index]), dx[first + index])
        else:
            for index in range(uintp(width)):
                dx[first + index] = narrow(total[row + index], dx[first + index])


@njit(**INNER)
def _add_rows(shape: Any, dy: Any, start: int, weight: Any, tap: int, total: Any, to: int, given: int) -> None:
    """Add the products of a depth slice of dy, from `start` on, with its taps, row by row."""
    for index in range(uintp(shape.out[1] * shape.out[2])):
        total[uintp(given) + index] = widen(dy[uintp(start) + index])
    _add_slice(shape, given, weight, tap, total, to)


@njit(**INNER)
def _first_slice(
    numbers: Any, dy: Any, weight: Any, addend: Any, dx: Any, plane: int, total: Any, to: int, padded: Any
) -> None:
    """One depth slice of a channel of dx. padded: by loops over whole slices, as short rows would take a call each.

    The slice then has all pixels that taps of a stride of 1 reach: the padding on both sides, as dy follows from it.
    """
    shape = _shape(numbers)
    depth, height, width = shape.size
    count, outs = height * width, shape.out[1] * shape.out[2]
    taps = shape.kernel[1] * shape.kernel[2]
    channels = shape.groups * shape.per_group
    image, channel, d = plane // (channels * depth), plane // depth % channels, plane % depth
    group, inner = channel // shape.per_group, channel % shape.per_group
    given = to + count
    if padded:
        given = to + (height + 2 * shape.padding[1]) * (width + 2 * shape.padding[2])
        for index in range(uintp(to), uintp(given)):
            total[index] = 0
    else:
        _begin_row(addend, plane * count, count, total, to)
    for i in range(shape.kernel[0]):
        source_d = _source(d, shape, 0, i)
        if source_d < 0:
            continue
        for out in range(shape.group_outs):
            row = group * shape.group_outs + out
            start = ((image * shape.groups * shape.group_outs + row) * shape.out[0] + source_d) * outs
            tap = ((row * shape.per_group + inner) * shape.kernel[0] + i) * taps
            if padded:
                _add_padded(shape, dy, start, weight, tap, total, to, given)
            else:
                _add_rows(shape, dy, start, weight, tap, total, to, given)
    if padded:
        _crop(shape, total, to, addend, dx, plane * count)
        return
    for index in range(uintp(count)):
        target = uintp(plane * count) + index
        dx[target] = narrow(total[uintp(to) + index], dx[target])


@parallel(error_model="numpy")
def direct_first(
    numbers: Any, dy: Any, weight: Any, addend: Any, dx: Any, scratch: Any, padded: Any, threads: int
) -> None:
    """Compute dx, channels first, one depth slice of a channel at a time; arrays are flat, the addend may be empty.

    scratch: for each thread a depth slice of one channel of dx and of dy; padded: each with margins.
    """
    batch, groups, per_group, _, depth = numbers[:5]
    for plane in prange(batch * groups * per_group * depth):
        at = (get_thread_id() if threads > 1 else 0) * (scratch.size // threads)
        _first_slice(numbers, dy, weight, addend, dx, plane, scratch, at, padded)
