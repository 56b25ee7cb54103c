"""conv_data_grad on the CPU in bfloat16 by AMX or dot products, of stride 1: products of pairs, without columns."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array
from opgauge.ops._cpu.tile import PRODUCT_SPEED, scratch
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_rows import threads_for
from opgauge.ops.conv_data_grad.cpu_walk import walk_of
from opgauge.ops.conv_data_grad.op import ConvGeometry, three

SPEED = 64
"""Speed of AMX relative to plain arithmetic, with packing."""
DOT_SPEED = 2 * PRODUCT_SPEED
"""The same of dot products of AVX512_BF16."""
PIXELS = 512
"""Maximum pixels of a task: fewer would read the filter more often, more leave the second-level cache."""
BLOCK = 32
"""Rows and columns of a block of sums, as in `jit_amx`; also numbers of a depth."""
TASKS = 4
"""Minimum tasks per thread."""
MOST_LISTED = 1 << 17
"""Maximum pairs of a block and a tap that are looked at for margins."""


TILE_ROWS = 8
"""Rows of a tile of dot products."""


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


@lru_cache(maxsize=64)
def taps_of_blocks(found: ConvGeometry) -> tuple[Array, Array]:
    """First and end of each block's taps in a list, and the list: those that reach dy from some pixel of the block.

    Blocks of margins have none. All taps are listed for all blocks where there are too many to look at.
    """
    walk, taps = walk_of(found), prod(found.kernel)
    blocks = -(-walk.pixels // BLOCK)
    if taps == 1 or blocks * taps > MOST_LISTED:
        return np.tile([0, taps], (blocks, 1)), np.arange(taps)
    laid, target = np.zeros((2, found.batch, *walk.padded), np.int64)
    inner = (slice(m, m + length) for m, length in zip(walk.margins, three(found.out_size, 1), strict=True))
    laid[(slice(None), *inner)] = 1
    target[(slice(None), *(slice(length) for length in three(found.size, 1)))] = 1
    tail = int(walk.shifts.max()) + BLOCK
    before = np.concatenate([[0], np.cumsum(laid), np.full(tail, laid.sum())])
    starts = np.arange(blocks)[:, None] * BLOCK
    reached = before[starts + walk.shifts + BLOCK] > before[starts + walk.shifts]
    reached[:, 0] |= ~reached.any(axis=1)  # of pixels that no tap reaches, one sets the addend
    reached &= np.add.reduceat(target.reshape(-1), starts[:, 0])[:, None] > 0
    distinct, number = np.unique(reached, axis=0, return_inverse=True)
    ends = np.append(0, np.cumsum(distinct.sum(axis=1)))
    return np.stack([ends[:-1], ends[1:]], 1)[number.reshape(-1)], np.nonzero(distinct)[1]


def _reached(found: ConvGeometry) -> int:
    """Taps of all blocks."""
    spans, _ = taps_of_blocks(found)
    return int((spans[:, 1] - spans[:, 0]).sum())


def amx_ns(found: ConvGeometry) -> float:
    """Expected time of `by_pairs` by AMX on one thread."""
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
        + blocks * cost.block
        + panels * _reached(found) * cost.product * -(-outs // BLOCK)
        + cost.laid * out_pixels * found.out_channels
        + cost.line * out_lines * (1 if last else found.out_channels)
        + cost.packed * taps * outs * found.channels
        + cost.written * rows
    )


class _DotCosts(NamedTuple):
    """Times in ns of dot products of AVX512_BF16, measured with 400 random convolutions on an EPYC (Zen 5).

    In all and per group; per block of sums; per pair of a tile of 8 by 32 sums and of 8 by 16; per number of dy as laid
    out, per row of it and per number beyond a cache; per number of the filter; per row of dx in a block, or, channels
    last, per number.
    """

    start: float
    group: float
    block: float
    tile: float
    half: float
    laid: float
    line: float
    far: float
    packed: float
    written: float


DOTS = {
    False: _DotCosts(2530, 275, 52, 1.99, 1.88, 0.005, 3, 0.1, 0.053, 1.85),
    True: _DotCosts(2580, 177, 89, 1.92, 1.43, 0.015, 9.5, 0.1, 0.074, 0.033),
}
"""Costs by whether channels are last: 90 % of those measured are within 0.7 and 1.15 of the time."""
NEAR_NUMBERS = 1 << 19
"""Numbers of dy as laid out that a cache holds."""


def dots_ns(found: ConvGeometry) -> float:
    """Expected time of `by_pairs` by dot products on one thread."""
    cost, taps, last = DOTS[found.channels_last], prod(found.kernel), found.channels_last
    outs, channels = found.out_channels // found.groups, found.channels // found.groups
    walked, pairs = walk_of(found).pixels, -(-outs // 2)
    rows, columns = (walked, channels) if last else (channels, walked)
    rest = columns % BLOCK
    tiles, halves = columns // BLOCK + (rest > BLOCK // 2), 0 < rest <= BLOCK // 2
    reached = _reached(found) / -(-walked // BLOCK)
    each = (cost.tile * tiles + cost.half * halves) * -(-rows // TILE_ROWS) * reached * pairs
    pixels, out_pixels = found.batch * prod(found.size), found.batch * prod(found.out_size)
    out_lines, lines = (found.batch * prod(lengths[:-1]) for lengths in (found.out_size, found.size))
    written = pixels if last else lines + pixels / BLOCK
    return (
        cost.start
        + found.groups * (cost.group + cost.block * -(-walked // BLOCK) * -(-channels // BLOCK) + each)
        + cost.laid * out_pixels * found.out_channels
        + cost.line * out_lines * (found.groups if last else found.out_channels)
        + cost.far * max(2 * walked * pairs * found.groups - NEAR_NUMBERS, 0)
        + cost.packed * taps * outs * found.channels
        + cost.written * written * found.channels
    )


def by_pairs(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A call: dy laid out with margins, the filter packed, and products of tiles, to which the addend is added."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops._cpu.tile import jit_amx as amx
    from opgauge.ops._cpu.tile.jit_pairs import IN_TILES
    from opgauge.ops.conv_data_grad import jit_pairs as jit

    last, groups, taps = found.channels_last, found.groups, prod(found.kernel)
    outs, channels = found.out_channels // groups, found.channels // groups
    steps = -(-outs // amx.DEPTH) if IN_TILES else 1
    each = -(-outs // (2 * steps)) * 2
    side = amx.SIDE if IN_TILES or not last else BLOCK
    depth, tiles = each * steps, -(-channels // side)
    margins, padded, shifts, pixels = walk_of(found)
    length, threads = pixels + int(shifts.max()) + BLOCK, threads_for(found, tensors, SPEED if IN_TILES else DOT_SPEED)
    image = scratch(length * groups * depth // 2, np.int32)
    packed = scratch(groups * tiles * side * taps * depth // 2, np.int32)
    lengths = three(found.out_size, 1)
    dy = storage(tensors.dy.reshape(found.batch, *((*lengths, -1) if last else (-1, *lengths))))
    weight, dx = storage(tensors.weight), storage(tensors.dx).reshape(-1)
    addend = dx[:0] if tensors.addend is None else storage(tensors.addend).reshape(-1)
    row = 2 * taps * depth
    of_group, of_block, of_tile = tiles * side * row, BLOCK * row, amx.SIDE * row
    if last:
        of_image = 2 * depth, 2 * groups * depth, 2 * groups * depth, 2 * each
        of_row, of_depth = 4 * side, 2 * each * side
        runs = np.arange(taps) * (2 * depth * side)
    else:
        of_image = 2 * depth * length, 4, 4 * length, 2 * each * length
        of_row, of_depth = row, 2 * each
        runs = np.arange(taps) * (2 * depth)
    strides = (*of_image, of_group, of_block, of_tile, of_row, of_depth, steps)
    block = _block(pixels, groups, threads)
    sizes, shifted = (found.batch, found.channels, *three(found.size, 1)), shifts * of_image[1]
    spans, listed = taps_of_blocks(found)
    places = np.stack((shifted, runs) if last else (runs, shifted), 1)[listed].reshape(-1)
    configuration = amx.configuration(each if IN_TILES else 2)
    arrays = configuration, image, packed, strides, places, spans.reshape(-1), addend, dx

    def run() -> None:
        if last:
            jit.lay_channels.on(threads)(dy, image.view(np.int16), padded, margins, groups, depth)
            jit.pack_pairs.on(threads)(weight.reshape(found.out_channels, taps, channels), groups, depth, side, packed)
        else:
            jit.lay_pairs.on(threads)(dy, image, length, padded, margins, groups, depth)
            jit.pack_rows.on(threads)(weight.reshape(found.out_channels, -1), groups, taps, depth, packed)
        jit.convolve.on(threads)(*arrays, groups, block, sizes, padded, last)

    return run


def _block(pixels: int, groups: int, threads: int) -> int:
    """Pixels of a task: whole blocks, and enough tasks for all threads."""
    tasks = -(-TASKS * threads // groups) if threads > 1 else 1
    return max(min(PIXELS, -(-pixels // tasks) // BLOCK * BLOCK), BLOCK)
