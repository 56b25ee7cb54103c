"""Numba kernels of conv_data_grad for the CPU."""

from __future__ import annotations

from typing import Any

from numba import njit, prange


@njit(cache=True, error_model="numpy")
def add_spread(row: Any, given: Any, stride: int) -> None:
    """row[::stride] += given; stride 1 apart, so that it is compiled to vector instructions."""
    if stride == 1:
        for index in range(given.size):
            row[index] += given[index]
    else:
        for index in range(given.size):
            row[index * stride] += given[index]


@njit(cache=True, parallel=True, error_model="numpy")
def fold(
    column: Any,
    addend: Any,
    dx: Any,
    strides: tuple[int, int, int],
    padding: tuple[int, int, int],
    dilation: tuple[int, int, int],
) -> None:
    """Fold columns (C, kd, kh, kw, Do, Ho, Wo) into dx (C, D, H, W), on top of the addend unless that is empty."""
    channels, depth, height, width = dx.shape
    kernel_d, kernel_h, kernel_w, out_d, out_h, out_w = column.shape[1:]
    adds = addend.size > 0
    for plane in prange(channels * depth):
        channel, d = plane // depth, plane % depth
        if adds:
            dx[channel, d] = addend[channel, d]
        else:
            dx[channel, d] = 0
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
                        last = min((width - 1 + left) // strides[2] + 1, out_w)
                        if last > first:
                            given = column[channel, i, j, k, od // strides[0], oh, first:last]
                            add_spread(dx[channel, d, h, first * strides[2] - left :], given, strides[2])


@njit(cache=True, parallel=True, error_model="numpy")
def add_in_place(total: Any, addend: Any) -> None:
    """total += addend, flat."""
    for index in prange(total.size):
        total[index] += addend[index]
