"""Numba kernels that pack the filter in panels of a tile's columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_thread_id, njit, prange

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.jit_store import copy_row
from opgauge.ops._cpu.threads import parallel
from opgauge.ops._cpu.tile.jit import tile_columns
from opgauge.ops._cpu.tile.jit_lanes import turn_block

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""


@njit(**INNER)
def _gather(weight: Any, first: int, step: int, count: int, packed: Any, place: int) -> None:
    for index in range(uintp(count)):
        packed[uintp(place) + index] = weight[uintp(first) + index * uintp(step)]


@parallel(error_model="numpy")
def pack_columns(weight: Any, outs: int, order: Any, packed: Any, last: Any) -> None:
    """Pack a flat filter to flat (panels, taps, Co, a tile's columns of C), taps in `order`.

    It is (Co, taps, C) if `last`, else (Co, C, taps).
    """
    columns, taps = tile_columns(packed), order.size
    channels = weight.size // (outs * taps)
    for task in prange(-(-channels // columns) * taps):
        tap, channel = order[task % taps], task // taps * columns
        used = min(columns, channels - channel)
        for out in range(outs):
            start, place = out * channels * taps, (task * outs + out) * columns
            if last:
                copy_row(weight, start + tap * channels + channel, used, packed, place)
            else:
                _gather(weight, start + channel * taps + tap, taps, used, packed, place)


@parallel(error_model="numpy")
def pack_turned(weight: Any, outs: int, order: Any, packed: Any, threads: int, turned: Any) -> None:
    """Like `pack_columns`, of a filter (Co, C, taps), whose taps are transposed. turned: scratch of each thread."""
    columns, taps = tile_columns(packed), order.size
    channels = weight.size // (outs * taps)
    panels = -(-channels // columns)
    for task in prange(panels * outs):
        panel, out = task // outs, task % outs
        place, used = (get_thread_id() if threads > 1 else 0) * taps * columns, min(columns, channels - panel * columns)
        start = (out * channels + panel * columns) * taps
        turn_block(weight, start, taps, used, taps, turned, place, columns)
        for number in range(taps):
            target = ((panel * taps + number) * outs + out) * columns
            copy_row(turned, place + order[number] * columns, used, packed, target)
