"""deformable_conv on the CPU: samples located once per deformable group, unfolded by Numba, multiplied by BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.dtype import FLOATS
from ops._core.kernel import Bound
from ops._core.registry import kernel
from ops.deformable_conv.op import DeformableConvParams, geometry
from ops.deformable_conv.sampling import Geometry

HALF_BYTES = 2


class _Buffers:
    """What one image needs, in the accumulating dtype; made once and used for every image and run."""

    def __init__(self, found: Geometry, wide: Any) -> None:
        groups, taps, pixels = found.deformable_groups, found.taps, found.pixels
        height, width = found.size
        self.found = found
        self.padded = np.zeros((found.channels, height + 3, width + 2), wide)
        self.places = np.empty((groups, taps, pixels), np.int32)
        self.fractions = np.empty((groups, taps, 3, pixels), wide)
        self.column = np.empty((found.channels, taps, pixels), wide)
        self.no_mask = np.empty((0, 0, 0), wide)

    @property
    def flat(self) -> Any:
        """The padded image, (C, (H + 3)(W + 2))."""
        return self.padded.reshape(self.found.channels, -1)

    def locate(self, jit: Any, x: Any, offset: Any, mask: Any) -> None:
        """Take one image and find its samples."""
        found, wide = self.found, self.padded.dtype
        self.padded[:, 1:-2, 1:-1] = x
        shape = (found.deformable_groups, found.taps, 2, found.pixels)
        moved = offset.astype(wide, copy=False).reshape(shape)
        weights = self.no_mask
        if mask is not None:
            weights = mask.astype(wide, copy=False).reshape(found.deformable_groups, found.taps, found.pixels)
        numbers = (found.strides, found.paddings, found.dilations)
        jit.tabulate(
            moved,
            weights,
            self.places,
            self.fractions,
            *found.size,
            found.out_size[1],
            found.kernel[1],
            *numbers,
        )


def _wide(x: Any) -> Any:
    return np.dtype(np.float32) if x.dtype.itemsize == HALF_BYTES else x.dtype


@kernel("deformable_conv", "optimized", "cpu", FLOATS, prepare=True)
def deformable_conv(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out: dict[str, Any],
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Image by image: locate, unfold, one product per group."""
    from ops.deformable_conv import jit

    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    wide = _wide(x)
    buffers = _Buffers(found, wide)
    result = out["out"].reshape(found.batch, found.groups, found.out_channels // found.groups, found.pixels)
    direct = result.dtype == wide
    product = np.empty((0,) if direct else result.shape[1:], wide)
    columns = buffers.column.reshape(found.groups, -1, found.pixels)

    def run() -> None:
        weight = filter.astype(wide, copy=False).reshape(found.groups, found.out_channels // found.groups, -1)
        for image in range(found.batch):
            buffers.locate(jit, x[image], offset[image], None if mask is None else mask[image])
            jit.unfold(buffers.flat, buffers.places, buffers.fractions, buffers.column, found.size[1])
            if direct:
                np.matmul(weight, columns, out=result[image])
            else:
                np.matmul(weight, columns, out=product)
                result[image] = product

    return run


@kernel("deformable_conv_grad", "optimized", "cpu", FLOATS, prepare=True)
def deformable_conv_grad(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out_grad: Any,
    out: dict[str, Any],
    need_x: bool,
    need_offset: bool,
    need_filter: bool,
    need_mask: bool,
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Image by image: the columns' gradient by a product, all else in one pass over it, the filter's by a product."""
    from ops.deformable_conv import jit

    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    wide = _wide(x)
    buffers = _Buffers(found, wide)
    groups, taps, pixels = found.deformable_groups, found.taps, found.pixels
    partial = np.empty((jit.threads(), groups, taps, 3, pixels), wide)
    padded_grad = np.empty_like(buffers.padded)
    columns = buffers.column.reshape(found.groups, -1, pixels)
    mask_wanted = need_mask and mask is not None

    def run() -> None:
        weight = filter.astype(wide, copy=False).reshape(found.groups, found.out_channels // found.groups, -1)
        filter_grad = np.zeros(weight.shape, wide)
        for image in range(found.batch):
            buffers.locate(jit, x[image], offset[image], None if mask is None else mask[image])
            given = out_grad[image].astype(wide, copy=False).reshape(found.groups, -1, pixels)
            np.matmul(weight.transpose(0, 2, 1), given, out=columns)
            partial.fill(0)
            padded_grad.fill(0)
            flat_grad = padded_grad.reshape(found.channels, -1)
            jit.fold(
                buffers.flat,
                buffers.places,
                buffers.fractions,
                buffers.column,
                flat_grad,
                partial,
                found.size[1],
            )
            if need_offset or mask_wanted:
                total = partial.sum(axis=0)
            if need_offset:
                out["offset_grad"][image] = total[:, :, :2].reshape(offset.shape[1:])
            if mask_wanted:
                out["mask_grad"][image] = total[:, :, 2].reshape(mask.shape[1:])
            if need_x:
                out["x_grad"][image] = padded_grad[:, 1:-2, 1:-1]
            if need_filter:
                filter_grad += np.matmul(given, columns.transpose(0, 2, 1))
        if need_filter:
            out["filter_grad"][...] = filter_grad.reshape(filter.shape)

    return run
