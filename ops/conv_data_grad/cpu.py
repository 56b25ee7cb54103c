"""conv_data_grad on the CPU.

In bfloat16, products by AMX or dot products of pairs where the processor has them. Without groups: a tiled product
in Numba, added to the addend, or with strides one for each residue class of pixels; large groups one by one likewise,
from copies; small images pixel by pixel, all images at once; few outputs one by one. Otherwise some images at a time:
a product by BLAS, then one fused pass over the result while it is in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu.tile import PRODUCT_SPEED, scratch, widened
from opgauge.ops.conv_data_grad.cpu_classes import classes_of, in_classes
from opgauge.ops.conv_data_grad.cpu_columns import FEW_PIXELS, Tensors, by_columns, is_strided_pixels
from opgauge.ops.conv_data_grad.cpu_costs import Way, others_ns, way_of
from opgauge.ops.conv_data_grad.cpu_direct import SHORT_SCALED, directly, scaled, turned
from opgauge.ops.conv_data_grad.cpu_few import by_few
from opgauge.ops.conv_data_grad.cpu_groups import in_groups
from opgauge.ops.conv_data_grad.cpu_images import by_images
from opgauge.ops.conv_data_grad.cpu_pack import packed_columns
from opgauge.ops.conv_data_grad.cpu_pairs import amx_ns, by_pairs, dots_ns
from opgauge.ops.conv_data_grad.cpu_planes import by_planes, planes_ns
from opgauge.ops.conv_data_grad.cpu_product_costs import span_of, tiles_ns, woven_ns
from opgauge.ops.conv_data_grad.cpu_rows import threads_for
from opgauge.ops.conv_data_grad.cpu_vectors import are_vectors, by_vectors, vectors_ns
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, ConvGeometry, geometry, three

HALF_BYTES = 2
BLOCK, WIDTH = 96, 128
"""Pixels and channels per product with pixels as rows."""
TASKS = 4
"""Minimum tasks per thread."""
PACKED_AT_ONCE = 8
LEAST_CUT = 2
"""Taps per tap that reaches dx from which the latter are copied first; channels first, copies of several taps, a few
elements at a time, take longer than products of few pixels with all."""


@kernel("conv_data_grad", "optimized", "cpu", FLOATS, prepare=True)
def conv_data_grad(
    *,
    dy: Any,
    filter: Any,
    x_like: Any,
    out: dict[str, Any],
    add_to_output: Any = None,
    **options: Any,
) -> Bound:
    """Select a kernel: a matrix product in Numba, multiply-adds tap by tap, or a product by BLAS and a fold."""
    found = _simplest(geometry(x_like.shape, filter.shape, ConvDataGradParams(**options)))
    wide = np.dtype(np.float32) if dy.dtype.itemsize == HALF_BYTES else dy.dtype
    tensors = _in_layout(found, Tensors(dy, filter, out["dx"], add_to_output, wide))
    taps = _reached_taps(found)
    kept_taps = prod(map(len, taps))
    is_slow = not found.channels_last and kept_taps > 1 and found.batch * prod(found.out_size) < FEW_PIXELS
    if is_slow or LEAST_CUT * kept_taps > prod(found.kernel):
        return _select(found, tensors)
    cut = [slice(kept.start, kept.stop) for kept in taps]
    part = tensors.weight[(slice(None), *cut) if found.channels_last else (slice(None), slice(None), *cut)]
    copied = np.empty(part.shape, part.dtype)
    padding = tuple(p - kept.start * d for p, kept, d in zip(found.padding, taps, found.dilation, strict=True))
    smaller = _simplest(replace(found, kernel=tuple(map(len, taps)), padding=padding))
    if _prefers_vectors(smaller, tensors):
        return by_vectors(found, tensors)  # reads no other taps
    step = _select(smaller, _in_layout(smaller, tensors._replace(weight=copied)))

    def run() -> None:
        np.copyto(copied, part)
        step()

    return run


def _simplest(found: ConvGeometry) -> ConvGeometry:
    """The same convolution without strides that move nothing; channels last where both layouts are the same."""
    axes = zip(found.size, found.kernel, found.padding, found.strides, strict=True)
    found = replace(found, strides=tuple(1 if (size, taps, p) == (1, 1, 0) else s for size, taps, p, s in axes))
    if prod((*found.size, *found.out_size, *found.kernel)) == 1:
        return replace(found, channels_last=True)
    return replace(found, channels_last=False) if found.channels == found.out_channels == 1 else found


def _in_layout(found: ConvGeometry, tensors: Tensors) -> Tensors:
    """Views of the tensors in the layout of `found`, which may be another one of the same elements."""

    def view(array: Any, channels: int, lengths: tuple[int, ...]) -> Any:
        shape = (*lengths, channels) if found.channels_last else (channels, *lengths)
        return None if array is None else array.reshape(array.shape[0], *shape)

    return Tensors(
        view(tensors.dy, found.out_channels, found.out_size),
        view(tensors.weight, found.channels // found.groups, found.kernel),
        view(tensors.dx, found.channels, found.size),
        view(tensors.addend, found.channels, found.size),
        tensors.wide,
    )


def _reached_taps(found: ConvGeometry) -> list[range]:
    """Taps of each axis without those at the ends that lie outside dx for every output, as of filters of its size."""
    reached = []
    for size, out, taps, stride, padding, dilation in zip(
        found.size, found.out_size, found.kernel, found.strides, found.padding, found.dilation, strict=True
    ):
        inside = []
        for tap in range(taps):
            first = tap * dilation - padding
            output = max(0, -(first // stride))  # the first one for which the tap is not before dx
            if output < out and first + output * stride < size:
                inside.append(tap)
        start = min(inside[0], padding // dilation) if inside else 0
        reached.append(range(start, inside[-1] + 1 if inside else taps))
    return reached


def _select(found: ConvGeometry, tensors: Tensors) -> Bound:
    """The kernel for a convolution."""
    if not tensors.dy.size or not tensors.weight.size:
        return by_columns(found, tensors)
    is_scaled = found.is_pointwise and found.groups == found.channels == found.out_channels
    if is_scaled and (found.channels_last or prod(found.size) <= SHORT_SCALED):
        return scaled(found, tensors)
    if _prefers_vectors(found, tensors):
        return by_vectors(found, tensors)
    return _with_pairs(found, tensors) or _without_pairs(found, tensors)


def _prefers_vectors(found: ConvGeometry, tensors: Tensors) -> bool:
    """Whether products of single outputs are expected to be faster than all else, of a filter that is not widened."""
    if tensors.weight.dtype != tensors.wide or not are_vectors(found):
        return False
    return vectors_ns(found, tensors.wide) <= others_ns(found, tensors.wide, of_amx=False)


def _without_pairs(found: ConvGeometry, tensors: Tensors) -> Bound:
    way = way_of(found, tensors.wide)
    if way is Way.GROUPS:
        return in_groups(found, tensors, _without_pairs)
    if way is Way.CLASSES:
        return in_classes(found, classes_of(found), tensors, _in_tiles)
    if way is Way.LIBRARY and is_strided_pixels(found):
        return in_classes(found, classes_of(found), tensors, by_columns)
    ways: dict[Way, Callable[[ConvGeometry, Tensors], Bound]] = {
        Way.LIBRARY: by_columns,
        Way.DIRECT: directly,
        Way.TURNED: turned,
        Way.PLANES: by_planes,
        Way.TILES: _by_rows,
        Way.PIXELS: _by_pixels,
        Way.IMAGES: by_images,
        Way.FEW: by_few,
    }
    return ways[way](found, tensors)


def _in_tiles(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Stride 1, of a residue class, whose dy may have another size if there is one tap: tiles or planes."""
    is_tiled = found.groups == 1 and tiles_ns(found, tensors.wide) < planes_ns(found, tensors.wide)
    return (_by_rows if is_tiled else by_planes)(found, tensors)


