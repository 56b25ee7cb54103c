"""Numba kernels that fold columns, the product of filter and dy, into dx."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from opgauge.ops._cpu.jit import INNER
from opgauge.ops._cpu.threads import parallel

uintp = np.uintp
"""Index type: known not to be negative, so loops vectorize."""


@njit(**INNER)
def _add_spread(row: Any, at: int, stride: int, given: Any, first: int, count: int) -> None:
    """Add given[first : first + count] to row[at::stride]; stride 1 is separate, for vector instructions."""
    if stride == 1:
        for index in range(uintp(count)):
            row[uintp(at) + index] += given[uintp(first) + index]
    else:
        for index in range(count):
            row[uintp(at + index * stride)] += given[uintp(first + index)]


@njit(**INNER)
def _fold_plane(
    column: Any, addend: Any, dx: Any, plane: int, sizes: Any, strides: Any, padding: Any, dilation: Any
) -> None:
    depth, height, width, kernel_d, kernel_h, kernel_w, out_d, out_h, out_w = sizes
    channel, d, start = plane // depth, plane % depth, plane * height * width
    if addend.size:
        for index in range(uintp(start), uintp(start + height * width)):
            dx[index] = addend[index]
    else:
        for index in range(uintp(start), uintp(start + height * width)):
            dx[index] = 0
    for i in range(kernel_d):
        od = d + padding[0] - i * dilation[0]
        if od % strides[0] != 0 or od < 0 or od // strides[0] >= out_d:
            continue
        for j in range(kernel_h):
            for oh in range(out_h):
                h = oh * strides[1] - padding[1] + j * dilation[1]
                if h < 0 or h >= height:
                    continue
                for k in range(kernel_w):
                    left = padding[2] - k * dilation[2]
                    first = max(-(-left // strides[2]), 0)
                    count = min((width - 1 + left) // strides[2] + 1, out_w) - first
                    if count > 0:
                        tap = ((channel * kernel_d + i) * kernel_h + j) * kernel_w + k
                        given = ((tap * out_d + od // strides[0]) * out_h + oh) * out_w + first
                        at = start + h * width + first * strides[2] - left
                        _add_spread(dx, at, strides[2], column, given, count)


@parallel(error_model="numpy")
def fold(
    column: Any,
    addend: Any,
    dx: Any,
    planes: int,
    sizes: Any,
    strides: tuple[int, int, int],
    padding: tuple[int, int, int],
    dilation: tuple[int, int, int],
) -> None:
    """Fold flat columns (C, kernel, output) into flat dx (C, D, H, W), plus the addend unless it is empty.

    planes: C D. sizes: of dx, of the kernel and of the output.
    """
    for plane in prange(planes):
        _fold_plane(column, addend, dx, np.int64(plane), sizes, strides, padding, dilation)


@parallel(error_model="numpy")
def add_in_place(total: Any, addend: Any) -> None:
    """Add flat addend to total."""
    for index in prange(total.size):
        total[index] += addend[index]
