"""Estimated times of conv_data_grad on the CPU by tiles, by BLAS and tap by tap, which select between them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._cpu.threads import OPERATIONS_PER_NS, count
from opgauge.ops.conv_data_grad.cpu_classes import classes_of
from opgauge.ops.conv_data_grad.cpu_columns import Tensors, has_links, is_strided_pixels, share_products
from opgauge.ops.conv_data_grad.cpu_direct import last_ns
from opgauge.ops.conv_data_grad.cpu_groups import one_group
from opgauge.ops.conv_data_grad.cpu_planes import planes_ns
from opgauge.ops.conv_data_grad.op import ConvGeometry, three


class _Costs(NamedTuple):
    """Times of both ways of a convolution without strides and groups, in products of tiles.

    Tiles take each tap for every pixel of dx, and `tile_pixels` more for the filter, and `written` for each element of
    dx (1322 convolutions of one tap, channels first, on a Xeon with AVX-512: the way taken was 1.33 of the faster one
    in the mean without it, 1.08 with it); BLAS takes `library` for each
    product of the pixels of dy, and of `library_pixels` more, and `fold` for each element of its columns. Both have a
    start. Measured with 900 convolutions of one to 14x14 pixels on an EPYC with AVX-512.
    """

    tile_pixels: float
    tile_start: float
    written: float
    library: float
    library_pixels: float
    fold: float
    library_start: float


COSTS = {
    (True, False): _Costs(23, 170e3, 0, 1.56, 50, 70, 920e3),
    (False, False): _Costs(29, 170e3, 0, 0.82, 5, 66, 360e3),
    (True, True): _Costs(11, 180e3, 0, 0.65, 2.6, 6.5, 130e3),
    (False, True): _Costs(78, 240e3, 20, 0.86, 3.5, 1.4, 340e3),
}
"""Costs by whether channels are last, and whether the filter has one tap."""
LARGE_BYTES, LARGE_LIBRARY = 4 << 20, (0.85, 1.0)
"""Size of dx and dy, as computed with, from which `library` is at least this: results of BLAS are read again from
memory, and 16-bit operands, the second number, are widened there."""
MOST_LOST = 1.3
"""Time of tiles over that of BLAS up to which tiles are preferred: BLAS's threads wait for each other, which takes 2.3
times as long as one thread beside a busy process."""


def prefers_tiles(found: ConvGeometry, tensors: Tensors) -> bool:
    """Whether products of tiles, with zeros and idle columns, are to be preferred to BLAS and a fold."""
    from opgauge.ops._cpu.tile.jit import tile_columns

    if {*found.strides} != {1}:
        return False
    columns = tile_columns(np.empty(0, tensors.wide))
    padded = -(-found.channels // columns) * columns
    pixels, out_pixels = found.batch * prod(found.size), found.batch * prod(found.out_size)
    cost, taps = COSTS[found.channels_last, found.is_pointwise], prod(found.kernel)
    tiles = cost.tile_start + (pixels + cost.tile_pixels) * padded * (taps * found.out_channels + cost.written)
    library = cost.library
    if tensors.wide.itemsize * (tensors.dy.size + tensors.dx.size) >= LARGE_BYTES:
        library = max(library, LARGE_LIBRARY[tensors.dy.dtype != tensors.wide])
    products = library * (out_pixels + cost.library_pixels) * found.out_channels + cost.fold * out_pixels
    return bool(tiles <= MOST_LOST * (products * found.channels * taps + cost.library_start))


class _GroupCosts(NamedTuple):
    """Times in ns of groups by BLAS and a fold, measured with 540 random convolutions on an EPYC with AVX-512.

    In all, per image and per product; per element of the columns: where additions are listed, where rows are added,
    more where images share a product and where a group has one output, which is no product for BLAS; per added row;
    per element of dx.
    """

    start: float
    image: float
    product: float
    listed: float
    added: float
    shared: float
    single: float
    row: float
    element: float


GROUPS = {
    False: _GroupCosts(5240, 144, 43, 0.45, 0.19, 0.37, 0.78, 7.1, 0.11),
    True: _GroupCosts(11300, 131, 59, 0.46, 0.25, 0.0, 0.83, 5.9, 0.7),
}
"""Costs by whether channels are last."""
MULTIPLY_NS = 0.02
"""Time of a multiply-add in a product of BLAS."""
SPREAD_NS = 0.04
"""Time per element of dx in which the products of a 1x1 filter with strides are spread."""
MOST_WOVEN = 2
"""Columns' stride up to which classes are interleaved in vectors."""
TURN_NS = 0.35
"""Time per element whose channels are copied to or from those of a group."""
SQUARE = 8
"""Channels and pixels from which layouts are exchanged in squares of registers."""
COPIES_NS = 4000
"""Time of the copies of a group without their elements."""


class _Scales(NamedTuple):
    """Factors of estimated times with groups that make them comparable with the others, by the way.

    Measured with 1,800 random convolutions on an EPYC with AVX-512; that of AMX on a Xeon.
    """

    groups: float
    amx: float


