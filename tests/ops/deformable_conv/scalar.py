"""deformable_conv written a second time, pixel by pixel and tap by tap, with the mistakes that kernels make."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opgauge.ops.deformable_conv.op import DeformableConvParams

Array = NDArray[Any]
MISTAKES = (
    "kernel sides swapped",
    "offsets swapped",
    "offsets planar",
    "offsets by column",
    "mask ignored",
    "mask by column",
    "groups ignored",
    "deformable groups ignored",
    "deformable groups interleaved",
    "strides swapped",
    "paddings swapped",
    "dilations swapped",
    "dilation ignored",
    "negative rows dropped",
    "edge repeated",
    "nearest pixel",
    "last tap dropped",
    "step layout",
)
"""What `convolve` can do wrong."""


def sample(planes: Array, h: float, w: float, wrong: str = "") -> Array:
    """Each of the planes (C, H, W) at one place: 0 unless strictly inside (-1, H) x (-1, W)."""
    height, width = planes.shape[1:]
    if not (isfinite(h) and isfinite(w) and -1 < h < height and -1 < w < width):
        return np.zeros(len(planes))
    if wrong == "negative rows dropped" and h < 0:
        return np.zeros(len(planes))
    if wrong == "nearest pixel":
        h, w = float(round(h)), float(round(w))
    total = np.zeros(len(planes))
    for row in (floor(h), floor(h) + 1):
        for column in (floor(w), floor(w) + 1):
            share = (1 - abs(h - row)) * (1 - abs(w - column))
            inside = 0 <= row < height and 0 <= column < width
            if inside or wrong == "edge repeated":
                total += share * planes[:, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return total


def _pair(value: Any, *, swapped: bool) -> tuple[int, int]:
    first, second = value if isinstance(value, tuple) else (value, value)
    return (second, first) if swapped else (first, second)


def convolve(arrays: Mapping[str, Array], params: DeformableConvParams, out_size: Any, wrong: str = "") -> Array:
    """The output in float64, right where `wrong` is empty."""
    x, weight, groups, parts = arrays["x"], arrays["filter"], params.groups, params.deformable_groups
    if wrong == "kernel sides swapped":
        weight = weight.reshape(*weight.shape[:2], weight.shape[3], weight.shape[2])
    (batch, channels), (rows, columns), (out_h, out_w) = x.shape[:2], weight.shape[2:], out_size
    strides = _pair(params.strides, swapped=wrong == "strides swapped")
    paddings = _pair(params.paddings, swapped=wrong == "paddings swapped")
    dilations = _pair(params.dilations, swapped=wrong == "dilations swapped")
    dilations = (1, 1) if wrong == "dilation ignored" else dilations
    out = np.zeros((batch, weight.shape[0], out_h, out_w))
    for n, p, q, i, j in np.ndindex(batch, out_h, out_w, rows, columns):
        if wrong == "last tap dropped" and (i, j) == (rows - 1, columns - 1):
            continue
        column = np.zeros(channels)
        for part in range(parts):
            mine = part_of(channels, parts, part, interleaved=wrong == "deformable groups interleaved")
            by = 0 if wrong == "deformable groups ignored" else part
            dy, dx = moved(arrays["offset"][n, :, p, q], by, (i, j), (rows, columns), wrong)
            h = p * strides[0] - paddings[0] + i * dilations[0] + dy
            w = q * strides[1] - paddings[1] + j * dilations[1] + dx
            column[mine] = sample(x[n, mine], h, w, wrong) * masked(
                arrays, (n, p, q), by, (i, j), (rows, columns), wrong
            )
        for group in range(groups):
            outs = part_of(weight.shape[0], groups, group)
            given = part_of(channels, groups, 0 if wrong == "groups ignored" else group)
            out[n, outs, p, q] += weight[outs, :, i, j] @ column[given]
    if wrong == "step layout":
        step = min(params.im2col_step, batch)
        stepped = out.reshape(-1, step, *out.shape[1:])
        out = np.ascontiguousarray(np.swapaxes(stepped, 1, 2)).reshape(out.shape)
    return out


def part_of(length: int, parts: int, part: int, *, interleaved: bool = False) -> Any:
    """The indices of one part of several."""
    return slice(part, None, parts) if interleaved else slice(part * length // parts, (part + 1) * length // parts)


def moved(offset: Array, part: int, tap: Any, kernel: Any, wrong: str) -> tuple[float, float]:
    """Rows and columns by which one tap's sample is moved; offset (2 dg kh kw,)."""
    taps = kernel[0] * kernel[1]
    number = tap[1] * kernel[0] + tap[0] if wrong == "offsets by column" else tap[0] * kernel[1] + tap[1]
    mine = offset[2 * taps * part : 2 * taps * (part + 1)]
    pair = (mine[number], mine[taps + number]) if wrong == "offsets planar" else mine[2 * number : 2 * number + 2]
    return (pair[1], pair[0]) if wrong == "offsets swapped" else (pair[0], pair[1])


def masked(arrays: Mapping[str, Array], place: Any, part: int, tap: Any, kernel: Any, wrong: str) -> float:
    """The weight of one tap's sample."""
    if "mask" not in arrays or wrong == "mask ignored":
        return 1.0
    number = tap[1] * kernel[0] + tap[0] if wrong == "mask by column" else tap[0] * kernel[1] + tap[1]
    n, p, q = place
    return float(arrays["mask"][n, part * kernel[0] * kernel[1] + number, p, q])


NOWHERE = (np.nan, inf, -inf)
"""Offsets that lead to no place."""
