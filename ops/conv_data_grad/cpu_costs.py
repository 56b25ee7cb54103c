"""Estimated times of conv_data_grad on the CPU by tiles and by BLAS, which select between them."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.op import ConvGeometry


class _Costs(NamedTuple):
    """Times of both ways of a convolution without strides and groups, in products of tiles.

    Tiles take each tap for every pixel of dx, and `tile_pixels` more for the filter; BLAS takes `library` for each
    product of the pixels of dy, and of `library_pixels` more, and `fold` for each element of its columns. Both have a
    start. Measured with 900 convolutions of one to 14x14 pixels on an EPYC with AVX-512.
    """

    tile_pixels: float
    tile_start: float
    library: float
    library_pixels: float
    fold: float
    library_start: float


COSTS = {
    (True, False): _Costs(23, 170e3, 1.56, 50, 70, 920e3),
    (False, False): _Costs(29, 170e3, 0.82, 5, 66, 360e3),
    (True, True): _Costs(11, 180e3, 0.65, 2.6, 6.5, 130e3),
    (False, True): _Costs(78, 240e3, 0.86, 3.5, 1.4, 340e3),
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
    tiles = cost.tile_start + (pixels + cost.tile_pixels) * padded * taps * found.out_channels
    library = cost.library
    if tensors.wide.itemsize * (tensors.dy.size + tensors.dx.size) >= LARGE_BYTES:
        library = max(library, LARGE_LIBRARY[tensors.dy.dtype != tensors.wide])
    products = library * (out_pixels + cost.library_pixels) * found.out_channels + cost.fold * out_pixels
    return bool(tiles <= MOST_LOST * (products * found.channels * taps + cost.library_start))
