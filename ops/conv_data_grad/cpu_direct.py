"""conv_data_grad on the CPU by multiply-adds tap by tap, in vectors along rows or, channels last, along groups."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import scratch
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.op import ConvGeometry, three

SCALED, SHORT_SCALED = 256, 32
"""Channels up to which pixels are put together where each channel is scaled, and pixels of an image, channels first,
up to which the numbers are repeated for them."""
PADDED_BYTES = 1 << 20
"""Maximum size of slices with margins, of which each tap is one loop: they fit the second-level cache."""


def threads_for(found: ConvGeometry, tensors: Tensors, speed: int) -> int:
    """Threads that pay for this convolution, at `speed` relative to plain arithmetic."""
    moved = sum(array.nbytes for array in (tensors.dy, tensors.weight, tensors.dx))
    products = found.batch * prod(found.out_size) * found.out_channels * prod(found.kernel)
    return count(moved, 2.0 * products * (found.channels // found.groups) / speed)


def _sizes(found: ConvGeometry) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Three sizes of dx and of dy, those of 1x1 filters as one row."""
    if found.is_pointwise:
        row = 1, 1, prod(found.size)
        return row, row
    return three(found.size, 1), three(found.out_size, 1)


def in_margins(found: ConvGeometry, wide: Any) -> int:
    """Elements of a slice of dx and one of dy with margins, of which each tap is one loop.

    0 if the cache does not hold them, or for strides, where taps take loops for each row.
    """
    (size, out), padding = _sizes(found), three(found.padding, 0)
    elements = (size[1] + 2 * padding[1] + out[1]) * (size[2] + 2 * padding[2])
    return elements if {*found.strides} == {1} and elements * wide.itemsize <= PADDED_BYTES else 0


def _flat(array: Any, like: Any) -> Any:
    """The array, flat as Numba takes it, or an empty one of the dtype of `like`."""
    from opgauge.ops._cpu.jit import storage

    return storage(np.empty(0, like.dtype) if array is None else array.reshape(-1))


