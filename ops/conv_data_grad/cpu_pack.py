"""Filters of conv_data_grad in panels of a tile's columns, as products of tiles on the CPU read them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array
from opgauge.ops._cpu.tile import scratch, widened
from opgauge.ops.conv_data_grad.op import ConvGeometry

TURNED_TAPS = 8
"""Taps from which they are transposed in registers, channels first."""


def packed_columns(
    found: ConvGeometry, weight: Any, wide: np.dtype[Any], order: Array, threads: int, steps: list[Bound]
) -> Any:
    """The filter without groups as flat (panels, taps in `order`, Co, a tile's columns of C), packed by `steps`."""
    from opgauge.ops._cpu.tile.jit import tile_columns
    from opgauge.ops.conv_data_grad import jit_pack as jit

    columns = int(tile_columns(np.empty(0, wide)))
    packed = scratch(-(-found.channels // columns) * order.size * found.out_channels * columns, wide)
    filters = widened(weight, wide, steps).reshape(-1)
    if not found.channels_last and order.size >= TURNED_TAPS:
        turned = scratch(threads * order.size * columns, wide)
        pack = jit.pack_turned.on(threads)
        steps.append(partial(pack, filters, found.out_channels, order, packed, threads, turned))
    else:
        pack = jit.pack_columns.on(threads)
        steps.append(partial(pack, filters, found.out_channels, order, packed, found.channels_last))
    return packed
