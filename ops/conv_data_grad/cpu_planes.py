"""conv_data_grad on the CPU by tiles of channels and pixels, for stride 1 and few channels per group."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import OPERATIONS_PER_NS, count
from opgauge.ops._cpu.tile import narrowed, scratch, widened
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_walk import walk_of
from opgauge.ops.conv_data_grad.op import ConvGeometry, three


class _Costs(NamedTuple):
    """Times in ns, measured with 280 random convolutions on an EPYC with AVX-512: nine in ten within 0.88 and 1.14.

    In all; per group of an image; per tile of rows and columns, and per tap and output channel of it; per row and
    element of dy, channels last a row of all channels of a group; the same of dx; per number of the filter.
    """

    start: float
    group: float
    tile: float
    product: float
    laid_row: float
    laid: float
    row: float
    stored: float
    packed: float


COSTS = {
    False: _Costs(1610, 56, 17, 3.0, 1.07, 0.05, 1.7, 0.04, 0.27),
    True: _Costs(1620, 18, 44, 2.9, 0.85, 0.27, 19, 0.1, 0.22),
}
"""Costs by whether channels are last."""
LAID_BYTES = 7 << 20
"""Size of a group of an image as laid out for which products take twice the time, as it is read from far caches."""


def planes_ns(found: ConvGeometry, wide: np.dtype[np.generic]) -> float:
    """Expected time of `by_planes` on one thread, of stride 1."""
    from opgauge.ops._cpu.tile.jit import LISTED_ROWS, listed_columns

    cost, last, (_, padded, shifts, _) = COSTS[found.channels_last], found.channels_last, walk_of(found)
    per_group, outs = found.channels // found.groups, found.out_channels // found.groups
    size, out_size, groups = three(found.size, 1), three(found.out_size, 1), found.batch * found.groups
    blocks = -(-per_group // LISTED_ROWS)
    pixels = ((size[0] - 1) * padded[1] + size[1] - 1) * padded[2] + size[2]
    tiles = groups * blocks * -(-pixels // listed_columns(np.empty(0, wide)))
    missed = 1 + outs * prod(padded) * wide.itemsize / LAID_BYTES
    return float(
        cost.start
        + cost.group * groups
        + tiles * (cost.tile + cost.product * outs * len(shifts) * missed)
        + groups * prod(out_size[:2]) * (outs * cost.laid * out_size[2] + cost.laid_row * (1 if last else outs))
        + groups * prod(size[:2]) * (per_group * cost.stored * size[2] + cost.row * (blocks if last else per_group))
        + cost.packed * len(shifts) * outs * found.channels
    )


def by_planes(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A call: the filter packed, then each group of each image; tensors in 16 bits are copied in float32."""
    from opgauge.ops._cpu.tile.jit import LISTED_ROWS, listed_columns
    from opgauge.ops.conv_data_grad import jit_planes as jit

    wide, before, after = tensors.wide, list[Bound](), list[Bound]()
    # threads share groups of images, of which each lies in one's cache
    threads = count(0, planes_ns(found, wide) * OPERATIONS_PER_NS) if found.batch * found.groups > 1 else 1
    dy, weight = (widened(array, wide, before).reshape(-1) for array in (tensors.dy, tensors.weight))
    dx = narrowed(tensors.dx, wide, after).reshape(-1)
    addend = dx[:0] if tensors.addend is None else widened(tensors.addend, wide, before).reshape(-1)
    per_group, outs, last = found.channels // found.groups, found.out_channels // found.groups, found.channels_last
    margins, padded, shifts, _ = walk_of(found)
    places = (shifts[:, None] + np.arange(outs) * prod(padded)).reshape(-1)
    packed = scratch(found.groups * -(-per_group // LISTED_ROWS) * LISTED_ROWS * prod(found.kernel) * outs, wide)
    given = scratch(threads * (outs * prod(padded) + int(shifts.max()) + listed_columns(dx)), wide)
    total = scratch(threads * LISTED_ROWS * jit.PIXELS, wide)
    sizes = (*three(found.size, 1), *three(found.out_size, 1), *padded, *margins)
    numbers = (found.batch, found.groups, per_group, outs, *map(int, sizes), int(last))

    def run() -> None:
        for step in before:
            step()
        jit.pack_groups.on(threads)(weight, found.groups, per_group, outs, last, packed)
        jit.convolve_groups.on(threads)(numbers, places, dy, packed, addend, dx, given, total, threads)
        for step in after:
            step()

    return run
