"""conv_data_grad on the CPU, channels first, tap by tap in vectors along rows: bands of rows of each residue class."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import scratch
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.op import ConvGeometry, three
from opgauge.ops.conv_data_grad.residue_classes import Axis, axes_of

BAND_BYTES, BAND_REACHES = 1 << 16, 4
"""Size of a band's rows of dy, sums and dx, which fit near caches, and its least rows, by those that two bands read."""
TASKS = 4
"""Least tasks of each thread."""


def threads_for(found: ConvGeometry, tensors: Tensors, speed: int) -> int:
    """Threads that pay for this convolution, at `speed` relative to plain arithmetic."""
    moved = sum(array.nbytes for array in (tensors.dy, tensors.weight, tensors.dx))
    products = found.batch * prod(found.out_size) * found.out_channels * prod(found.kernel)
    return count(moved, 2.0 * products * (found.channels // found.groups) / speed)


def sizes_of(found: ConvGeometry) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Three sizes of dx and of dy, those of 1x1 filters as one row."""
    if found.is_pointwise:
        row = 1, 1, prod(found.size)
        return row, row
    return three(found.size, 1), three(found.out_size, 1)


def flat(array: Any, like: Any) -> Any:
    """The array, flat as Numba takes it, or an empty one of the dtype of `like`."""
    from opgauge.ops._cpu.jit import storage

    return storage(np.empty(0, like.dtype) if array is None else array.reshape(-1))


def reaches_of(found: ConvGeometry) -> tuple[Any, Any]:
    """Ends of the taps of each depth, row and column of dx, and each tap's distance in pixels of dy and in taps."""
    (size, out), kernel, strides = sizes_of(found), three(found.kernel, 1), three(found.strides, 1)
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


def along_rows(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels first: one call."""
    from opgauge.ops.conv_data_grad import jit_direct as jit

    threads, (dy, weight, dx, addend, wide) = threads_for(found, tensors, 1), tensors
    arrays = [flat(array, dx) for array in (dy, weight, addend, dx)]
    direct = arrays[3] if dx.dtype == wide else np.empty(0, wide)
    depth, outs = sizes_of(found)[0][0], found.out_channels // found.groups
    (depth_ends, depth_reach), (ends, reach) = reaches_of(found), _class_taps(found)
    depth_ends = depth_ends[: depth + 1]
    slices, known = outs * int(np.diff(depth_ends).max()), depth_ends[-1]
    taps = slices * int(np.diff(ends).max())
    shape, size = _shape(found, slices, taps, threads, wide, is_direct=direct.size > 0)
    tables = np.concatenate([depth_ends, known + ends[1:]]), np.concatenate([depth_reach[:known].reshape(-1), reach])
    places, buffer = np.zeros(threads * taps, np.int64), scratch(threads * size, wide)
    return lambda: jit.direct_first.on(threads)(tuple(shape), *tables, *arrays, direct, places, buffer, threads)


def _axes(found: ConvGeometry) -> tuple[Axis, Axis]:
    """Rows and columns, those of 1x1 filters as one row."""
    if found.is_pointwise:
        return Axis(1, 1, 1, 1, 0, 1), Axis(prod(found.size), prod(found.size), 1, 1, 0, 1)
    _, height, width = axes_of(found)
    return height, width


def _class_taps(found: ConvGeometry) -> tuple[Any, Any]:
    """Ends of the taps of each class of rows and columns, and each tap's distance in dy as laid out and in taps."""
    height, width = _axes(found)
    lowest = (height.all_reaches or [0])[-1]
    ends, places = [0], list[int]()
    for row, column in product(height.residues, width.residues):
        for (j, down), (k, right) in product(height.taps(row), width.taps(column)):
            places += [(down - lowest) * width.pitch + width.margin + right, j * width.kernel + k]
        ends.append(len(places) // 2)
    return np.array(ends), np.array(places, np.int64)


def _shape(found: ConvGeometry, slices: int, taps: int, threads: int, wide: Any, *, is_direct: bool) -> tuple[Any, int]:
    """The `DirectShape`, and elements of a thread's buffer.

    slices: of dy that a slice of dx reads; taps: of a pixel; both at most.
    """
    from opgauge.ops.conv_data_grad.jit_direct import SLACK, DirectShape

    (size, out), (height, width), outs = sizes_of(found), _axes(found), found.out_channels // found.groups
    reaches, rows = height.all_reaches or [0], height.size(0)
    reach, tasks = reaches[0] - reaches[-1], found.batch * found.groups * size[0]
    each = wide.itemsize * (width.pitch * (slices + width.stride) + height.stride * size[2])
    band = max(BAND_BYTES // each, BAND_REACHES * reach, 1)
    if threads > 1 and tasks < TASKS * threads:
        band = min(band, max(-(-rows * tasks // (TASKS * threads)), reach, 1))
    bands = -(-rows // band)
    band = -(-rows // bands)
    sums_at = slices * ((band + reach) * width.pitch + width.margin) + SLACK
    factors_at = sums_at + len(width.residues) * (band * width.pitch + SLACK)
    out_at = factors_at + taps
    shape = DirectShape(
        found.batch,
        found.groups,
        found.channels // found.groups,
        outs,
        *size,
        *out,
        prod(found.kernel),
        height.stride,
        width.stride,
        reaches[-1],
        reach,
        width.pitch,
        width.margin,
        band,
        bands,
        sums_at,
        factors_at,
        out_at,
    )
    return shape, out_at + (0 if is_direct else band * height.stride * size[2])
