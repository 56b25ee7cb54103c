"""Numba kernels for convolutions with small groups, channels last: vectors of channels summed over taps in registers.

16-bit floats arrive in the format of `opgauge.ops._cpu.jit.storage`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit_lanes import lanes_of, load, multiply_add, spread, store

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
VECTORS = 4
"""Vectors of channels that are summed at once."""


@parallel(error_model="numpy")
def pack_taps(weight: Any, outs: int, taps: int, inner: int, packed: Any) -> None:
    """Filter (groups, outs of a group, taps, channels of a group), flat, to (taps, outs, channels, groups)."""
    each = outs * inner
    groups = weight.size // (taps * each)
    for tap in prange(taps):
        for pair in range(each):
            out, channel = pair // inner, pair % inner
            first, to = (out * taps + tap) * inner + channel, (np.int64(tap) * each + pair) * groups
            for group in range(groups):
                packed[uintp(to + group)] = widen(weight[uintp(first + group * each * taps)])


@parallel(error_model="numpy")
def spread_pixels(dy: Any, groups: int, outs: int, given: Any) -> None:
    """Copy pixels of flat dy, each (groups, outs), to flat given, each (outs, groups)."""
    for pixel in prange(dy.size // (groups * outs)):
        first = np.int64(pixel) * groups * outs
        for out in range(outs):
            to = uintp(first + out * groups)
            for group in range(uintp(groups)):
                given[to + group] = widen(dy[uintp(first + out) + group * uintp(outs)])


@njit(**INNER)
def _sum_vectors(
    given: Any,
    packed: Any,
    rows: Any,
    span: tuple[int, int],
    ends: Any,
    reach: Any,
    width: int,
    groups: tuple[int, int],
    start: int,
    out: Any,
    to: int,
    step: int,
) -> None:
    """Write sums of the products of all taps for a row of pixels and some groups to out, `step` apart, from `to` on.

    span: first and end of the rows of taps. ends: of the taps of each pixel. groups: first and end; the
    last vectors end there, and may overlap others. start: offset in packed.
    """
    lanes, wide = uintp(lanes_of(out)), VECTORS * lanes_of(out)
    for pixel in range(width):
        first, end = ends[uintp(pixel)], ends[uintp(pixel + 1)]
        for place in range(groups[0], groups[1], wide):
            group = min(place, groups[1] - wide)
            v0 = v1 = v2 = v3 = spread(out.dtype.type(0))
            for row in range(span[0], span[1]):
                g_row, f_row = rows[uintp(2 * row)] + group, rows[uintp(2 * row + 1)] + start + group
                for tap in range(first, end):
                    g, f = uintp(g_row + reach[uintp(2 * tap)]), uintp(f_row + reach[uintp(2 * tap + 1)])
                    v0 = multiply_add(load(given, g), load(packed, f), v0)
                    v1 = multiply_add(load(given, g + lanes), load(packed, f + lanes), v1)
                    g, f = g + lanes + lanes, f + lanes + lanes
                    v2 = multiply_add(load(given, g), load(packed, f), v2)
                    v3 = multiply_add(load(given, g + lanes), load(packed, f + lanes), v3)
            at = uintp(to + pixel * step + group)
            store(out, at, v0)
            store(out, at + lanes, v1)
            store(out, at + lanes + lanes, v2)
            store(out, at + lanes + lanes + lanes, v3)


@njit(**INNER)
def _sum_vector(
    given: Any,
    packed: Any,
    rows: Any,
    span: tuple[int, int],
    ends: Any,
    reach: Any,
    width: int,
    groups: tuple[int, int],
    start: int,
    out: Any,
    to: int,
    step: int,
) -> None:
    """Like `_sum_vectors`, one vector at a time, the last from the end of the groups backwards."""
    lanes = lanes_of(out)
    for pixel in range(width):
        first, end = ends[uintp(pixel)], ends[uintp(pixel + 1)]
        for place in range(groups[0], groups[1], lanes):
            group = min(place, groups[1] - lanes)
            total = spread(out.dtype.type(0))
            for row in range(span[0], span[1]):
                g_row, f_row = rows[uintp(2 * row)] + group, rows[uintp(2 * row + 1)] + start + group
                for tap in range(first, end):
                    g, f = uintp(g_row + reach[uintp(2 * tap)]), uintp(f_row + reach[uintp(2 * tap + 1)])
                    total = multiply_add(load(given, g), load(packed, f), total)
            store(out, uintp(to + pixel * step + group), total)


@njit(**INNER)
def _sum_groups(
    given: Any,
    packed: Any,
    rows: Any,
    span: tuple[int, int],
    ends: Any,
    reach: Any,
    width: int,
    groups: tuple[int, int],
    start: int,
    out: Any,
    to: int,
    step: int,
) -> None:
    """Like `_sum_vectors`, of fewer groups than a vector has."""
    for pixel in range(width):
        first, end = ends[uintp(pixel)], ends[uintp(pixel + 1)]
        for group in range(groups[0], groups[1]):
            total = out.dtype.type(0)
            for row in range(span[0], span[1]):
                g_row, f_row = rows[uintp(2 * row)] + group, rows[uintp(2 * row + 1)] + start + group
                for tap in range(first, end):
                    total += (
                        given[uintp(g_row + reach[uintp(2 * tap)])] * packed[uintp(f_row + reach[uintp(2 * tap + 1)])]
                    )
            out[uintp(to + pixel * step + group)] = total


@njit(**INNER)
def _list_rows(numbers: Any, ends: Any, reach: Any, row: int, rows: Any, start: int) -> int:
    """List the rows of taps that reach a row of dx: where each starts in dy and in the filter. Returns their end."""
    _, groups, per_group, outs, depth, height, _, volume = numbers
    image, d, h = row // (depth * height), row // height % depth, row % height
    count = start
    for i in range(ends[d], ends[d + 1]):
        for j in range(ends[depth + h], ends[depth + h + 1]):
            for out in range(outs):
                rows[2 * count] = image * volume + reach[2 * i] + reach[2 * j] + out * groups
                rows[2 * count + 1] = reach[2 * i + 1] + reach[2 * j + 1] + out * groups * per_group
                count += 1
    return count


@njit(**INNER)
def _sum_pixels(
    numbers: Any,
    ends: Any,
    reach: Any,
    given: Any,
    packed: Any,
    rows: Any,
    span: tuple[int, int],
    out: Any,
    to: int,
) -> None:
    """The sums of a row of dx, as (pixels, channels of a group, groups)."""
    _, groups, per_group, _, depth, height, width, _ = numbers
    lanes, columns, step = lanes_of(out), ends[depth + height :], per_group * groups
    wide = VECTORS * lanes
    many = groups if groups > wide and groups % wide > lanes else groups - groups % wide
    for channel in range(per_group):
        start = channel * groups
        at = to + start
        if many:
            _sum_vectors(given, packed, rows, span, columns, reach, width, (0, many), start, out, at, step)
        if many == groups:
            continue
        if groups >= lanes:
            _sum_vector(given, packed, rows, span, columns, reach, width, (many, groups), start, out, at, step)
        else:
            _sum_groups(given, packed, rows, span, columns, reach, width, (0, groups), start, out, at, step)


@njit(**INNER)
def _add(total: Any, addend: Any, first: int, count: int) -> None:
    for index in range(uintp(first), uintp(first + count)):
        total[index] += widen(addend[index])


@njit(**INNER)
def _store_row(numbers: Any, addend: Any, dx: Any, first: int, total: Any, to: int) -> None:
    """Store a row of sums, (pixels, channels of a group, groups), plus the addend to dx, (pixels, channels)."""
    _, groups, per_group, _, _, _, width, _ = numbers
    if per_group == 1:
        at, given = uintp(first), uintp(to)
        for index in range(uintp(width * groups)):
            value = total[given + index] + widen(addend[at + index]) if addend.size else total[given + index]
            dx[at + index] = narrow(value, dx[at + index])
        return
    for pixel in range(width):
        for channel in range(per_group):
            given = to + (pixel * per_group + channel) * groups
            at = first + pixel * per_group * groups + channel
            for group in range(groups):
                place, value = uintp(at + group * per_group), total[uintp(given + group)]
                dx[place] = narrow(value + widen(addend[place]) if addend.size else value, dx[place])


@parallel(error_model="numpy")
def convolve_rows(
    numbers: Any,
    ends: Any,
    reach: Any,
    given: Any,
    packed: Any,
    addend: Any,
    dx: Any,
    out: Any,
    total: Any,
    rows: Any,
    threads: int,
) -> None:
    """Compute dx, channels last, one row at a time; arrays are flat, the addend may be empty.

    numbers: images, groups, channels and outs of a group, sizes of dx, and numbers of an image of dy. ends, reach: for
    each depth, row and column of dx the end of its taps, and of each tap the distance in dy and in packed. given: dy by
    `spread_pixels`, packed: the filter by `pack_taps`. out: dx, if sums need not be moved, else empty. total, rows:
    scratch of each thread.
    """
    _, groups, per_group, _, depth, height, width, _ = numbers
    for task in prange(numbers[0] * depth * height):
        thread = get_thread_id() if threads > 1 else 0
        row, start, to = np.int64(task), thread * (rows.size // (2 * threads)), thread * (total.size // threads)
        span, first = (start, _list_rows(numbers, ends, reach, row, rows, start)), row * width * groups * per_group
        if out.size:
            _sum_pixels(numbers, ends, reach, given, packed, rows, span, out, first)
            if addend.size:
                _add(out, addend, first, width * groups)
        else:
            _sum_pixels(numbers, ends, reach, given, packed, rows, span, total, to)
            _store_row(numbers, addend, dx, first, total, to)
