"""Estimated times of conv_data_grad on the CPU by products: of tiles, by residue classes, and by BLAS with a fold."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops.conv_data_grad.cpu_classes import are_two
from opgauge.ops.conv_data_grad.cpu_columns import are_rows, has_links, is_strided_pixels, share_products
from opgauge.ops.conv_data_grad.cpu_planes import planes_ns
from opgauge.ops.conv_data_grad.op import ConvGeometry, three

PIXELS = 128
"""Pixels per 1x1 product, by maximum number of summed channels."""
FLOAT_BYTES = 4
"""Size of a number that the times of BLAS are for; those of float64 are in proportion."""


class _TileCosts(NamedTuple):
    """Times in ns of products of tiles, measured with 1,900 random convolutions of one residue class or several.

    Per class; per row of a tile and number of its depth; per tile and run of taps; per element of dy as laid out, of
    dx with idle columns, and of the packed filter; per row of dx, of a channel or of all.
    """

    start: float
    product: float
    tile: float
    laid: float
    written: float
    packed: float
    row: float


TILES = {
    False: _TileCosts(3760, 0.293, 13.5, 0.184, 0.113, 0.244, 1.5),
    True: _TileCosts(3230, 0.296, 13.3, 0.048, 0.077, 0.121, 1.5),
}
"""Costs by whether channels are last. All costs of this module are of an EPYC with AVX-512 (Zen 5)."""

WOVEN, WOVEN_IN_TWOS = {False: (0.6, 18), True: (0.12, 30)}, (0.13, 8)
"""Times with several classes per element and row of dx as woven, by whether channels are last, and of two classes at
once."""


class _PixelCosts(NamedTuple):
    """Times in ns of 1x1 products, channels first, whose columns are pixels, measured with 165 random convolutions.

    In all; per span of pixels; per row of a tile and number of its depth; per element of dy, of dx and of the packed
    filter; per row of dx.
    """

    start: float = 1450
    span: float = 204
    product: float = 0.269
    laid: float = 0.112
    written: float = 0.047
    packed: float = 0.294
    row: float = 31.2


class _LibraryCosts(NamedTuple):
    """Times in ns of products by BLAS, measured with 1,900 random convolutions.

    In all and per product; per multiply-add, and where a channel has one output; per number of the filter for each
    product that reads it, of several pixels and of one; more per product where images share one; per element of dx.
    """

    start: float
    product: float
    multiply: float
    single: float
    filter: float
    vector: float
    shared: float
    element: float


ONE_TAP = {
    False: _LibraryCosts(4090, 0, 0.0179, 0.94, 0.146, 0.146, 0, 0.096),
    True: _LibraryCosts(2620, 0, 0.0155, 0.95, 0.146, 0.022, 0, 0.065),
}
COLUMNS = {
    False: _LibraryCosts(5730, 34, 0.0197, 0.93, 0.134, 0.026, 0.179, 0.143),
    True: _LibraryCosts(12500, 61, 0.0215, 1.01, 0.124, 0.024, 0, 0.685),
}
"""Costs of filters of one tap, and of products whose columns are folded, by whether channels are last."""
COLUMNS_AS_ROWS = _LibraryCosts(1320, 0, 0.0187, 0, 0.157, 0.019, 0, 0.148)
"""Costs of products with the filter as it lies (`are_rows`)."""
ADDED_TAP_NS, ADDED_PIXEL_NS = 609, 26.9
"""Times of an addition by NumPy, of a tap and of each of its pixels."""
GIVEN_NS, SHARED_NS, SPREAD_NS = 0.12, 0.114, 0.11
"""Times of one tap: per element of dy; per element of dx and dy where images share a product; per element of dx in
which the products of strided pixels are spread."""
LISTED_NS, ADDED_NS, ROW_NS = {False: 0.383, True: 0.327}, {False: 0.235, True: 0.164}, 5.0
"""Times per element of the columns where additions are listed, and where rows are added, by whether channels are last,
and per added row."""
CLASS_NS = 1000
"""Time of the calls of a residue class."""
COPIED_NS = {False: 0.35, True: 0.1}
"""Time per number of a filter that is copied for residue classes, by whether channels are last."""
MOVED_NS = 0.28
"""Time per number of a filter whose channels are last, which is transposed for columns."""


def tiles_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Stride 1: tiles of pixels by channels. Those of rows skip the taps that none of their pixels reads."""
    from opgauge.ops._cpu.tile import jit as tile

    cost, columns = TILES[found.channels_last], int(tile.tile_columns(np.empty(0, wide)))
    size, out, kernel, padding, dilation = _three(found)
    panels, lines = -(-found.channels // columns), found.batch * size[0]
    run = kernel[2] if dilation[2] == 1 else 1
    padded = [length + max(p, d * (k - 1) - p) for length, p, k, d in zip(size, padding, kernel, dilation, strict=True)]
    if found.is_pointwise and found.channels_last:
        tiles, taps = -(-found.batch * prod(size) // tile.ROWS), 1.0
    else:
        line = padded[2] if size[2] % tile.GROUP else size[2]
        tiles, rows = lines * -(-size[1] * line // tile.ROWS), min(-(-tile.ROWS // line), size[1])
        planes = _reached(size[0], out[0], kernel[0], padding[0], dilation[0]) / size[0]
        reached = _reached(size[1], out[1] + rows - 1, kernel[1], padding[1], dilation[1]) / size[1]
        taps = max(planes * min(kernel[1], reached) * kernel[2], 1.0)
    filters = prod(kernel) * found.out_channels * panels * columns
    parts = taps / run * -(-found.out_channels * run // tile.DEPTH)
    return (
        cost.start
        + tiles * panels * (cost.product * tile.ROWS * taps * found.out_channels + cost.tile * parts)
        + cost.laid * found.batch * prod(padded) * found.out_channels
        + cost.written * found.batch * prod(size) * panels * columns
        + cost.packed * filters
        + cost.row * lines * size[1] * (1 if found.channels_last else found.channels)
    )


def classes_ns(found: ConvGeometry, parts: Iterable[ConvGeometry], wide: np.dtype[Any]) -> float:
    """A convolution without strides for each residue class of pixels, woven into dx."""
    return sum(
        min(planes_ns(one, wide), inf if one.groups > 1 else tiles_ns(one, wide)) + woven_ns(found, one)
        for one in parts
    )


def woven_ns(found: ConvGeometry, one: ConvGeometry) -> float:
    """Time in which the filter of a residue class is copied, and its result is woven into dx."""
    element, row = WOVEN_IN_TWOS if are_two(found) else WOVEN[found.channels_last]
    rows = one.batch * prod(one.size[:-1])
    woven = rows * (element * one.size[-1] * one.channels + row * (1 if one.channels_last else one.channels))
    return (
        CLASS_NS
        + woven
        + COPIED_NS[one.channels_last] * prod(one.kernel) * one.channels * one.out_channels // one.groups
    )


def span_of(found: ConvGeometry) -> int:
    """Pixels per 1x1 product, channels first: its operands fit the second-level cache."""
    return PIXELS if found.out_channels <= PIXELS else PIXELS // 2


def pixels_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """1x1, channels first: tiles of channels by pixels, a span of pixels at a time."""
    from opgauge.ops._cpu.tile import jit as tile

    cost, pixels, columns = _PixelCosts(), prod(found.size), int(tile.tile_columns(np.empty(0, wide)))
    span = span_of(found)
    tiles = pixels // span * -(-span // columns) + -(-(pixels % span) // columns)
    rows = -(-found.channels // tile.ROWS) * tile.ROWS
    each = (
        cost.span * -(-pixels // span)
        + cost.product * tiles * rows * found.out_channels
        + cost.laid * pixels * found.out_channels
        + (cost.written * pixels + cost.row) * found.channels
    )
    return cost.start + found.batch * each + cost.packed * rows * found.out_channels


def library_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Products by BLAS, and where there are several taps a fold."""
    scale, shared = wide.itemsize / FLOAT_BYTES, share_products(found)
    outputs, elements = found.batch * prod(found.out_size), found.batch * prod(found.size) * found.channels
    if found.is_pointwise or is_strided_pixels(found):
        moved = GIVEN_NS * scale * outputs * found.out_channels + (0 if found.is_pointwise else SPREAD_NS * elements)
        moved += SHARED_NS * outputs * (found.channels + found.out_channels) if shared else 0
        together = shared or found.channels_last
        return moved + _multiply_ns(found, ONE_TAP[found.channels_last], scale, together=together)
    if are_rows(found):
        moved = prod(found.kernel) * (ADDED_TAP_NS + ADDED_PIXEL_NS * outputs)
        return moved + _multiply_ns(found, COLUMNS_AS_ROWS, scale, together=True)
    each = LISTED_NS if has_links(found) else ADDED_NS
    row = 0 if has_links(found) else ROW_NS / found.out_size[-1]
    moved = (scale * each[found.channels_last] + row) * found.channels * prod(found.kernel) * outputs
    moved += MOVED_NS * found.channels * prod(found.kernel) * found.out_channels if found.channels_last else 0
    return moved + _multiply_ns(found, COLUMNS[found.channels_last], scale, together=shared)


def _multiply_ns(found: ConvGeometry, cost: _LibraryCosts, scale: float, *, together: bool) -> float:
    """One product of all images, or one for each."""
    products, outputs, taps = 1 if together else found.batch, found.batch * prod(found.out_size), prod(found.kernel)
    read = cost.filter if outputs > products else cost.vector
    each = (cost.multiply * outputs + read * products) * found.out_channels * scale
    each += (cost.single * (found.out_channels == 1) + cost.shared * scale * together) * outputs
    elements = found.batch * prod(found.size) * found.channels
    return cost.start + cost.product * products + found.channels * taps * each + cost.element * scale * elements


def _three(found: ConvGeometry) -> tuple[tuple[int, int, int], ...]:
    """Sizes of dx and dy, and lengths of the filter, padding and dilation, of three axes."""
    pairs = ((found.size, 1), (found.out_size, 1), (found.kernel, 1), (found.padding, 0), (found.dilation, 1))
    return tuple(three(values, fill) for values, fill in pairs)


def _reached(size: int, out: int, taps: int, padding: int, dilation: int) -> int:
    """Pairs of an index of dx along an axis and a tap through which it reads dy."""
    starts = (tap * dilation - padding for tap in range(taps))
    return sum(max(min(size, out + start) - max(start, 0), 0) for start in starts)