def directly(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Tap by tap, in vectors along rows or, channels last, along groups."""
    return (_along_groups if found.channels_last else _along_rows)(found, tensors)


def _along_rows(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels first: one call."""
    from opgauge.ops.conv_data_grad import jit_direct as jit

    threads, (dy, weight, dx, addend, wide) = threads_for(found, tensors, 1), tensors
    (size, out), kernel = _sizes(found), three(found.kernel, 1)
    per_group, group_outs = found.channels // found.groups, found.out_channels // found.groups
    strides, padding, dilation = three(found.strides, 1), three(found.padding, 0), three(found.dilation, 1)
    shape = jit.numbers_of(
        jit.DirectShape(found.batch, found.groups, per_group, group_outs, size, out, kernel, strides, padding, dilation)
    )
    given, weights, added, target = (_flat(array, dx) for array in (dy, weight, addend, dx))
    padded = in_margins(found, wide)
    total = scratch(threads * (padded or size[1] * size[2] + out[1] * out[2]), wide)
    return lambda: jit.direct_first.on(threads)(shape, given, weights, added, target, total, padded > 0, threads)


def _along_groups(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels last: the filter packed, dy copied if its groups are not contiguous or in 16 bits, then rows of dx."""
    from opgauge.ops.conv_data_grad import jit_channels as jit

    threads, (dy, weight, dx, addend, wide) = threads_for(found, tensors, 1), tensors
    groups, per_group, outs = found.groups, found.channels // found.groups, found.out_channels // found.groups
    (size, out), kernel = _sizes(found), three(found.kernel, 1)
    ends, reach = _reaches(found)
    distances = (reach * np.array([found.out_channels, outs * found.channels])).reshape(-1)
    numbers = (found.batch, groups, per_group, outs, *size, prod(out) * found.out_channels)
    source, weights, added, target = (_flat(array, dx) for array in (dy, weight, addend, dx))
    given, packed = source if outs == 1 and dx.dtype == wide else scratch(dy.size, wide), scratch(weight.size, wide)
    direct = target if per_group == 1 and dx.dtype == wide else packed[:0]
    total = scratch(threads * (0 if direct.size else size[2] * found.channels), wide)
    rows = np.empty(threads * kernel[0] * kernel[1] * outs * 2, np.int64)

    def run() -> None:
        jit.pack_taps.on(1)(weights, outs, prod(kernel), per_group, packed)
        if given is not source:
            jit.spread_pixels.on(threads)(source, groups, outs, given)
        jit.convolve_rows.on(threads)(
            numbers, ends, distances, given, packed, added, target, direct, total, rows, threads
        )

    return run


def _reaches(found: ConvGeometry) -> tuple[Any, Any]:
    """Ends of the taps of each depth, row and column of dx, and each tap's distance in pixels of dy and in taps."""
    (size, out), kernel, strides = _sizes(found), three(found.kernel, 1), three(found.strides, 1)
    padding, dilation = three(found.padding, 0), three(found.dilation, 1)
    ends, reaches = [np.zeros(1, np.int64)], []
    for axis in range(3):
        moved = np.arange(size[axis])[:, None] + padding[axis] - np.arange(kernel[axis]) * dilation[axis]
        sources = moved // strides[axis]
        is_inside = (moved % strides[axis] == 0) & (sources >= 0) & (sources < out[axis])
        ends.append(ends[-1][-1] + np.cumsum(is_inside.sum(axis=1)))
        taps = np.nonzero(is_inside)[1]
        reaches.append(np.stack([sources[is_inside] * prod(out[axis + 1 :]), taps * prod(kernel[axis + 1 :])], axis=1))
    return np.concatenate(ends), np.concatenate(reaches)


def scaled(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels, each times a number: several pixels are one of more channels, as loops run over channels.

    Channels first, an image is one pixel, and each of its elements a channel.
    """
    inner = 1 if found.channels_last else prod(found.size)
    pixels, channels = found.batch * prod(found.size) // inner, found.channels * inner
    together = next(n for n in range(max(1, min(pixels, SCALED // channels)), 0, -1) if pixels % n == 0)
    width, size = channels * together, (pixels // together,)
    one = replace(
        found,
        channels_last=True,
        batch=1,
        size=size,
        out_size=size,
        kernel=(1,),
        strides=(1,),
        padding=(0,),
        dilation=(1,),
    )
    repeated = np.empty((together, found.channels, inner), tensors.weight.dtype)
    shape = (1, *size, width)
    step = directly(
        replace(one, channels=width, out_channels=width, groups=width),
        tensors._replace(
            dy=tensors.dy.reshape(shape),
            weight=repeated.reshape(width, 1, 1),
            dx=tensors.dx.reshape(shape),
            addend=None if tensors.addend is None else tensors.addend.reshape(shape),
        ),
    )

    def run() -> None:
        repeated[...] = tensors.weight.reshape(found.channels, 1)
        step()

    return run


def turned(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Through copies in the other layout, where vectors are longer: along groups instead of rows, or the reverse."""
    from opgauge.ops._cpu.jit import storage

    source, target = (-1, 1) if found.channels_last else (1, -1)

    def in_other_layout(array: Any) -> tuple[Any, Any]:
        """A view of the array's bits, and an array for its copy."""
        view = np.moveaxis(storage(array), source, target)
        return view, np.empty(view.shape, view.dtype).view(array.dtype)

    given = [array for array in (tensors.dy, tensors.weight, tensors.addend) if array is not None]
    pairs = [in_other_layout(array) for array in given]
    back, dx = in_other_layout(tensors.dx)
    dy, weight, *addend = (copy for _, copy in pairs)
    laid = Tensors(dy, weight, dx, addend[0] if addend else None, tensors.wide)
    step = directly(replace(found, channels_last=not found.channels_last), laid)
    stored = [(storage(copy), view) for view, copy in pairs]

    def run() -> None:
        for copy, view in stored:
            copy[...] = view
        step()
        back[...] = storage(dx)

    return run