def _with_pairs(found: ConvGeometry, tensors: Tensors) -> Bound | None:
    """Products in bfloat16 by AMX or dot products, with strides for each residue class, where expected to pay."""
    from opgauge.ops._cpu.tile.jit_pairs import IN_TILES, is_available

    if tensors.weight.dtype.name != "bfloat16" or not is_available():
        return None
    pairs_ns, most_ns = (amx_ns if IN_TILES else dots_ns), others_ns(found, tensors.wide, of_amx=IN_TILES)
    if {*found.strides} == {1}:
        return by_pairs(found, tensors) if pairs_ns(found) <= most_ns else None
    classes = classes_of(found)
    is_preferred = sum(pairs_ns(one.geometry) + woven_ns(found, one.geometry) for one in classes) <= most_ns
    return in_classes(found, classes, tensors, by_pairs) if is_preferred else None


def _flat(found: ConvGeometry, array: Any) -> Any:
    """`array` as (N, C, P) or (N, P, C), in a type that Numba supports."""
    from opgauge.ops._cpu.jit import storage

    pixels = prod(found.size)
    return storage(array.reshape(found.batch, *((pixels, -1) if found.channels_last else (-1, pixels))))


def _by_pixels(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels first, pointwise: each product takes a block of pixels of all channels."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops._cpu.tile.jit import ROWS
    from opgauge.ops.conv_data_grad import jit_pixels as jit

    dy, weight, dx, addend, wide = tensors
    threads, pixels = threads_for(found, tensors, PRODUCT_SPEED), span_of(found)
    blocks = -(-found.channels // ROWS)
    packed = scratch(blocks * found.out_channels * ROWS, wide)
    given = scratch(threads * pixels * found.out_channels, wide)
    tile = scratch(threads * pixels * ROWS, wide)
    spans = found.batch * -(-prod(found.size) // pixels)
    parts = min(-(-TASKS * threads // spans), blocks)
    steps: list[Bound] = []
    rows = widened(weight.reshape(found.out_channels, found.channels), wide, steps)
    arrays = (storage(dy.reshape(found.batch, found.out_channels, -1)), _added(found, dx, addend), _flat(found, dx))
    direct = _direct(wide, *arrays[1:])

    def run() -> None:
        for step in steps:
            step()
        jit.pack_rows.on(threads)(rows, PACKED_AT_ONCE, packed)
        jit.multiply_pixels.on(threads)(packed, *arrays, direct, pixels, parts, threads, given, tile)

    return run


def _added(found: ConvGeometry, dx: Any, addend: Any) -> Any:
    """The addend, or an empty array."""
    from opgauge.ops._cpu.jit import storage

    return storage(np.empty((0, 0, 0), dx.dtype)) if addend is None else _flat(found, addend)


def _direct(wide: Any, addend: Any, dx: Any) -> tuple[Any, Any]:
    """Addend and dx, flat, if sums need no rounding; else both empty."""
    if dx.dtype == wide:
        return addend.reshape(-1), dx.reshape(-1)
    return np.empty(0, wide), np.empty(0, wide)


def _by_rows(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels last, or transposed to it: each product takes a block of pixels, each pixel all channels of taps."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops._cpu.tile.jit import GROUP, ROWS, tile_columns
    from opgauge.ops.conv_data_grad import jit_rows as jit

    dy, weight, dx, addend, wide = tensors
    threads, last = threads_for(found, tensors, PRODUCT_SPEED), found.channels_last
    size, out_size = three(found.size, 1), three(found.out_size, 1)
    margins, padded, order, shifts, reach = _padded_walk(found)
    pixels = prod(padded)
    image = scratch((found.batch * pixels + ROWS + margins[2]) * found.out_channels, wide)
    columns = tile_columns(image)
    panels = -(-found.channels // columns)
    steps: list[Bound] = []
    packed = packed_columns(found, weight, wide, order, threads, steps)
    arrays = (_added(found, dx, addend), _flat(found, dx))
    line = padded[2] if size[2] % GROUP else size[2]
    sizes = (*size, line, padded[2], padded[1] * padded[2], pixels)
    if found.is_pointwise and last and found.out_size == found.size:
        arrays = tuple(array.reshape(1, -1, found.channels) if array.size else array for array in arrays)
        sizes = (1, 1, *(found.batch * pixels,) * 5)
    blocks = arrays[1].shape[0] * size[0] * -(-sizes[1] * sizes[3] // BLOCK)
    at_once = max(min(WIDTH // columns, panels), 1)
    while at_once > 1 and blocks * -(-panels // at_once) < TASKS * threads:
        at_once = -(-at_once // 2)
    tile = scratch(threads * 2 * BLOCK * at_once * columns, wide)
    flat_out = size[2] == line and found.channels % columns == 0 if last else addend is None
    direct = _direct(wide, *arrays) if flat_out else (np.empty(0, wide), np.empty(0, wide))
    depth = found.out_channels * len(order) // len(shifts)
    spread = storage(dy.reshape(found.batch, *((*out_size, -1) if last else (-1, *out_size))))

    def run() -> None:
        for step in steps:
            step()
        jit.lay_out.on(threads)(spread, image, padded, margins, last)
        jit.multiply_rows.on(threads)(
            image,
            shifts,
            reach,
            packed,
            *arrays,
            direct,
            sizes,
            found.out_channels,
            depth,
            BLOCK,
            at_once,
            threads,
            last,
            tile,
        )

    return run


def _padded_walk(found: ConvGeometry) -> tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any]:
    """Margins of dy at its start, its padded sizes, the order of taps, and the start of each run of taps in dy.

    The last item has, for each run, the planes and rows of dx that read dy through it: first and end of both.

    Taps of a row without dilation are one run, backwards. The end of a row continues with the start of the next.
    """
    kernel, padding = three(found.kernel, 1), three(found.padding, 0)
    dilation, size, out_size = three(found.dilation, 1), three(found.size, 1), three(found.out_size, 1)
    margins = tuple(max(d * (k - 1) - p, 0) for d, k, p in zip(dilation, kernel, padding, strict=True))
    padded = [m + max(out, length + p) for m, out, length, p in zip(margins, out_size, size, padding, strict=True)]
    padded[2] -= min(margins[2], padded[2] - margins[2] - out_size[2])
    run = kernel[2] if dilation[2] == 1 else 1
    order, shifts, reach = [], [], []
    for tap, (i, j, k) in enumerate(np.ndindex(*kernel)):
        if (k + 1) % run == 0:
            order += [tap - step for step in range(run)]
            d, h, w = (p - t * e + m for p, t, e, m in zip(padding, (i, j, k), dilation, margins, strict=True))
            shifts.append(((d * padded[1] + h) * padded[2] + w) * found.out_channels)
            reach.append((margins[0] - d, margins[0] - d + out_size[0], margins[1] - h, margins[1] - h + out_size[1]))
    return margins, tuple(padded), np.array(order), np.array(shifts), np.array(reach)
