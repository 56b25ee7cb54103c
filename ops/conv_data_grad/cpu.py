"""conv_data_grad on the CPU: image by image, a product by BLAS, then one fused pass over what is still in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.dtype import FLOATS
from ops._core.kernel import Bound
from ops._core.registry import kernel
from ops.conv_data_grad.op import ConvDataGradParams, Geometry, geometry

HALF_BYTES = 2


def _three(values: tuple[int, ...], fill: int) -> tuple[int, int, int]:
    """The same for three spatial axes, missing ones in front."""
    padded = (fill,) * (3 - len(values)) + tuple(values)
    return (padded[0], padded[1], padded[2])


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
    """A product, and the columns folded together with the addend."""
    from ops.conv_data_grad import jit

    found = geometry(x_like.shape, filter.shape, ConvDataGradParams(**options))
    wide = np.dtype(np.float32) if dy.dtype.itemsize == HALF_BYTES else dy.dtype
    if found.channels_last:
        return _channels_last(jit, found, wide, dy, filter, out["dx"], add_to_output)
    dx = out["dx"]
    direct = dx.dtype == wide

    def run() -> None:
        rows = _rows(filter, found, wide)
        for image in range(found.batch):
            target = dx[image] if direct else np.empty(dx.shape[1:], wide)
            addend = None if add_to_output is None else add_to_output[image].astype(wide, copy=False)
            _one_image(jit, found, rows, dy[image].astype(wide, copy=False), addend, target)
            if not direct:
                dx[image] = target

    return run


def _rows(weight: Any, found: Geometry, wide: Any) -> Any:
    """The filter, channels first, as (groups, C / groups * taps, Co / groups)."""
    first = np.moveaxis(weight, -1, 1) if found.channels_last else weight
    grouped = first.astype(wide, copy=False).reshape(found.groups, found.out_channels // found.groups, -1)
    return np.ascontiguousarray(grouped.transpose(0, 2, 1))


def _one_image(jit: Any, found: Geometry, rows: Any, dy: Any, addend: Any, dx: Any) -> None:
    given = dy.reshape(found.groups, found.out_channels // found.groups, -1)
    if found.is_pointwise:
        np.matmul(rows, given, out=dx.reshape(found.groups, -1, given.shape[2]))
        if addend is not None:
            jit.add_in_place(dx.reshape(-1), addend.reshape(-1))
        return
    kernel_shape, out_shape = _three(found.kernel, 1), _three(found.out_size, 1)
    column = np.matmul(rows, given).reshape(found.channels, *kernel_shape, *out_shape)
    full = (found.channels, *_three(found.size, 1))
    added = np.empty((0, 0, 0, 0), dx.dtype) if addend is None else addend.reshape(full)
    strides, padding, dilation = _three(found.strides, 1), _three(found.padding, 0), _three(found.dilation, 1)
    jit.fold(column, added, dx.reshape(full), strides, padding, dilation)


def _channels_last(jit: Any, found: Geometry, wide: Any, dy: Any, weight: Any, dx: Any, addend: Any) -> Bound:
    """Pointwise: one product over all pixels. Elsewhere: image by image, channels moved to the front."""
    direct = dx.dtype == wide

    def run_pointwise() -> None:
        matrix = weight.astype(wide, copy=False).reshape(found.out_channels, -1)
        given = dy.astype(wide, copy=False).reshape(-1, found.out_channels)
        flat = dx.reshape(-1, found.channels)
        total = flat if direct else np.empty(flat.shape, wide)
        np.matmul(given, matrix, out=total)
        if addend is not None:
            jit.add_in_place(total.reshape(-1), addend.astype(wide, copy=False).reshape(-1))
        if not direct:
            flat[...] = total

    def run() -> None:
        rows = _rows(weight, found, wide)
        for image in range(found.batch):
            given = np.ascontiguousarray(np.moveaxis(dy[image].astype(wide, copy=False), -1, 0))
            target = np.empty((found.channels, *found.size), wide)
            _one_image(jit, found, rows, given, None, target)
            moved = np.moveaxis(target, 0, -1)
            dx[image] = moved if addend is None else moved + addend[image].astype(wide, copy=False)

    return run_pointwise if found.is_pointwise and found.groups == 1 else run
