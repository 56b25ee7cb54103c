"""Numba kernels for convolutions with small groups, channels first: vectors of pixels summed over taps in registers.

Rows of dy are laid out with zeros between them, so that each tap is one distance for all pixels of a residue class:
those whose row and column have the same remainders by the strides. The sums of the classes are then interleaved.
16-bit floats arrive in the format of `opgauge.ops._cpu.jit.storage`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INLINE, borrowed, widen
from opgauge.ops._cpu.jit_store import add_onto, copy_row, store_sums
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, load, multiply_add, spread, store, store_pairs

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
VECTORS = 4
"""Vectors of pixels that are summed at once."""
SLACK = 64
"""Elements after the last one of a buffer, for vectors that begin before its end."""


class DirectShape(NamedTuple):
    """Shape of a convolution.

    Sizes of dx and of dy (`out_`) by depth, height and width; strides of rows and columns. lowest: row of dy that the
    first pixels read at the least; reach: rows of dy from the least to the last one of a pixel. pitch: elements of a
    row of dy as laid out, after `margin` zeros. A band is that many rows of each class. The last three numbers are
    where sums, factors and converted sums begin in a thread's buffer, after dy as laid out.
    """

    batch: int
    groups: int
    per_group: int
    outs: int
    depth: int
    height: int
    width: int
    out_depth: int
    out_height: int
    out_width: int
    taps: int
    row_stride: int
    column_stride: int
    lowest: int
    reach: int
    pitch: int
    margin: int
    band: int
    bands: int
    sums_at: int
    factors_at: int
    out_at: int


@njit(**INLINE)
def _lay_out(shape: DirectShape, dy: Any, start: int, first: int, count: int, given: Any, to: int) -> None:
    """Lay out `count` rows of a slice of dy from row `first` on; rows outside are zero, as are margins already."""
    width = shape.out_width
    for row in range(count):
        source, place = first + row, to + row * shape.pitch + shape.margin
        if 0 <= source < shape.out_height:
            copy_row(dy, start + source * width, width, given, place)
        else:
            for index in range(uintp(width)):
                given[uintp(place) + index] = 0


@njit(**INLINE)
def _sum_line(buffer: Any, places: Any, listed: Any, factors: int, span: int, to: int) -> None:
    """Write the sums over the listed taps (first and end) of `span` pixels, and of up to a vector more.

    places: of the taps in the buffer, whose factors begin at `factors`.
    """
    lanes, first, end = lanes_of(buffer), listed[0], listed[1]
    wide, step, pixel = VECTORS * lanes, uintp(lanes), 0
    while pixel + wide < span + lanes:
        v0 = v1 = v2 = v3 = spread(buffer.dtype.type(0))
        for tap in range(first, end):
            at, factor = uintp(places[uintp(tap)] + pixel), spread(buffer[uintp(factors + tap - first)])
            v0 = multiply_add(load(buffer, at), factor, v0)
            v1 = multiply_add(load(buffer, at + step), factor, v1)
            v2 = multiply_add(load(buffer, at + step + step), factor, v2)
            v3 = multiply_add(load(buffer, at + step + step + step), factor, v3)
        at = uintp(to + pixel)
        store(buffer, at, v0)
        store(buffer, at + step, v1)
        store(buffer, at + step + step, v2)
        store(buffer, at + step + step + step, v3)
        pixel += wide
    while pixel < span:
        v0 = spread(buffer.dtype.type(0))
        for tap in range(first, end):
            at, factor = uintp(places[uintp(tap)] + pixel), spread(buffer[uintp(factors + tap - first)])
            v0 = multiply_add(load(buffer, at), factor, v0)
        store(buffer, uintp(to + pixel), v0)
        pixel += lanes


@njit(**INLINE)
def _weave_row(shape: DirectShape, sums: Any, start: int, line: int, out: Any, to: int) -> None:
    """Interleave a row of each class of columns, `line` apart in sums from `start` on, to a row of dx."""
    stride, width, lanes = shape.column_stride, shape.width, lanes_of(out)
    pairs = width // 2
    if stride == 1:
        copy_row(sums, start, width, out, to)
    elif stride == 2 and pairs >= lanes:
        for index in range(0, pairs, lanes):
            at = min(index, pairs - lanes)
            store_pairs(out, uintp(to + 2 * at), load(sums, uintp(start + at)), load(sums, uintp(start + line + at)))
        if width % 2:
            out[uintp(to + width - 1)] = sums[uintp(start + pairs)]
    else:
        for residue in range(min(stride, width)):
            given, first = start + residue * line, to + residue
            for index in range((width - residue + stride - 1) // stride):
                out[uintp(first + index * stride)] = sums[uintp(given + index)]


@njit(**INLINE)
def _list_taps(
    shape: DirectShape,
    reach: Any,
    depths: Any,
    columns: Any,
    weight: Any,
    channel: int,
    size: int,
    places: Any,
    start: int,
    buffer: Any,
    to: int,
) -> int:
    """List the place in dy as laid out, and the factor, of each tap of a class. Returns the end of the list.

    depths, columns: first and end of the taps, of depth and of a plane. size: of a slice of dy as laid out.
    """
    count, at = start, to + shape.factors_at
    group, inner = channel // shape.per_group, channel % shape.per_group
    for i in range(depths[0], depths[1]):
        for out in range(shape.outs):
            laid = to + ((i - depths[0]) * shape.outs + out) * size
            row = (group * shape.outs + out) * shape.per_group + inner
            first = row * shape.taps + reach[uintp(2 * i + 1)]
            for tap in range(columns[0], columns[1]):
                places[uintp(count)] = laid + reach[uintp(2 * tap)]
                buffer[uintp(at)] = widen(weight[uintp(first + reach[uintp(2 * tap + 1)])])
                count += 1
                at += 1
    return count


@njit(**INLINE)
def _sum_band(
    shape: DirectShape,
    ends: Any,
    reach: Any,
    depths: Any,
    weight: Any,
    channel: int,
    first: int,
    size: int,
    places: Any,
    start: int,
    buffer: Any,
    to: int,
    out: Any,
    begin: int,
) -> None:
    """Write the sums of a band of a channel's slice, whose classes have rows from `first` on, to out."""
    line, sums = shape.band * shape.pitch + lanes_of(buffer), to + shape.sums_at
    rows, columns = min(shape.row_stride, shape.height), min(shape.column_stride, shape.width)
    for row in range(rows):
        count = min(shape.band, (shape.height - row + shape.row_stride - 1) // shape.row_stride - first)
        for column in range(columns if count > 0 else 0):
            number = shape.depth + row * columns + column
            taps = ends[uintp(number)], ends[uintp(number + 1)]
            end = _list_taps(shape, reach, depths, taps, weight, channel, size, places, start, buffer, to)
            span = (count - 1) * shape.pitch + (shape.width - column + shape.column_stride - 1) // shape.column_stride
            _sum_line(buffer, places, (start, end), to + shape.factors_at, span, sums + column * line)
        for index in range(count):
            target = begin + (index * shape.row_stride + row) * shape.width
            _weave_row(shape, buffer, sums + index * shape.pitch, line, out, target)


@njit(**INLINE)
def _lay_group(
    shape: DirectShape, reach: Any, depths: Any, dy: Any, group: int, first: int, buffer: Any, to: int
) -> int:
    """Lay out what a band of a group of an image reads: slices of all depths and outs. Returns the size of one."""
    count = shape.band + shape.reach
    size, plane = count * shape.pitch + shape.margin, shape.out_height * shape.out_width
    for i in range(depths[0], depths[1]):
        for out in range(shape.outs):
            start = (group * shape.outs + out) * shape.out_depth * plane + reach[uintp(2 * i)]
            place = to + ((i - depths[0]) * shape.outs + out) * size
            _lay_out(shape, dy, start, first + shape.lowest, count, buffer, place)
    return size


@njit(**INLINE)
def _convolve(
    numbers: Any,
    task: int,
    ends: Any,
    reach: Any,
    dy: Any,
    weight: Any,
    addend: Any,
    dx: Any,
    direct: Any,
    places: Any,
    start: int,
    buffer: Any,
    to: int,
) -> None:
    """One band of a depth slice of a group of an image of dx."""
    shape = DirectShape(*numbers)
    band, depth, group = task % shape.bands, task // shape.bands % shape.depth, task // shape.bands // shape.depth
    depths, first = (ends[uintp(depth)], ends[uintp(depth + 1)]), band * shape.band
    size, row = _lay_group(shape, reach, depths, dy, group, first, buffer, to), first * shape.row_stride
    count = min(shape.band * shape.row_stride, shape.height - row) * shape.width
    for inner in range(shape.per_group):
        channel, number = group % shape.groups * shape.per_group + inner, group * shape.per_group + inner
        begin = ((number * shape.depth + depth) * shape.height + row) * shape.width
        out, at = (direct, begin) if direct.size else (buffer, to + shape.out_at)
        _sum_band(shape, ends, reach, depths, weight, channel, first, size, places, start, buffer, to, out, at)
        if not direct.size:
            store_sums(buffer, at, addend, dx, begin, count)
        elif addend.size:
            add_onto(direct, addend, begin, count)


@parallel(error_model="numpy")
def direct_first(
    numbers: Any,
    ends: Any,
    reach: Any,
    dy: Any,
    weight: Any,
    addend: Any,
    dx: Any,
    direct: Any,
    places: Any,
    buffer: Any,
    threads: int,
) -> None:
    """Compute dx, channels first, a band of a depth slice of a group at a time; arrays are flat.

    numbers: a `DirectShape`. addend: may be empty. ends: of the taps of each depth of dx, then of each class of rows
    and columns. reach: for each tap the distance in dy, as laid out for those of classes, and in the filter. direct:
    dx, if sums are not converted, else empty. places, buffer: scratch of each thread; the buffer begins with zeros.
    """
    tables, lengths = borrowed(ends), borrowed(reach)
    source, factors, added, target, out = (
        borrowed(dy),
        borrowed(weight),
        borrowed(addend),
        borrowed(dx),
        borrowed(direct),
    )
    listed, held = borrowed(places), borrowed(buffer)
    for task in prange(numbers[0] * numbers[1] * numbers[4] * numbers[18]):
        thread = get_thread_id() if threads > 1 else 0
        start, to = thread * (listed.size // threads), thread * (held.size // threads)
        _convolve(
            numbers, np.int64(task), tables, lengths, source, factors, added, target, out, listed, start, held, to
        )
