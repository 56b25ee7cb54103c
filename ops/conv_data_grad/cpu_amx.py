"""conv_data_grad on the CPU in bfloat16 by AMX, for convolutions of stride 1: products of tiles, without columns."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.tile import scratch
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_rows import threads_for
from opgauge.ops.conv_data_grad.cpu_walk import walk_of
from opgauge.ops.conv_data_grad.op import ConvGeometry, three

SPEED = 64
"""Speed of AMX relative to plain arithmetic, with packing."""
PIXELS = 512
"""Maximum pixels of a task: fewer would read the filter more often, more leave the second-level cache."""
BLOCK = 32
"""Rows and columns of a block of sums, as in `jit_amx`; also numbers of a depth."""
TASKS = 4
"""Minimum tasks per thread."""


class _Costs(NamedTuple):
    """Times in ns, measured with 500 random convolutions on a Xeon with AMX (Sapphire Rapids or later).

    In all and per group; per block of sums, and per product of tiles with it; per number of dy as laid out, and per row
    of it; per number of the filter; per row of dx, of channels or of pixels, in a block.
    """

    start: float
    group: float
    block: float
    product: float
    laid: float
    line: float
    packed: float
    written: float


COSTS = {
    False: _Costs(4050, 528, 128, 13.3, 0.15, 5, 0.35, 3.4),
    True: _Costs(3870, 527, 119, 17.2, 0.11, 29, 0.35, 3.8),
}
"""Costs by whether channels are last: those of 500 others were 1.2 of the measured time in the mean."""


def amx_ns(found: ConvGeometry) -> float:
    """Expected time of `by_amx` on one thread."""
    cost, taps, last = COSTS[found.channels_last], prod(found.kernel), found.channels_last
    outs, channels = found.out_channels // found.groups, found.channels // found.groups
    panels = found.groups * -(-channels // BLOCK)
    blocks = -(-walk_of(found).pixels // BLOCK) * panels
    pixels, out_pixels = found.batch * prod(found.size), found.batch * prod(found.out_size)
    out_lines, lines = (found.batch * prod(lengths[:-1]) for lengths in (found.out_size, found.size))
    rows = pixels * panels if last else (lines + pixels / BLOCK) * found.channels
    return (
        cost.start
        + cost.group * found.groups
        + blocks * (cost.block + cost.product * taps * -(-outs // BLOCK))
        + cost.laid * out_pixels * found.out_channels
        + cost.line * out_lines * (1 if last else found.out_channels)
        + cost.packed * taps * outs * found.channels
        + cost.written * rows
    )


def by_amx(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A call: dy laid out with margins, the filter packed, and products of tiles, to which the addend is added."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops._cpu.tile import jit_amx as amx
    from opgauge.ops.conv_data_grad import jit_amx as jit

    last, groups, taps = found.channels_last, found.groups, prod(found.kernel)
    outs, channels = found.out_channels // groups, found.channels // groups
    steps = -(-outs // amx.DEPTH)
    each = -(-outs // (2 * steps)) * 2
    depth, tiles = each * steps, -(-channels // amx.SIDE)
    margins, padded, shifts, pixels = walk_of(found)
    length, threads = pixels + int(shifts.max()) + BLOCK, threads_for(found, tensors, SPEED)
    image = scratch(length * groups * depth // 2, np.int32)
    packed = scratch(groups * tiles * amx.SIDE * taps * depth // 2, np.int32)
    lengths = three(found.out_size, 1)
    dy = storage(tensors.dy.reshape(found.batch, *((*lengths, -1) if last else (-1, *lengths))))
    weight, dx = storage(tensors.weight), storage(tensors.dx).reshape(-1)
    addend = dx[:0] if tensors.addend is None else storage(tensors.addend).reshape(-1)
    row = 2 * taps * depth
    of_group, of_tile = tiles * amx.SIDE * row, amx.SIDE * row
    if last:
        of_image = 2 * depth, 2 * groups * depth, 2 * groups * depth, 2 * each
        of_row, of_depth = 4 * amx.SIDE, 2 * each * amx.SIDE
        runs = np.arange(taps) * (2 * depth * amx.SIDE)
    else:
        of_image = 2 * depth * length, 4, 4 * length, 2 * each * length
        of_row, of_depth = row, 2 * each
        runs = np.arange(taps) * (2 * depth)
    strides = (*of_image, of_group, of_tile, of_row, of_depth, steps)
    block = _block(pixels, groups, threads)
    sizes, shifted = (found.batch, found.channels, *three(found.size, 1)), shifts * of_image[1]
    configuration = amx.configuration(each)

    def run() -> None:
        if last:
            jit.lay_channels.on(threads)(dy, image.view(np.int16), padded, margins, groups, depth)
            jit.pack_pairs.on(threads)(weight.reshape(found.out_channels, taps, channels), groups, depth, packed)
        else:
            jit.lay_pairs.on(threads)(dy, image, length, padded, margins, groups, depth)
            jit.pack_rows.on(threads)(weight.reshape(found.out_channels, -1), groups, taps, depth, packed)
        jit.convolve.on(threads)(
            configuration, image, packed, strides, shifted, runs, addend, dx, groups, block, sizes, padded, last
        )

    return run


def _block(pixels: int, groups: int, threads: int) -> int:
    """Pixels of a task: whole blocks, and enough tasks for all threads."""
    tasks = -(-TASKS * threads // groups) if threads > 1 else 1
    return max(min(PIXELS, -(-pixels // tasks) // BLOCK * BLOCK), BLOCK)
