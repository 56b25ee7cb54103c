"""deformable_conv and its gradient on the CPU for images of few pixels: products by BLAS of all images, one per group.

A filter that is read for few pixels is not worth packing; BLAS takes it as it lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.blas import matmul
from opgauge.ops._cpu.tile import scratch
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

MOST_PIXELS, MOST_BYTES = 64, 1 << 26
"""Maximum pixels of an image, and maximum size of the samples of all images, for a common product."""
PACKED_NS, IDLE_NS, TURNED_NS = 0.6, 0.02, 2.5
"""Time to pack an element of the filter and to multiply it by a row of a tile that is no pixel, and to turn a sample.

Of 19 convolutions of 1 to 49 pixels, on a Xeon with AVX-512, the faster way was taken for all. Gradients have the same
rule: where it took products, 780 random ones took 1.4 of the time of tiles at most."""

FEW_COLUMNS, LEAST_FILTER = 3, 1 << 16
"""Pixels of all images up to which each is a product, and least numbers of a filter, which BLAS copies for more."""


def share_products(found: SamplingGeometry, wide: Any) -> bool:
    """Whether images have so few pixels that tiles would read and pack the filter for little."""
    from opgauge.ops._cpu.tile.jit import ROWS

    samples = found.batch * found.pixels * found.channels * found.taps
    if found.pixels > MOST_PIXELS or not 0 < samples * wide.itemsize <= MOST_BYTES:
        return False
    idle = found.batch * (-found.pixels % ROWS)
    return TURNED_NS * samples <= (PACKED_NS + IDLE_NS * idle) * found.out_channels * found.depth


def by_products(
    found: SamplingGeometry, image: Any, places: tuple[Any, Any], weight: Any, result: Any, numbers: Any, threads: int
) -> Bound:
    """A call that samples `image`, multiplies by `weight` (Co, C / groups, taps) and writes `result` (N, Co, pixels).

    places: offset and mask. numbers: sizes and geometry, as `jit.convolve` takes them.
    """
    from opgauge.ops.deformable_conv import jit

    groups, columns, wide = found.groups, found.batch * found.pixels, image.dtype
    rows = np.empty((groups, columns, found.depth), wide)
    column = scratch(rows.size, wide)
    tables = np.empty((threads, found.pixels), np.int32), np.empty((threads, 7, found.pixels), wide)
    filters = weight.reshape(groups, -1, found.depth)
    at_once = 1 if columns <= FEW_COLUMNS and weight.size >= LEAST_FILTER else columns
    product = np.empty((columns // at_once, groups, filters.shape[1], at_once), wide)
    by_image = product.transpose(0, 3, 1, 2).reshape(found.batch, found.pixels, -1).transpose(0, 2, 1)
    parts = rows.reshape(groups, -1, at_once, found.depth).transpose(1, 0, 3, 2)
    products = [*zip(parts, product, strict=True)]

    def run() -> None:
        jit.sample_taps.on(threads)(image, *places, *numbers, *tables, column)
        jit.turn_taps.on(threads)(column, rows, found.pixels, found.taps)
        for part, into in products:
            matmul(filters, part, out=into)
        np.copyto(result, by_image)

    return run


def gradients_by_products(
    found: SamplingGeometry,
    arrays: tuple[Any, ...],
    grads: tuple[Any, ...],
    needs: tuple[bool, ...],
    unit: int,
    numbers: tuple[int, ...],
    own: tuple[Any, ...],
    threads: int,
) -> Bound:
    """A call that adds to the image's gradient and writes those of slopes and filter, which is flat in a group.

    arrays: image, offset, mask, output's gradient (N, Co, pixels) and filter (Co, C / groups, taps). grads: of image,
    slopes and filter. needs, numbers and own, each thread's scratch: as for `jit_grad.differentiate`.
    """
    from opgauge.ops.deformable_conv import jit_grad

    image, offset, mask, out_grad, weight = arrays
    groups, columns, wide = found.groups, found.batch * found.pixels, image.dtype
    given = np.empty((groups, found.out_channels // groups, columns), wide)
    by_image = given.reshape(-1, found.batch, found.pixels).transpose(1, 0, 2)
    rows = np.empty((groups, columns, found.depth), wide)
    filters = weight.reshape(groups, -1, found.depth)
    (image_grad, slopes, filter_grad), (places, weights, _, column) = grads, own
    sums = None if filter_grad is None else filter_grad.reshape(filters.shape)
    sizes = (found.channels, groups, found.deformable_groups, unit, found.taps)
    spread = jit_grad.spread_rows.on(threads)

    def run() -> None:
        np.copyto(by_image, out_grad)
        if needs[0] or needs[1]:
            matmul(given.transpose(0, 2, 1), filters, out=rows)
        spread(image, offset, mask, rows, image_grad, slopes, sizes, numbers, needs, places, weights, column)
        if sums is not None:
            matmul(given, rows, out=sums)

    return run
