"""conv_data_grad on the CPU for small images without groups: products of one pixel of all images by its own taps."""

from __future__ import annotations

from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array
from opgauge.ops._cpu.tile import LINE, PRODUCT_SPEED, narrowed, scratch
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_pack import packed_columns
from opgauge.ops.conv_data_grad.cpu_product_costs import FLOAT_BYTES
from opgauge.ops.conv_data_grad.cpu_rows import flat, threads_for
from opgauge.ops.conv_data_grad.op import ConvGeometry

MOST_PIXELS, MOST_LINKS = 256, 1 << 16
"""Maximum pixels of an image of dx, and pairs of a tap and an output, which are listed."""
TASKS = 4
"""Minimum tasks per thread."""


class _Costs(NamedTuple):
    """Times in ns on one thread, measured with random convolutions on an EPYC with AVX-512 (Zen 5).

    In all; per row of a tile and number of its depth; per tile and run; per element in float32 of dy, of dx and of the
    packed filter.
    """

    start: float
    product: float
    run: float
    laid: float
    written: float
    packed: float


COSTS = {False: _Costs(1900, 0.27, 8, 0.08, 0.1, 0.25), True: _Costs(1600, 0.28, 6, 0.03, 0.15, 0.17)}
"""Costs by whether channels are last."""


def images_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Expected time of `by_images` on one thread; infinite where it does not apply."""
    from opgauge.ops._cpu.tile.jit import SHORT_ROWS, tile_columns

    pixels, taps = prod(found.size), prod(found.kernel)
    if found.groups > 1 or pixels > MOST_PIXELS or taps * prod(found.out_size) > MOST_LINKS:
        return inf
    cost, columns = COSTS[found.channels_last], int(tile_columns(np.empty(0, wide)))
    panels, tiles = -(-found.channels // columns), -(-found.batch // SHORT_ROWS)
    steps = found.strides, found.padding, found.dilation
    reached = prod(map(_reached, found.size, found.out_size, found.kernel, *steps))
    merged = found.kernel[-1] if found.strides[-1] == found.dilation[-1] == 1 else 1
    moved = (
        cost.laid * found.batch * prod(found.out_size) * found.out_channels
        + cost.written * tiles * SHORT_ROWS * pixels * panels * columns
        + cost.packed * taps * found.out_channels * panels * columns
    )
    multiplied = tiles * panels * reached * (cost.product * SHORT_ROWS * found.out_channels + cost.run / merged)
    return cost.start + multiplied + moved * wide.itemsize / FLOAT_BYTES


def _reached(size: int, out: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """Pairs of a tap and an output along an axis that meet in dx."""
    starts = np.arange(taps)[:, None] * dilation - padding + np.arange(out) * stride
    return int(((starts >= 0) & (starts < size)).sum())


def runs_of(found: ConvGeometry) -> tuple[Array, Array, Array]:
    """Order of taps in the packed filter; ends of each pixel's runs; of each its output, its tap in order, and length.

    Taps of a row are packed backwards, as neighbouring ones then read neighbouring outputs.
    """
    rank, taps = len(found.size), prod(found.kernel)
    order = np.arange(taps).reshape(-1, found.kernel[-1])[:, ::-1].reshape(-1)
    ordered, outs = np.indices(found.kernel).reshape(rank, -1)[:, order], np.indices(found.out_size).reshape(rank, -1)
    strides, padding, dilation, size = (
        np.array(values).reshape(rank, 1, 1) for values in (found.strides, found.padding, found.dilation, found.size)
    )
    places = outs[:, None] * strides - padding + ordered[:, :, None] * dilation
    inside = ((places >= 0) & (places < size)).all(axis=0)
    tap, out = np.nonzero(inside)
    pixel = np.ravel_multi_index(tuple(places[:, inside]), found.size)
    idle = np.setdiff1d(np.arange(prod(found.size)), pixel)  # that no tap reaches: a run of no taps
    tap, out, pixel = (np.append(one, more) for one, more in ((tap, 0 * idle), (out, 0 * idle), (pixel, idle)))
    length = (np.arange(pixel.size) < pixel.size - idle.size).astype(np.int64)
    sequence = np.lexsort((tap, pixel))
    tap, out, pixel, length = (one[sequence] for one in (tap, out, pixel, length))
    goes_on = (np.diff(tap) == 1) & (np.diff(out) == 1) & (np.diff(pixel) == 0)
    first = np.flatnonzero(np.append(True, ~goes_on))
    runs = np.stack([out[first], tap[first], np.add.reduceat(length, first)], axis=1)
    return order, np.searchsorted(pixel[first], np.arange(prod(found.size) + 1)), runs


def by_images(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A call: dy laid out image by image, the filter packed, then tiles of images by channels, pixel by pixel."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops._cpu.tile.jit import SHORT_ROWS, tile_columns
    from opgauge.ops.conv_data_grad import jit_images as jit

    dy, weight, dx, addend, wide = tensors
    before, after = list[Bound](), list[Bound]()
    last, outs, channels, pixels = found.channels_last, found.out_channels, found.channels, prod(found.size)
    threads, per_line = threads_for(found, tensors, PRODUCT_SPEED), LINE // wide.itemsize
    order, ends, runs = runs_of(found)
    lists = np.concatenate([ends.size + 3 * ends, (runs * outs).reshape(-1)])
    pitch = (-(-prod(found.out_size) * outs // per_line) | 1) * per_line  # odd lines: rows in sets of the cache apart
    tiles, columns = -(-found.batch // SHORT_ROWS), int(tile_columns(np.empty(0, wide)))
    panels = -(-channels // columns)
    laid = scratch(tiles * SHORT_ROWS * pitch, wide)
    packed = packed_columns(found, weight, wide, order, threads, before)
    parts = min(-(-TASKS * threads // (panels * tiles)), pixels) if threads > 1 else 1
    each = -(-pixels // parts)
    sums = scratch(threads * (SHORT_ROWS + 1) * each * columns, wide)
    given, result = storage(dy).reshape(-1), narrowed(dx, wide, after).reshape(-1)
    added = flat(addend, dx)
    sizes = found.batch, pixels, each, channels, order.size * outs

    def run() -> None:
        for step in before:
            step()
        jit.lay_images.on(threads)(given, found.batch, outs, last, laid, pitch)
        jit.multiply_images.on(threads)(laid, pitch, lists, packed, added, result, sizes, sums, threads, last)
        for step in after:
            step()

    return run
