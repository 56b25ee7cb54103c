"""conv_data_grad on the CPU by multiply-adds tap by tap, in vectors along rows or, channels last, along groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import narrowed, scratch, widened
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_rows import along_rows, flat, reaches_of, sizes_of, threads_for
from opgauge.ops.conv_data_grad.op import ConvGeometry, three

SCALED, SHORT_SCALED = 256, 32
"""Channels up to which pixels are put together where each channel is scaled, and pixels of an image, channels first,
up to which the numbers are repeated for them."""
MISSED_BYTES = 1 << 20
"""Size of a filter that is read for each few pixels, channels last, from which products take twice the time."""


def directly(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Tap by tap, in vectors along rows or, channels last, along groups."""
    return (_along_groups if found.channels_last else along_rows)(found, tensors)


def _along_groups(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels last: the filter packed, dy copied if its groups are not contiguous or in 16 bits, then rows of dx."""
    from opgauge.ops.conv_data_grad import jit_channels as jit

    threads, (dy, weight, dx, addend, wide) = threads_for(found, tensors, 1), tensors
    before, after = list[Bound](), list[Bound]()
    if found.channels > found.groups and dx.dtype == np.float16:  # converted one by one where channels are interleaved
        addend = None if addend is None else widened(addend, wide, before)
        dx = narrowed(dx, wide, after)
    groups, per_group, outs = found.groups, found.channels // found.groups, found.out_channels // found.groups
    (size, out), kernel = sizes_of(found), three(found.kernel, 1)
    ends, reach = reaches_of(found)
    distances = (reach * np.array([found.out_channels, outs * found.channels])).reshape(-1)
    strides = 1 if found.is_pointwise else three(found.strides, 1)[2]
    runs = _runs(ends[-size[2] - 1 :], reach, strides)
    numbers = (found.batch, groups, per_group, outs, *size, prod(out) * found.out_channels, strides)
    source, weights, added, target = (flat(array, dx) for array in (dy, weight, addend, dx))
    given, packed = source if outs == 1 and dy.dtype == wide else scratch(dy.size, wide), scratch(weight.size, wide)
    direct = target if per_group == 1 and dx.dtype == wide else packed[:0]
    total = scratch(threads * (0 if direct.size else size[2] * found.channels), wide)
    rows = np.empty(threads * kernel[0] * kernel[1] * outs * 2, np.int64)

    def run() -> None:
        for step in before:
            step()
        jit.pack_taps.on(1)(weights, outs, prod(kernel), per_group, packed)
        if given is not source:
            jit.spread_pixels.on(threads)(source, groups, outs, given)
        jit.convolve_rows.on(threads)(
            numbers, ends, distances, runs, given, packed, added, target, direct, total, rows, threads
        )
        for step in after:
            step()

    return run


def _runs(ends: Any, reach: Any, stride: int) -> Any:
    """First pixel and number of the runs of a row's pixels with the same taps, a stride apart."""
    runs, previous = list[int](), None
    for pixel in (pixel for first in range(stride) for pixel in range(first, len(ends) - 1, stride)):
        taps = pixel % stride, *reach[ends[pixel] : ends[pixel + 1], 1]
        if taps == previous:
            runs[-1] += 1
        else:
            runs += [pixel, 1]
        previous = taps
    return np.array(runs, np.int64)


def last_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Channels last: the taps of each run of pixels, summed in vectors of groups.

    Of 312 random convolutions on an EPYC with AVX-512, it was within 0.64 and 1.19 of the time of eight in ten.
    """
    from opgauge.ops.conv_data_grad.jit_channels import PIXELS

    size, kernel, (*_, right) = three(found.size, 1), three(found.kernel, 1), three(found.strides, 1)
    places, outs, per_group = prod(size), found.out_channels // found.groups, found.channels // found.groups
    rows, width = (1, places) if found.is_pointwise else (size[0] * size[1], size[2])
    edge = min(width, (kernel[2] - 1) * three(found.dilation, 1)[2])
    taps, outputs = prod(kernel) * outs, prod(found.out_size)
    each, vectors = _vectors_of(found, wide, is_paired=per_group > 1 and width - edge >= PIXELS * right)
    products = (each * outputs * taps + 0.46 * places) * per_group * vectors
    products *= 1 + min(wide.itemsize * taps * found.channels / MISSED_BYTES, 1)
    stored = 0.24 * places * found.channels if per_group > 1 else 0.0
    spread = 0.21 * outputs * found.out_channels if outs > 1 else 0.0
    runs = rows * (66 + 2 * min(width, edge + right))
    return 1990 + found.batch * (runs + products + stored + spread) + 0.5 * taps * found.channels


def _vectors_of(found: ConvGeometry, wide: np.dtype[Any], *, is_paired: bool) -> tuple[float, int]:
    """Time of a vector of products, and vectors that the groups fill; groups that fill none are single numbers."""
    from opgauge.ops._cpu.tile.jit import VECTORS, tile_columns
    from opgauge.ops._cpu.tile.jit_lanes import LANES_BYTES

    groups, lanes = found.groups, int(tile_columns(np.empty(0, wide))) // VECTORS
    if groups >= lanes:
        return 0.32 if is_paired else 0.64, -(-groups // lanes)
    lanes = LANES_BYTES // wide.itemsize
    return (0.74, -(-groups // lanes)) if groups >= lanes else (0.49, groups)


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


def _turn(given: Any, copy: Any, *, is_last: bool) -> Bound:
    """A call that copies an array to one with the channels of each image in front, or last; is_last: those given."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.conv_data_grad import jit_fold as jit

    channels = given.shape[-1 if is_last else 1]
    pixels = given[0].size // channels
    rows, columns = (pixels, channels) if is_last else (channels, pixels)
    turn = jit.turn_images.on(count(given.nbytes + copy.nbytes))
    return partial(turn, storage(given).reshape(-1), rows, columns, copy.reshape(-1))


def turned(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Through wide copies in the other layout, where vectors are longer: along groups instead of rows, or reversely."""
    source, target = (-1, 1) if found.channels_last else (1, -1)
    dy, weight, dx, addend = (
        None if array is None else np.empty(np.moveaxis(array, source, target).shape, tensors.wide)
        for array in tensors[:4]
    )
    pairs = [(tensors.dy, dy), (tensors.weight, weight), (tensors.addend, addend)]
    steps = [_turn(given, copy, is_last=found.channels_last) for given, copy in pairs if copy is not None]
    laid = Tensors(dy, weight, dx, addend, tensors.wide)
    steps.append(directly(replace(found, channels_last=not found.channels_last), laid))
    after: list[Bound] = []
    steps.append(_turn(dx, narrowed(tensors.dx, tensors.wide, after), is_last=not found.channels_last))

    def run() -> None:
        for step in (*steps, *after):
            step()

    return run
