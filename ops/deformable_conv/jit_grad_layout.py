"""Numba kernels that lay out the operands of deformable_conv_grad, and collect its results, for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER, narrow, widen
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import ROWS, tile_columns


@njit(**INNER)
def _pack_for_unit(
    weight: Any, group: int, per_group: int, channel: int, unit: int, tap: int, end: int, packed: Any, start: int
) -> None:
    columns = tile_columns(packed)
    for now in range(tap, end):
        for index in range(unit):
            j = (now - tap) * unit + index
            place = start + j // columns * per_group * columns + j % columns
            for row in range(per_group):
                packed[place + row * columns] = widen(weight[group * per_group + row, channel + index, now])


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


@parallel(error_model="numpy")
def collect_filter(filter_sums: Any, shares: int, unit: int, at_once: int, groups: int, grad: Any) -> None:
    """Sum over the shares, transposed to (Co, C / groups, taps)."""
    out_channels, depth, taps = grad.shape
    per_group, columns, chunks = out_channels // groups, tile_columns(filter_sums), -(-taps // at_once)
    rows, panels = -(-per_group // ROWS) * ROWS, -(-at_once * unit // columns)
    size = filter_sums.size // shares
    for task in prange(groups * depth):
        group, channel = task // depth, task % depth
        owner, inside = task // unit, task % unit
        for tap in range(taps):
            j = tap % at_once * unit + inside
            panel = (owner * chunks + tap // at_once) * panels + j // columns
            place = np.uintp(panel * rows * columns + j % columns)
            for row in range(np.uintp(per_group)):
                value = filter_sums[place + row * np.uintp(columns)]
                for share in range(1, shares):
                    value += filter_sums[np.uintp(share * size) + place + row * np.uintp(columns)]
                out_channel = np.uintp(group * per_group) + row
                grad[out_channel, channel, tap] = narrow(value, grad[out_channel, channel, tap])
