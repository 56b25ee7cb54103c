"""Numba kernels for convolutions with small groups: multiply-adds tap by tap, no matrix product.

Sums are accumulated in a scratch array of each thread, in the accumulator dtype, and rounded once.
16-bit floats are passed as `opgauge.ops._cpu.jit.storage` views them.
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


class Walk(NamedTuple):
    """A convolution as the kernels take it: sizes of dx, of dy and of the filter, by depth, height and width."""

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


def numbers_of(walk: Walk) -> tuple[int, ...]:
    """A walk as one flat tuple: Numba passes no nested tuples into a parallel loop."""
    axes = (walk.size, walk.out, walk.kernel, walk.strides, walk.padding, walk.dilation)
    return (walk.batch, walk.groups, walk.per_group, walk.group_outs, *(number for axis in axes for number in axis))


@njit(**INNER)
def _walk(numbers: Any) -> Walk:
    """The inverse of `numbers_of`."""
    return Walk(
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
def _source(at: int, walk: Any, axis: int, tap: int) -> int:
    """Index along an axis of dy that `tap` connects to index `at` of dx, -1 where there is none."""
    moved = at + walk.padding[axis] - tap * walk.dilation[axis]
    index = moved // walk.strides[axis]
    return index if moved >= 0 and moved % walk.strides[axis] == 0 and index < walk.out[axis] else -1


@njit(**INNER)
def _columns(walk: Any, tap: int) -> Any:
    """First column of dy that a horizontal tap reads, the number of columns, and the first column of dx."""
    stride, left = walk.strides[2], walk.padding[2] - tap * walk.dilation[2]
    first = max(-(-left // stride), 0)
    return first, min((walk.size[2] - 1 + left) // stride + 1, walk.out[2]) - first, first * stride - left


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
def _add_slice(walk: Any, given: int, weight: Any, tap: int, total: Any, to: int) -> None:
    """Add what the taps from `tap` on make of a depth slice of dy, at `given` in `total`, to one of dx at `to`."""
    _, height, width = walk.size
    for j in range(walk.kernel[1]):
        for h in range(walk.out[1]):
            row = h * walk.strides[1] - walk.padding[1] + j * walk.dilation[1]
            if row < 0 or row >= height:
                continue
            for k in range(walk.kernel[2]):
                first, count, column = _columns(walk, k)
                if count > 0:
                    factor = widen(weight[tap + j * walk.kernel[2] + k])
                    at = given + h * walk.out[2] + first
                    _add_row(total, to + row * width + column, walk.strides[2], total, at, count, factor)


@njit(**INNER)
def _begin_row(addend: Any, first: int, count: int, total: Any, to: int) -> None:
    if addend.size:
        for index in range(uintp(count)):
            total[uintp(to) + index] = widen(addend[uintp(first) + index])
    else:
        for index in range(uintp(count)):
            total[uintp(to) + index] = 0


@njit(**INNER)
def _first_slice(numbers: Any, dy: Any, weight: Any, addend: Any, dx: Any, plane: int, total: Any, to: int) -> None:
    walk = _walk(numbers)
    depth, height, width = walk.size
    count, outs = height * width, walk.out[1] * walk.out[2]
    taps = walk.kernel[1] * walk.kernel[2]
    channels = walk.groups * walk.per_group
    image, channel, d = plane // (channels * depth), plane // depth % channels, plane % depth
    group, inner = channel // walk.per_group, channel % walk.per_group
    given = to + count
    _begin_row(addend, plane * count, count, total, to)
    for i in range(walk.kernel[0]):
        source_d = _source(d, walk, 0, i)
        if source_d < 0:
            continue
        for out in range(walk.group_outs):
            row = group * walk.group_outs + out
            start = ((image * walk.groups * walk.group_outs + row) * walk.out[0] + source_d) * outs
            for index in range(uintp(outs)):
                total[uintp(given) + index] = widen(dy[uintp(start) + index])
            tap = ((row * walk.per_group + inner) * walk.kernel[0] + i) * taps
            _add_slice(walk, given, weight, tap, total, to)
    for index in range(uintp(count)):
        target = uintp(plane * count) + index
        dx[target] = narrow(total[uintp(to) + index], dx[target])


@parallel(error_model="numpy")
def direct_first(numbers: Any, dy: Any, weight: Any, addend: Any, dx: Any, scratch: Any, threads: int) -> None:
    """dx with channels first, a depth slice of a channel at a time; arrays are flat, an empty addend is none.

    scratch: for each thread a depth slice of one channel of dx and of dy.
    """
    batch, groups, per_group, _, depth = numbers[:5]
    for plane in prange(batch * groups * per_group * depth):
        _first_slice(
            numbers,
            dy,
            weight,
            addend,
            dx,
            plane,
            scratch,
            (get_thread_id() if threads > 1 else 0) * (scratch.size // threads),
        )


@njit(**INNER)
def _pack_tap(numbers: Any, weight: Any, tap: int, packed: Any) -> None:
    walk = _walk(numbers)
    taps = walk.kernel[0] * walk.kernel[1] * walk.kernel[2]
    for out in range(walk.group_outs):
        for inner in range(walk.per_group):
            to = ((tap * walk.group_outs + out) * walk.per_group + inner) * walk.groups
            for group in range(walk.groups):
                at = ((group * walk.group_outs + out) * taps + tap) * walk.per_group + inner
                packed[uintp(to + group)] = widen(weight[uintp(at)])


@parallel(error_model="numpy")
def pack_taps(numbers: Any, weight: Any, packed: Any) -> None:
    """Filter (groups, outs of a group, taps, channels of a group) to (taps, outs, channels, groups)."""
    for tap in prange(numbers[10] * numbers[11] * numbers[12]):
        _pack_tap(numbers, weight, tap, packed)


@njit(**INNER)
def _spread_row(dy: Any, first: int, pixels: int, groups: int, inner: int, given: Any, to: int) -> None:
    """Pixels of (groups, inner) channels from `first` on, transposed to (inner, groups)."""
    if inner == 1:
        for index in range(uintp(pixels * groups)):
            given[uintp(to) + index] = widen(dy[uintp(first) + index])
        return
    for pixel in range(pixels):
        for channel in range(inner):
            at, into = first + pixel * groups * inner + channel, to + (pixel * inner + channel) * groups
            for group in range(groups):
                given[uintp(into + group)] = widen(dy[uintp(at + group * inner)])


@njit(**INNER)
def _add_groups(total: Any, to: int, given: Any, at: int, packed: Any, tap: int, groups: int) -> None:
    for group in range(uintp(groups)):
        total[uintp(to) + group] += given[uintp(at) + group] * packed[uintp(tap) + group]


@njit(**INNER)
def _add_pixels(walk: Any, given: Any, packed: Any, tap: int, column_tap: int, total: Any, to: int) -> None:
    """Add what one tap makes of a row of dy to a row of dx, both (pixels, channels of a group, groups)."""
    first, count, column = _columns(walk, column_tap)
    groups = walk.groups
    for index in range(count):
        at = given + (first + index) * walk.group_outs * groups
        into = to + (column + index * walk.strides[2]) * walk.per_group * groups
        for out in range(walk.group_outs):
            for inner in range(walk.per_group):
                factor = ((tap * walk.group_outs + out) * walk.per_group + inner) * groups
                _add_groups(total, into + inner * groups, total, at + out * groups, packed, factor, groups)


@njit(**INNER)
def _last_row(numbers: Any, dy: Any, packed: Any, addend: Any, dx: Any, row: int, total: Any, to: int) -> None:
    walk = _walk(numbers)
    depth, height, width = walk.size
    channels, outs = walk.groups * walk.per_group, walk.groups * walk.group_outs
    image, d, h = row // (depth * height), row // height % depth, row % height
    first, given = row * width * channels, to + width * channels
    if addend.size:
        _spread_row(addend, first, width, walk.groups, walk.per_group, total, to)
    else:
        for index in range(uintp(width * channels)):
            total[uintp(to) + index] = 0
    for i in range(walk.kernel[0]):
        source_d = _source(d, walk, 0, i)
        for j in range(walk.kernel[1]):
            source_h = _source(h, walk, 1, j)
            if source_d < 0 or source_h < 0:
                continue
            start = ((image * walk.out[0] + source_d) * walk.out[1] + source_h) * walk.out[2] * outs
            _spread_row(dy, start, walk.out[2], walk.groups, walk.group_outs, total, given)
            for k in range(walk.kernel[2]):
                _add_pixels(walk, given, packed, (i * walk.kernel[1] + j) * walk.kernel[2] + k, k, total, to)
    for pixel in range(width):
        for inner in range(walk.per_group):
            at, into = to + (pixel * walk.per_group + inner) * walk.groups, first + pixel * channels + inner
            for group in range(walk.groups):
                target = uintp(into + group * walk.per_group)
                dx[target] = narrow(total[uintp(at + group)], dx[target])


@parallel(error_model="numpy")
def direct_last(numbers: Any, dy: Any, packed: Any, addend: Any, dx: Any, scratch: Any, threads: int) -> None:
    """dx with channels last, a row at a time; packed as by `pack_taps`, other arguments as in `direct_first`.

    scratch: for each thread a row of dx and a row of dy, the groups of each contiguous.
    """
    for row in prange(numbers[0] * numbers[4] * numbers[5]):
        _last_row(
            numbers,
            dy,
            packed,
            addend,
            dx,
            row,
            scratch,
            (get_thread_id() if threads > 1 else 0) * (scratch.size // threads),
        )
