"""deformable_conv and its gradient as Eigen-style composites, image by image, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.registry import kernel
from opgauge.ops.deformable_conv.op import DTYPES, DeformableConvParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Corners of a sample as (row, column)."""


def _coordinates(xp: Any, offset: Any, found: SamplingGeometry, dtype: Any) -> tuple[Any, Any]:
    """Rows and columns of every sample of one image, (dg, taps, P) each."""
    taps = xp.arange(found.taps)
    rows, columns = xp.divmod(xp.arange(found.pixels), found.out_size[1])
    i, j = xp.divmod(taps, found.kernel[1])
    h = rows[None] * found.strides[0] - found.paddings[0] + (i * found.dilations[0])[:, None]
    w = columns[None] * found.strides[1] - found.paddings[1] + (j * found.dilations[1])[:, None]
    moved = offset.reshape(found.deformable_groups, found.taps, 2, found.pixels).astype(dtype)
    return moved[:, :, 0] + h.astype(dtype), moved[:, :, 1] + w.astype(dtype)


def _corners(xp: Any, x: Any, h: Any, w: Any, found: SamplingGeometry) -> tuple[list[Any], list[Any], Any, Any]:
    """Values (dg, C / dg, taps, P) and flat indices (dg, taps, P) of the four corners, and the fractions."""
    height, width = found.size
    inside = (h > -1) & (h < height) & (w > -1) & (w < width)
    h, w = xp.where(inside, h, 0), xp.where(inside, w, 0)
    h0, w0 = xp.floor(h), xp.floor(w)
    image = x.reshape(found.deformable_groups, -1, height * width)
    values, places = [], []
    for dh, dw in CORNERS:
        row, column = (h0 + dh).astype(xp.int64), (w0 + dw).astype(xp.int64)
        readable = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = xp.where(readable, row * width + column, -1)
        flat = xp.maximum(place, 0)
        gathered = xp.stack([group[:, index] for group, index in zip(image, flat, strict=True)])
        values.append(xp.where(readable[:, None], gathered, 0))
        places.append(place)
    return values, places, h - h0, w - w0


def _blend(values: list[Any], weights: list[Any]) -> Any:
    total = values[0] * weights[0][:, None]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + value * weight[:, None]
    return total


def _weights(lh: Any, lw: Any) -> list[Any]:
    return [(1 - lh) * (1 - lw), (1 - lh) * lw, lh * (1 - lw), lh * lw]


@kernel("deformable_conv", "baseline", BACKENDS, DTYPES)
def deformable_conv(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out: dict[str, Any],
    mask: Any = None,
    **options: Any,
) -> None:
    """Per image: coordinates, four gathers, weights, mask, then one product per group."""
    xp = namespace(x)
    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    wide = xp.float32 if x.dtype.itemsize == 2 else x.dtype
    weight = filter.astype(wide, copy=False).reshape(found.groups, found.out_channels // found.groups, -1)
    for image in range(found.batch):
        h, w = _coordinates(xp, offset[image], found, wide)
        values, _, lh, lw = _corners(xp, x[image].astype(wide, copy=False), h, w, found)
        column = _blend(values, _weights(lh, lw))
        if mask is not None:
            shape = (found.deformable_groups, 1, found.taps, found.pixels)
            column = column * mask[image].astype(wide, copy=False).reshape(shape)
        product = xp.matmul(weight, column.reshape(found.groups, -1, found.pixels))
        out["out"][image] = product.reshape(out["out"].shape[1:])


@kernel("deformable_conv_grad", "baseline", "cpu", DTYPES)
@kernel("deformable_conv_grad", "baseline", "cuda", DTYPES, deterministic=False)
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
) -> None:
    """Per image: the columns' gradient by a product, then samples, derivatives and a scatter as array operations."""
    xp = namespace(x)
    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    wide = xp.float32 if x.dtype.itemsize == 2 else x.dtype
    weight = filter.astype(wide, copy=False).reshape(found.groups, found.out_channels // found.groups, -1)
    by_tap = (found.deformable_groups, found.taps, found.pixels)
    filter_grad = xp.zeros(weight.shape, wide)
    for image in range(found.batch):
        h, w = _coordinates(xp, offset[image], found, wide)
        values, places, lh, lw = _corners(xp, x[image].astype(wide, copy=False), h, w, found)
        weights = _weights(lh, lw)
        m = xp.ones(by_tap, wide) if mask is None else mask[image].astype(wide).reshape(by_tap)
        given = out_grad[image].astype(wide, copy=False).reshape(found.groups, -1, found.pixels)
        column_grad = xp.matmul(weight.transpose(0, 2, 1), given)
        column_grad = column_grad.reshape(found.deformable_groups, -1, found.taps, found.pixels)
        sampled = _blend(values, weights)
        if need_mask and mask is not None:
            out["mask_grad"][image] = (column_grad * sampled).sum(axis=1).reshape(mask.shape[1:])
        if need_offset:
            slopes_h = _blend(values, [lw - 1, -lw, 1 - lw, lw])
            slopes_w = _blend(values, [lh - 1, 1 - lh, -lh, lh])
            pair = [(column_grad * slopes).sum(axis=1) * m for slopes in (slopes_h, slopes_w)]
            out["offset_grad"][image] = xp.stack(pair, axis=2).reshape(offset.shape[1:])
        if need_filter:
            column = (sampled * m[:, None]).reshape(found.groups, -1, found.pixels)
            filter_grad += xp.matmul(given, column.transpose(0, 2, 1))
        if need_x:
            out["x_grad"][image] = _scatter(xp, column_grad, places, [part * m for part in weights], found)
    if need_filter:
        out["filter_grad"][...] = filter_grad.reshape(filter.shape)


def _scatter(xp: Any, column_grad: Any, places: list[Any], weights: list[Any], found: SamplingGeometry) -> Any:
    """Add each column's gradient to the pixels that it was sampled from, (C, H, W); CuPy adds in any order."""
    size = found.size[0] * found.size[1]
    channels = column_grad.shape[1]
    base = xp.arange(channels)[:, None] * size
    planes = []
    for group in range(found.deformable_groups):
        total = xp.zeros(channels * size, xp.float64)
        for place, weight in zip(places, weights, strict=True):
            flat, share = place[group].reshape(-1), weight[group].reshape(-1)
            kept = flat >= 0
            given = column_grad[group].reshape(channels, -1)[:, kept] * share[kept]
            index = (base + flat[kept]).reshape(-1)
            total += xp.bincount(index, given.reshape(-1).astype(xp.float64), channels * size)
        planes.append(total.reshape(channels, *found.size))
    return xp.concatenate(planes)