SCALES = {
    (False, False): _Scales(0.45, 0.75),
    (False, True): _Scales(0.5, 0.6),
    (True, False): _Scales(0.6, 0.5),
    (True, True): _Scales(0.6, 0.8),
}
"""Scales by whether channels are last, and whether the filter has one tap."""


ALONE_LIBRARY, ALONE_TILES = 0.7, 1.1
"""Time of planes without groups, over those of BLAS and of rows of tiles, up to which they are preferred: of 420
convolutions with up to 64 channels the way taken was 1.05 (channels first) and 1.08 of the faster one in the mean,
without planes 1.33 and 1.26. Whole tiles of more channels are faster in rows."""


ONE_IMAGE = 2
"""Time of one image by planes, as a multiple of what threads pay for, from which other ways on several threads are
faster: 16 channels of 112×112 take 652 µs on one thread, another way 430 on two; 24 of 28×28 63 and 81."""


def _scales_of(found: ConvGeometry) -> _Scales:
    return SCALES[found.channels_last, prod(found.kernel) == 1]


class Way(Enum):
    """Ways of a convolution without AMX."""

    LIBRARY = "by BLAS, and a fold"
    DIRECT = "tap by tap"
    TURNED = "tap by tap, on copies in the other layout"
    GROUPS = "group by group, on copies"
    PLANES = "tiles of channels by pixels of a plane"


def way_of_groups(found: ConvGeometry, wide: np.dtype[Any]) -> Way:
    """The way of a convolution with groups whose estimated time is least."""
    times = _group_times(found, wide)
    return min(times, key=times.__getitem__)


def _group_times(found: ConvGeometry, wide: np.dtype[Any]) -> dict[Way, float]:
    scales, first_ns, along_ns = _scales_of(found), _first_ns(found, wide), last_ns(found, wide)
    direct_ns, other_ns = (along_ns, first_ns) if found.channels_last else (first_ns, along_ns)
    return {
        Way.LIBRARY: _library_ns(found),
        Way.DIRECT: direct_ns,
        Way.TURNED: other_ns + _turned_ns(found),
        Way.GROUPS: scales.groups * _groups_ns(found, wide),
        Way.PLANES: planes_ns(found, wide),
    }


def others_ns(found: ConvGeometry, wide: np.dtype[Any], *, thin: bool) -> float:
    """Least time of all ways but AMX, in the unit of AMX's estimate.

    thin: whether one group is small enough for loops tap by tap.
    """
    if found.groups > 1:
        return min(_group_times(found, wide).values()) / _scales_of(found).amx
    if thin:
        return _first_ns(found, wide)
    if {*found.strides} != {1}:
        return _library_ns(found)
    return min(_library_ns(found), _class_ns(found, wide), planes_ns(found, wide))


def prefers_planes(found: ConvGeometry, wide: np.dtype[Any]) -> bool:
    """Whether few channels without groups are to be computed by tiles of a plane. wide: of the sums."""
    time = planes_ns(found, wide)
    if found.batch == 1 and count(0, time / ONE_IMAGE * OPERATIONS_PER_NS) > 1:  # which threads cannot share
        return False
    return time <= min(_library_ns(found) / ALONE_LIBRARY, _tiles_ns(found, wide) / ALONE_TILES)


def woven_ns(found: ConvGeometry, classes: Iterable[ConvGeometry]) -> float:
    """Time in which the results for residue classes are woven into dx."""
    cost = CLASSES[found.channels_last]
    return sum(
        one.batch
        * prod(one.size[:-1])
        * (cost.woven * one.size[-1] * one.channels + cost.row * (1 if one.channels_last else one.channels))
        for one in classes
    )


def _library_ns(found: ConvGeometry) -> float:
    return _products_ns(found) if found.is_pointwise or is_strided_pixels(found) else _columns_ns(found)


