"""conv_data_grad as a composite: a matrix product computes columns, strided additions fold them, then the addend."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.registry import kernel
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, PerAxis, geometry


@kernel("conv_data_grad", "baseline", BACKENDS, FLOATS)
def conv_data_grad(
    *,
    dy: Any,
    filter: Any,
    x_like: Any,
    strides: PerAxis,
    padding_before: PerAxis,
    dilation_rate: PerAxis,
    groups: int,
    data_format: str,
    out: dict[str, Any],
    add_to_output: Any = None,
) -> None:
    """One product, one addition per tap, one for the addend."""
    xp = namespace(dy)
    params = ConvDataGradParams(strides, padding_before, dilation_rate, groups, data_format)  # type: ignore[arg-type]
    found = geometry(x_like.shape, filter.shape, params)
    wide = xp.float32 if dy.dtype.itemsize == 2 else dy.dtype
    dy, weight = dy.astype(wide, copy=False), filter.astype(wide, copy=False)
    if found.channels_last:
        dy, weight = xp.moveaxis(dy, -1, 1), xp.moveaxis(weight, -1, 1)
    per_group = found.out_channels // groups
    rows = weight.reshape(groups, per_group, -1).transpose(0, 2, 1)
    columns = xp.matmul(rows, dy.reshape(found.batch, groups, per_group, prod(found.out_size)))
    columns = columns.reshape(found.batch, found.channels, *found.kernel, *found.out_size)
    reach = [
        max(p + length, d * (k - 1) + s * (size - 1) + 1)
        for p, length, d, k, s, size in zip(
            found.padding,
            found.size,
            found.dilation,
            found.kernel,
            found.strides,
            found.out_size,
            strict=True,
        )
    ]
    padded = xp.zeros((found.batch, found.channels, *reach), wide)
    for tap in np.ndindex(*found.kernel):
        places = tuple(
            slice(i * d, i * d + s * (size - 1) + 1, s)
            for i, d, s, size in zip(tap, found.dilation, found.strides, found.out_size, strict=True)
        )
        padded[(..., *places)] += columns[(slice(None), slice(None), *tap)]
    inner = tuple(slice(p, p + length) for p, length in zip(found.padding, found.size, strict=True))
    dx = padded[(..., *inner)]
    if found.channels_last:
        dx = xp.moveaxis(dx, 1, -1)
    if add_to_output is not None:
        dx = dx + add_to_output.astype(wide, copy=False)
    out["dx"][...] = dx
