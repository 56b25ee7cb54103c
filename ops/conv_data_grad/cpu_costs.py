"""Estimated times of the ways of conv_data_grad on the CPU, which select between them."""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._cpu.threads import OPERATIONS_PER_NS, count
from opgauge.ops.conv_data_grad.cpu_classes import classes_of
from opgauge.ops.conv_data_grad.cpu_columns import has_links, is_strided_pixels, share_products
from opgauge.ops.conv_data_grad.cpu_direct import last_ns
from opgauge.ops.conv_data_grad.cpu_few import few_ns
from opgauge.ops.conv_data_grad.cpu_groups import one_group
from opgauge.ops.conv_data_grad.cpu_images import images_ns
from opgauge.ops.conv_data_grad.cpu_planes import planes_ns
from opgauge.ops.conv_data_grad.cpu_product_costs import classes_ns, library_ns, pixels_ns, tiles_ns
from opgauge.ops.conv_data_grad.op import ConvGeometry, three


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
READ_NS = 0.02
"""Time per byte of the filter that each product of BLAS reads."""
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
    (False, False): _Scales(0.7, 0.75),
    (False, True): _Scales(0.7, 0.6),
    (True, False): _Scales(0.9, 0.5),
    (True, True): _Scales(0.75, 0.8),
}
"""Scales by whether channels are last, and whether the filter has one tap."""
BESIDE_OTHERS = 1.1
"""Factor of the time of BLAS: its threads wait for each other, also for one that shares its processor."""
MANY_CHANNELS = 1.12
"""Factor of the time tap by tap without groups: all channels of dy do not fit the nearest cache."""
LOOP_BYTES = 512 << 10
"""Size of dy and dx up to which one tap is computed by loops without groups: they read larger ones from memory, or from
a cache that is as slow, on as many threads as there are images and channels. 64 channels of 408×408 to one: 3.4 ms, by
BLAS 0.7; 32 of 100×100 in 4 images 163 µs, 72. To a single channel BLAS is faster at any size: 32 of 60×60 13 µs, 7.
"""
ONE_IMAGE = 2
"""Time of one image by planes, as a multiple of what threads pay for, from which it counts as often: other ways on
several threads are faster. 16 channels of 112×112 take 652 µs on one thread, another way 430 on two; 24 of 28×28 63
and 81."""
PREFERRED = 0.85
"""Part of the time of other ways below which dot products of pairs are taken.

Of 400 small convolutions 20 took longer by over 5 % with 1, and 2 with 0.8.
"""


def _scales_of(found: ConvGeometry) -> _Scales:
    return SCALES[found.channels_last, prod(found.kernel) == 1]


class Way(Enum):
    """Ways of a convolution, but by pairs of bfloat16."""

    LIBRARY = "by BLAS, and a fold"
    DIRECT = "tap by tap"
    TURNED = "tap by tap, on copies in the other layout"
    GROUPS = "group by group, on copies"
    PLANES = "tiles of channels by pixels of a plane"
    TILES = "tiles of pixels by channels"
    PIXELS = "tiles of channels by pixels, 1x1"
    FEW = "few outputs times the filter as it lies, and a fold"
    IMAGES = "tiles of images by channels, pixel by pixel"
    CLASSES = "tiles or planes of each residue class"


def way_of(found: ConvGeometry, wide: np.dtype[Any]) -> Way:
    """The way whose estimated time is least. wide: of the sums."""
    times = _times(found, wide)
    return min(times, key=times.__getitem__)


def others_ns(found: ConvGeometry, wide: np.dtype[Any], *, of_amx: bool) -> float:
    """Time up to which pairs are preferred to all other ways, in the unit of AMX's estimate if `of_amx`."""
    least_ns = min(_times(found, wide).values())
    return least_ns / _scales_of(found).amx if of_amx else PREFERRED * least_ns


def _times(found: ConvGeometry, wide: np.dtype[Any]) -> dict[Way, float]:
    first_ns, along_ns, taps = _first_ns(found, wide), last_ns(found, wide), prod(found.kernel)
    direct_ns, other_ns = (along_ns, first_ns) if found.channels_last else (first_ns, along_ns)
    loops = {Way.DIRECT: direct_ns, Way.TURNED: other_ns + _turned_ns(found)}
    if {*found.strides} != {1}:
        tiles = {Way.CLASSES: classes_ns(found, (one.geometry for one in classes_of(found)), wide)}
    else:
        tiles = {Way.PLANES: planes_ns(found, wide)} if taps > 1 else {}
    tiles[Way.FEW] = few_ns(found, wide)
    if found.groups > 1:
        times = {Way.LIBRARY: _library_ns(found, wide), Way.GROUPS: _scales_of(found).groups * _groups_ns(found, wide)}
        return loops | tiles | times
    if Way.PLANES in tiles and found.batch == 1 and count(0, tiles[Way.PLANES] / ONE_IMAGE * OPERATIONS_PER_NS) > 1:
        tiles[Way.PLANES] *= ONE_IMAGE  # threads cannot share it
    if {*found.strides} == {1}:
        tiles[Way.TILES] = tiles_ns(found, wide)
    tiles[Way.IMAGES] = images_ns(found, wide)
    if found.is_pointwise and not found.channels_last:
        tiles[Way.PIXELS] = pixels_ns(found, wide)
    library = {Way.LIBRARY: BESIDE_OTHERS * library_ns(found, wide)}
    if _is_product(found, wide):
        return tiles | library
    return {way: MANY_CHANNELS * time for way, time in loops.items()} | tiles | library


def _is_product(found: ConvGeometry, wide: np.dtype[Any]) -> bool:
    """Whether one tap without groups is too much for loops, see `LOOP_BYTES`."""
    if prod(found.kernel) > 1 or found.channels == found.out_channels == 1:
        return False
    return found.channels == 1 or wide.itemsize * _elements(found) > LOOP_BYTES


def _elements(found: ConvGeometry) -> int:
    """Elements of dx and dy."""
    return found.batch * (found.channels * prod(found.size) + found.out_channels * prod(found.out_size))


def _library_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """With groups: products by BLAS, whose filters are read for each image or for all, and a fold of several taps."""
    images = 1 if share_products(found) or (found.channels_last and prod(found.kernel) == 1) else found.batch
    filters = found.channels * prod(found.kernel) * found.out_channels // found.groups
    read_ns = READ_NS * wide.itemsize * images * filters
    is_one_tap = found.is_pointwise or is_strided_pixels(found)
    return read_ns + (_products_ns(found) if is_one_tap else _columns_ns(found))


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
    single = found.channels * GROUPS[found.channels_last].single * (outs == 1 and found.channels > found.groups)
    if found.channels_last:
        each = single + found.channels * (MULTIPLY_NS * outs + 0.064) + 3.2 * found.groups + 0.08 * found.out_channels
        spread = SPREAD_NS * found.batch * prod(found.size) * found.channels if is_strided_pixels(found) else 0.0
        return 2750 + 38 * found.groups + pixels * each + spread
    each = single + found.channels * (MULTIPLY_NS * outs + 0.02) + 0.15 * found.out_channels
    return 3960 + found.batch * (44 + 43 * found.groups) + pixels * each


def _groups_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """The least time of one group for each, and copies of the channels."""
    single_ns = min(_times(one_group(found), wide).values())
    return found.groups * (COPIES_NS + single_ns) + TURN_NS * _elements(found)