def _turned_ns(found: ConvGeometry) -> float:
    """Copies of dy and of dx to the other layout and back, in squares unless a side is shorter, and of the filter."""
    total = 1040 + 0.4 * prod(found.kernel) * found.out_channels * (found.channels // found.groups)
    for channels, size in ((found.channels, found.size), (found.out_channels, found.out_size)):
        total += (0.13 if min(channels, prod(size)) >= SQUARE else 0.27) * found.batch * channels * prod(size)
    return total


def _first_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Channels first: vectors of the pixels of each residue class, summed over all taps, then interleaved."""
    from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES

    size, out, kernel = three(found.size, 1), three(found.out_size, 1), three(found.kernel, 1)
    (_, down, right), lanes = three(found.strides, 1), LANES_BYTES // wide.itemsize
    if found.is_pointwise:
        size = out = (1, 1, prod(size))
    slices = found.batch * found.out_channels * kernel[0] * min(out[0], size[0])
    planes, taps = found.batch * found.channels * size[0], slices * found.channels // found.groups * prod(kernel[1:])
    line = -(-size[1] // down) * (-(-size[2] // right) + (kernel[2] - 1) // right)
    is_vector = right <= MOST_WOVEN and size[2] // right >= lanes
    row = 4.1 + 0.05 * size[2] + (0 if is_vector else 0.26 * size[2])
    return (
        1130
        + 16 * found.batch * found.groups * size[0]
        + slices * out[1] * (0.4 + 0.64 * out[2] / lanes)
        + taps * (1.5 + 0.174 * -(-line // lanes))
        + planes * (8.6 * min(down, size[1]) * min(right, size[2]) + size[1] * row)
    )


def _columns_ns(found: ConvGeometry) -> float:
    cost, outs, pixels = GROUPS[found.channels_last], found.out_channels // found.groups, prod(found.out_size)
    each = MULTIPLY_NS * outs + cost.single * (outs == 1)
    each += cost.listed if has_links(found) else cost.added + cost.row / found.out_size[-1]
    products, images = found.groups * found.batch, found.batch
    if share_products(found):
        each, products = each + cost.shared, found.groups
    elements = images * found.channels * (each * prod(found.kernel) * pixels + cost.element * prod(found.size))
    return cost.start + cost.image * images + cost.product * products + elements


def _products_ns(found: ConvGeometry) -> float:
    """1x1: a product for each group, channels first of each image, and without strides no fold."""
    pixels, outs = found.batch * prod(found.out_size), found.out_channels // found.groups
    if found.channels_last:
        each = found.channels * (MULTIPLY_NS * outs + 0.064) + 3.2 * found.groups + 0.08 * found.out_channels
        spread = SPREAD_NS * found.batch * prod(found.size) * found.channels if is_strided_pixels(found) else 0.0
        return 2750 + 38 * found.groups + pixels * each + spread
    each = found.channels * (MULTIPLY_NS * outs + 0.02) + 0.15 * found.out_channels
    return 3960 + found.batch * (44 + 43 * found.groups) + pixels * each


class _ClassCosts(NamedTuple):
    """Times in ns of convolutions of residue classes by tiles, measured with 8,000 random ones on the same host.

    Per class; per product of tiles, with idle columns; per element of dy as laid out; per element of dx, and per row of
    it, as woven; per element of the packed filter.
    """

    start: float
    product: float
    laid: float
    woven: float
    row: float
    packed: float


CLASSES = {
    False: _ClassCosts(5140, 0.0102, 0.82, 1.3, 21, 0.94),
    True: _ClassCosts(4590, 0.0137, 0.31, 0.34, 67, 0.59),
}
"""Costs by whether channels are last."""


MOVED_NS = 0.75
"""Time per element of a filter whose channels are last, which a product by BLAS needs first: with it, 90 random
convolutions with strides took 1.03 of the faster way in the mean and 1.6 at most, without it 1.16 and 5.2."""


LOST_CLASSES = {False: 1.5, True: 1.0}
"""Estimated time of classes over that of BLAS up to which they are preferred, by whether channels are last: threads
share classes, not a fold (4×64×56×56 by 3×3: 4.6 and 4.1 ms on one thread, 2.1 and 2.7 on two)."""


def prefers_classes(found: ConvGeometry, classes: Iterable[ConvGeometry], wide: np.dtype[Any]) -> bool:
    """Whether tiles for each residue class are to be preferred to a product by BLAS and a fold. wide: of the sums."""
    moved = found.channels * prod(found.kernel) * found.out_channels if found.channels_last else 0
    library = LOST_CLASSES[found.channels_last] * (_columns_ns(found) + MOVED_NS * moved)
    return sum(_class_ns(one, wide) for one in classes) <= library


def _groups_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Tiles for each group, with strides for each residue class, and copies of the channels."""
    one = one_group(found)
    if {*found.strides} == {1}:
        single_ns = _tiles_ns(one, wide)
    else:
        single_ns = sum(_class_ns(part.geometry, wide) for part in classes_of(one))
    copied = found.batch * (found.channels * prod(found.size) + found.out_channels * prod(found.out_size))
    return found.groups * (COPIES_NS + single_ns) + TURN_NS * copied


def _tiles_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Tiles without strides, whose results are not woven."""
    return _class_ns(found, wide) - woven_ns(found, [found])


def _class_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    from opgauge.ops._cpu.tile.jit import GROUP, tile_columns

    cost, size, columns = CLASSES[found.channels_last], three(found.size, 1), int(tile_columns(np.empty(0, wide)))
    steps = zip(size, three(found.kernel, 1), three(found.dilation, 1), strict=True)
    padded = [length + (taps - 1) * dilation for length, taps, dilation in steps]
    filters = prod(found.kernel) * found.out_channels * -(-found.channels // columns) * columns
    lines = found.batch * size[0] * size[1]
    rows = lines if found.channels_last else lines * found.channels
    return (
        cost.start
        + cost.product * lines * (padded[2] if size[2] % GROUP else size[2]) * filters
        + cost.laid * found.batch * prod(padded) * found.out_channels
        + cost.woven * lines * size[2] * found.channels
        + cost.row * rows
        + cost.packed * filters
    )
