"""Numba kernels that lay out the operands of deformable_conv_grad, and collect its results, for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import ROWS, tile_columns

uintp = np.uintp
"""Unsigned index type, without the test for negative indices, so that loops vectorise."""


@njit(**INNER)
def _pack_for_unit(
    weight: Any, group: int, per_group: int, channel: int, unit: int, tap: int, end: int, packed: Any, start: int
) -> None:
    columns = tile_columns(packed)
    for row in range(per_group):
        for now in range(tap, end):
            index = 0
            while index < unit:
                j = (now - tap) * unit + index
                count = min(columns - j % columns, unit - index)
                place = uintp(start + (j // columns * per_group + row) * columns + j % columns)
                first = uintp(channel + index)
                for other in range(uintp(count)):
                    packed[place + other] = widen(weight[uintp(group * per_group + row), first + other, uintp(now)])
                index += count


@parallel(error_model="numpy")
def pack_transposed(weight: Any, groups: int, unit: int, at_once: int, packed: Any) -> None:
    """Pack weight (Co, C / groups, taps) to flat (units, chunks of taps, panels, Co / groups, a tile's columns).

    A unit is as many channels; its columns for one chunk are (taps, channels), padded to whole panels.
    """
    out_channels, depth, taps = weight.shape
    per_group, columns, chunks = out_channels // groups, tile_columns(packed), -(-taps // at_once)
    size = -(-at_once * unit // columns) * columns * per_group
    for task in prange(depth * groups // unit * chunks):
        channel, tap = task // chunks * unit, task % chunks * at_once
        end = min(tap + at_once, taps)
        _pack_for_unit(weight, channel // depth, per_group, channel % depth, unit, tap, end, packed, task * size)


@parallel(error_model="numpy")
def clear(array: Any) -> None:
    """Set flat `array` to zero."""
    for index in prange(array.size):
        array[index] = 0


@parallel(error_model="numpy")
def collect_slopes(slopes: Any, first: int, end: int, grad: Any) -> None:
    """Sum kinds `first` to `end` of slopes over the units of each deformable group: grad (N, dg, taps, kinds, P)."""
    batch, parts, taps, _, pixels = grad.shape
    units = slopes.shape[0] // parts
    for task in prange(batch * parts * taps):
        n, part, tap = task // (parts * taps), task // taps % parts, task % taps
        for kind in range(first, end):
            for pixel in range(pixels):
                value = slopes[part * units, n, tap, kind, pixel]
                for unit in range(1, units):
                    value += slopes[part * units + unit, n, tap, kind, pixel]
                grad[n, part, tap, kind - first, pixel] = narrow(value, grad[n, part, tap, kind - first, pixel])


@njit(**INNER)
def _collect_row(
    filter_sums: Any,
    shares: int,
    size: int,
    start: int,
    pitch: int,
    first: int,
    unit: int,
    grad: Any,
    row: int,
    taps: Any,
) -> None:
    """Taps of one output channel for the channels of a unit; pitch: between panels. taps: first and end."""
    columns, tap, end = tile_columns(filter_sums), taps[0], taps[1]
    for now in range(tap, end):
        index = 0
        while index < unit:
            j = (now - tap) * unit + index
            count = min(columns - j % columns, unit - index)
            place, channel = uintp(start + j // columns * pitch + j % columns), uintp(first + index)
            for other in range(uintp(count)):
                value = filter_sums[place + other]
                for share in range(1, shares):
                    value += filter_sums[uintp(share * size) + place + other]
                where = channel + other
                grad[uintp(row), where, uintp(now)] = narrow(value, grad[uintp(row), where, uintp(now)])
            index += count


@parallel(error_model="numpy")
def collect_filter(filter_sums: Any, shares: int, unit: int, at_once: int, groups: int, grad: Any) -> None:
    """Sum over the shares, transposed to (Co, C / groups, taps)."""
    out_channels, depth, taps = grad.shape
    per_group, columns, chunks = out_channels // groups, tile_columns(filter_sums), -(-taps // at_once)
    rows, panels = -(-per_group // ROWS) * ROWS, -(-at_once * unit // columns)
    size = filter_sums.size // shares
    for task in prange(out_channels):
        group, row = np.int64(task) // per_group, np.int64(task) % per_group
        for first in range(0, depth, unit):
            owner = (group * depth + first) // unit
            for chunk in range(chunks):
                start = ((owner * chunks + chunk) * panels * rows + row) * columns
                span = (chunk * at_once, min((chunk + 1) * at_once, taps))
                _collect_row(filter_sums, shares, size, start, rows * columns, first, unit, grad, np.int64(task), span)
