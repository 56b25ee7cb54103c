"""Copies of dy and the filter with channels last, for `convolve_patches`, where tensors have them first."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops._cuda.struct import DIVISOR, address, pack
from opgauge.ops.conv_data_grad.gather_layout import ALIGNMENT, padded
from opgauge.ops.conv_data_grad.op import ConvGeometry

THREADS, VECTOR, WIDTH = 256, 8, 64
"""Threads of a block, elements of a vector, and pixels or taps of its tile."""
MOST_ELEMENTS = WIDTH * (WIDTH + 1) + WIDTH * VECTOR
"""Elements of a tile in shared memory, whose rows have an odd number."""
_PART = np.dtype(
    [(name, np.int64) for name in ("outer", "inner")]
    + [(name, np.int32) for name in ("blocks", "limit", "channels", "places", "padded", "pitch")]
    + [(name, DIVISOR) for name in ("place_tiles", "channel_tiles", "each", "width", "vectors")]
    + [("padding", "V4")]
)
"""`PackPart` of pack_channels.cu. outer, inner: elements of the copy from one tensor of an outer and an inner index to
the next; of `each` inner ones, `limit` exist. channels, places: of the tensor; padded: channels of the copy, pitch:
elements from one place to the next. width, vectors: places and vectors of channels of a tile."""
VECTORS = (1, 4)
"""Pixels of dy that are loaded at once."""


def _pack(vector: int) -> str:
    return f"pack_channels<{vector}>"


SOURCE = CudaSource(
    __file__,
    "pack_channels.cu",
    tuple(_pack(vector) for vector in VECTORS),
    constants={"THREADS": THREADS, "MOST_ELEMENTS": MOST_ELEMENTS},
    structs={"PackPart": _PART},
)
"""Declared instances of pack_channels.cu."""


class Packed(NamedTuple):
    """Channels of a group in the copies: of dy, and of dx."""

    outs: int
    each: int


def packed(found: ConvGeometry, slab: int) -> Packed:
    """Channels rounded up to whole vectors; those of dy to whole slabs where several groups follow each other."""
    outs, each = found.out_channels // found.groups, found.channels // found.groups
    return Packed(padded(outs, slab if found.groups > 1 else VECTOR), padded(each, VECTOR))


def packed_bytes(found: ConvGeometry, sizes: Packed) -> tuple[int, int]:
    """Bytes of the copies of dy and of the filter."""
    lines = found.batch * prod(found.out_size) * found.groups * sizes.outs
    taps = found.groups * sizes.outs * prod(found.kernel) * sizes.each
    return padded(2 * lines, ALIGNMENT), padded(2 * taps, ALIGNMENT)


def pack_channels(found: ConvGeometry, sizes: Packed, dy: Any, weight: Any, lines: Any, taps: Any) -> Bound:
    """One launch that writes both copies."""
    pixels, kernel, groups = prod(found.out_size), prod(found.kernel), found.groups
    outs, each = found.out_channels // groups, found.channels // groups
    pitch, matrix = groups * sizes.outs, kernel * sizes.each
    of_dy = _part(found.batch, groups, groups, (outs, pixels), sizes.outs, pitch, (pixels * pitch, sizes.outs))
    of_filter = _part(groups, sizes.outs, outs, (each, kernel), sizes.each, sizes.each, (sizes.outs * matrix, matrix))
    function = SOURCE.function(_pack(max(v for v in VECTORS if pixels % v == 0 and address(dy) % (2 * v) == 0)))
    grid = (int(of_dy["blocks"]) + int(of_filter["blocks"]),)
    arguments = (dy, weight, lines, taps, of_dy, of_filter)

    def run() -> None:
        function(grid, (THREADS,), arguments)

    return run


def _part(
    outer: int, each: int, limit: int, shape: tuple[int, int], kept: int, pitch: int, steps: tuple[int, int]
) -> Any:
    """`PackPart` of a tensor (outer, limit, channels, places), `kept` channels of which the copy has.

    A tile of few places has more channels.
    """
    channels, places = shape
    width, vectors = min(places, WIDTH), WIDTH // VECTOR
    while 2 * vectors * VECTOR * (width | 1) <= MOST_ELEMENTS and vectors * VECTOR < kept:
        vectors *= 2
    place_tiles, channel_tiles = -(-places // width), -(-kept // (vectors * VECTOR))
    numbers = {"outer": steps[0], "inner": steps[1], "limit": limit, "channels": channels, "places": places}
    numbers |= {"padded": kept, "pitch": pitch, "place_tiles": place_tiles, "channel_tiles": channel_tiles}
    blocks = outer * each * place_tiles * channel_tiles
    return pack(_PART, {**numbers, "blocks": blocks, "each": each, "width": width, "vectors": vectors})
