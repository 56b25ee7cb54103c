"""deformable_conv on the CPU for images of few pixels: the samples of all images, then one product by BLAS per group.

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

Of 19 convolutions of 1 to 49 pixels, on a Xeon with AVX-512, the faster way was taken for all."""


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
    product = np.empty((groups, filters.shape[1], columns), wide)
    by_image = product.reshape(-1, found.batch, found.pixels).transpose(1, 0, 2)

    def run() -> None:
        jit.sample_taps.on(threads)(image, *places, *numbers, *tables, column)
        jit.turn_taps.on(threads)(column, rows, found.pixels, found.taps)
        matmul(filters, rows.transpose(0, 2, 1), out=product)
        np.copyto(result, by_image)

    return run
