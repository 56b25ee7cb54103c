"""Numba kernels for convolutions with small groups, channels last: vectors of groups summed over taps in registers.

16-bit floats arrive in the format of `opgauge.ops._cpu.jit.storage`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INLINE, INNER, borrowed, narrow, widen
from opgauge.ops._cpu.jit_store import add_onto, store_sums
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import VECTOR_BYTES
from opgauge.ops._cpu.tile.jit_block import columns_of, multiply_onto, rows_of, store_block, width_of, zeros
from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""
PIXELS = 4
"""Pixels with the same taps that are summed at once."""


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
def _list_rows(numbers: Any, ends: Any, reach: Any, row: int, rows: Any, start: int) -> int:
    """List the rows of taps that reach a row of dx: where each starts in dy and in the filter. Returns their end."""
    _, groups, per_group, outs, depth, height, _, volume, _ = numbers
    image, d, h = row // (depth * height), row // height % depth, row % height
    count = start
    for i in range(ends[d], ends[d + 1]):
        for j in range(ends[depth + h], ends[depth + h + 1]):
            for out in range(outs):
                rows[2 * count] = image * volume + reach[2 * i] + reach[2 * j] + out * groups
                rows[2 * count + 1] = reach[2 * i + 1] + reach[2 * j + 1] + out * groups * per_group
                count += 1
    return count


@njit(**INLINE)
def _sum_run(
    none: Any,
    given: Any,
    packed: Any,
    rows: Any,
    reach: Any,
    span: tuple[int, int, int, int],
    count: int,
    sizes: tuple[int, int, int, int],
    channels: tuple[int, int],
    out: Any,
    to: int,
) -> None:
    """Write sums of the products of all taps for a run of pixels to out, (pixels, channels, groups), from `to` on.

    none: a block of zeros, pixels by channels; the last pixels and vectors of groups end with theirs, and may overlap
    others. span: first and end of the rows of taps, and of the taps of each. count: of pixels. sizes: distance between
    pixels, groups, channels and outs of a group. channels: first and end.
    """
    apart, groups, per_group, outs = sizes
    pixels, lanes, step, pitch = rows_of(none), width_of(none), apart * groups * per_group, groups * outs
    for pair in range(0, count, pixels):
        pixel = min(pair, count - pixels)
        for channel in range(channels[0] * groups, channels[1] * groups, columns_of(none) * groups):
            for place in range(0, groups, lanes):
                group = min(place, groups - lanes)
                sums, g, f = none, pixel * pitch + group, channel + group
                for row in range(uintp(2 * span[0]), uintp(2 * span[1]), uintp(2)):
                    g_row, f_row = g + rows[row], f + rows[row + uintp(1)]
                    for tap in range(uintp(2 * span[2]), uintp(2 * span[3]), uintp(2)):
                        source, factor = g_row + reach[tap], f_row + reach[tap + uintp(1)]
                        sums = multiply_onto(sums, given, source, pitch, packed, factor, groups)
                store_block(out, to + pixel * step + f, step, groups, sums)


@njit(**INNER)
def _sum_groups(
    given: Any, packed: Any, rows: Any, reach: Any, span: Any, count: int, sizes: Any, out: Any, to: int
) -> None:
    """Like `_sum_run` for fewer groups than a vector has."""
    apart, groups, per_group, outs = sizes
    for pixel in range(count):
        for place in range(groups * per_group):
            g, total = pixel * groups * outs + place % groups, out.dtype.type(0)
            for row in range(uintp(2 * span[0]), uintp(2 * span[1]), uintp(2)):
                g_row, f_row = g + rows[row], place + rows[row + uintp(1)]
                for tap in range(uintp(2 * span[2]), uintp(2 * span[3]), uintp(2)):
                    total += given[uintp(g_row + reach[tap])] * packed[uintp(f_row + reach[tap + uintp(1)])]
            out[uintp(to + pixel * apart * groups * per_group + place)] = total


@njit(**INLINE)
def _sum_blocks(
    blocks: Any, given: Any, packed: Any, rows: Any, reach: Any, span: Any, count: int, sizes: Any, out: Any, to: int
) -> None:
    """Sum a run of pixels by blocks: of several pixels and two channels, of as many and one channel, or of one."""
    (pair, single, one), per_group = blocks, sizes[2]
    pairs = per_group - per_group % 2
    if count < rows_of(single):
        _sum_run(one, given, packed, rows, reach, span, count, sizes, (0, per_group), out, to)
        return
    if pairs:
        _sum_run(pair, given, packed, rows, reach, span, count, sizes, (0, pairs), out, to)
    if pairs < per_group:
        _sum_run(single, given, packed, rows, reach, span, count, sizes, (pairs, per_group), out, to)


@njit(**INNER)
def _sum_pixels(
    numbers: Any,
    ends: Any,
    reach: Any,
    runs: Any,
    given: Any,
    packed: Any,
    row: int,
    rows: Any,
    start: int,
    out: Any,
    to: int,
) -> None:
    """The sums of a row of dx, as (pixels, channels of a group, groups)."""
    _, groups, per_group, outs, depth, height, _, _, apart = numbers
    end = _list_rows(numbers, ends, reach, row, rows, start)
    sizes = apart, groups, per_group, outs
    blocks = zeros(out, PIXELS, 2, VECTOR_BYTES), zeros(out, PIXELS, 1, VECTOR_BYTES), zeros(out, 1, 1, VECTOR_BYTES)
    short = zeros(out, 1, 1, LANES_BYTES)
    for index in range(0, runs.size, 2):
        pixel, count = runs[index], runs[index + 1]
        at, last = to + pixel * groups * per_group, depth + height + pixel
        span = start, end, ends[last], ends[last + 1]
        if groups >= width_of(blocks[0]):
            _sum_blocks(blocks, given, packed, rows, reach, span, count, sizes, out, at)
        elif groups >= width_of(short):
            _sum_run(short, given, packed, rows, reach, span, count, sizes, (0, per_group), out, at)
        else:
            _sum_groups(given, packed, rows, reach, span, count, sizes, out, at)


@njit(**INNER)
def _store_row(numbers: Any, addend: Any, dx: Any, first: int, total: Any, to: int) -> None:
    """Store a row of sums, (pixels, channels of a group, groups), plus the addend to dx, (pixels, channels)."""
    _, groups, per_group, _, _, _, width, _, _ = numbers
    if per_group == 1:
        store_sums(total, to, addend, dx, first, width * groups)
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
    runs: Any,
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

    numbers: images, groups, channels and outs of a group, sizes of dx, numbers of an image of dy, and the stride of
    columns. ends, reach: for each depth, row and column of dx the end of its taps, and of each tap the distance in dy
    and in packed. runs: first pixel and number of those of a row with the same taps, a stride apart. given: dy by
    `spread_pixels`, packed: the filter by `pack_taps`. out: dx, if sums need not be moved, else empty. total, rows:
    scratch of each thread.
    """
    _, groups, per_group, _, depth, height, width, _, _ = numbers
    known, distances, alike, source, factors = (
        borrowed(ends),
        borrowed(reach),
        borrowed(runs),
        borrowed(given),
        borrowed(packed),
    )
    listed, target, sums = borrowed(rows), borrowed(out), borrowed(total)
    for task in prange(numbers[0] * depth * height):
        thread = get_thread_id() if threads > 1 else 0
        row, start, to = np.int64(task), thread * (rows.size // threads // 2), thread * (total.size // threads)
        first = row * width * groups * per_group
        if out.size:
            _sum_pixels(numbers, known, distances, alike, source, factors, row, listed, start, target, first)
            if addend.size:
                add_onto(target, addend, first, width * groups)
        else:
            _sum_pixels(numbers, known, distances, alike, source, factors, row, listed, start, sums, to)
            _store_row(numbers, addend, dx, first, sums, to)
