"""The mathematics of deformable convolution in float64: the reference, and the magnitudes its bounds rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ops._core.op import Array, Shape

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A deformable convolution in numbers; pairs are (rows, columns)."""

    batch: int
    channels: int
    size: Pair
    out_channels: int
    kernel: Pair
    out_size: Pair
    strides: Pair
    paddings: Pair
    dilations: Pair
    deformable_groups: int
    groups: int

    @property
    def taps(self) -> int:
        """Entries of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Pixels of one output image."""
        return self.out_size[0] * self.out_size[1]

    @property
    def offset_shape(self) -> Shape:
        """(N, 2 dg kh kw, Ho, Wo)."""
        return (self.batch, 2 * self.deformable_groups * self.taps, *self.out_size)

    @property
    def mask_shape(self) -> Shape:
        """(N, dg kh kw, Ho, Wo)."""
        return (self.batch, self.deformable_groups * self.taps, *self.out_size)

    @property
    def out_shape(self) -> Shape:
        """(N, Co, Ho, Wo)."""
        return (self.batch, self.out_channels, *self.out_size)

    @property
    def samples(self) -> int:
        """Bilinear samples: one per image, channel, tap and output pixel."""
        return self.batch * self.channels * self.taps * self.pixels

    @property
    def product_flops(self) -> int:
        """Floating-point operations of the matrix product."""
        return 2 * self.samples * self.out_channels // self.groups


@dataclass(frozen=True, slots=True)
class Tap:
    """One kernel entry's samples. Arrays are (N, dg, P), corner values (N, dg, C / dg, P).

    corners: values at (h0, w0), (h0, w0 + 1), (h0 + 1, w0), (h0 + 1, w0 + 1), 0 outside the image.
    weights: bilinear weight of each. slopes_h, slopes_w: their derivatives. places: flat pixel
    index of each corner. valid: whether each corner may be read. fraction_h, fraction_w: distance from
    the upper left corner. reach: |h| + |w| of the sample, and 2.
    """

    i: int
    j: int
    mask: Array
    corners: tuple[Array, ...]
    weights: tuple[Array, ...]
    slopes_h: tuple[Array, ...]
    slopes_w: tuple[Array, ...]
    places: tuple[Array, ...]
    valid: tuple[Array, ...]
    fraction_h: Array
    fraction_w: Array
    reach: Array

    def blend(self, weights: tuple[Array, ...], *, magnitudes: bool = False) -> Array:
        """Sum of corner values by `weights`, (N, dg, C / dg, P); of absolute values where `magnitudes`."""
        total: Array = np.zeros_like(self.corners[0])
        for value, weight in zip(self.corners, weights, strict=True):
            part = value * weight[:, :, None]
            total += np.abs(part) if magnitudes else part
        return total


def taps(arrays: Mapping[str, Array], found: Geometry) -> Iterator[Tap]:
    """Every kernel entry's samples in turn."""
    (kernel_h, kernel_w), (height, width) = found.kernel, found.size
    groups, pixels = found.deformable_groups, found.pixels
    image = arrays["x"].reshape(found.batch, groups, found.channels // groups, height * width)
    offset = arrays["offset"].reshape(found.batch, groups, found.taps, 2, pixels)
    mask = arrays.get("mask")
    rows, columns = np.divmod(np.arange(pixels), found.out_size[1])
    for i, j in np.ndindex(kernel_h, kernel_w):
        tap = i * kernel_w + j
        h = rows * found.strides[0] - found.paddings[0] + i * found.dilations[0] + offset[:, :, tap, 0]
        w = columns * found.strides[1] - found.paddings[1] + j * found.dilations[1] + offset[:, :, tap, 1]
        inside = (h > -1) & (h < height) & (w > -1) & (w < width)
        h, w = np.where(inside, h, 0.0), np.where(inside, w, 0.0)
        h0, w0 = np.floor(h).astype(np.int64), np.floor(w).astype(np.int64)
        lh, lw = h - h0, w - w0
        places, valid, corners = [], [], []
        for dh, dw in ((0, 0), (0, 1), (1, 0), (1, 1)):
            row, column = h0 + dh, w0 + dw
            readable = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = np.where(readable, row * width + column, 0)
            value = np.take_along_axis(image, place[:, :, None], axis=3)
            places.append(place)
            valid.append(readable)
            corners.append(np.where(readable[:, :, None], value, 0.0))
        yield Tap(
            i,
            j,
            np.ones_like(h) if mask is None else mask.reshape(found.batch, groups, found.taps, pixels)[:, :, tap],
            tuple(corners),
            ((1 - lh) * (1 - lw), (1 - lh) * lw, lh * (1 - lw), lh * lw),
            (lw - 1, -lw, 1 - lw, lw),
            (lh - 1, 1 - lh, -lh, lh),
            tuple(places),
            tuple(valid),
            lh,
            lw,
            np.abs(h) + np.abs(w) + 2,
        )


def _by_group(found: Geometry, weight: Array, i: int, j: int) -> Array:
    """The filter at one tap, (groups, Co / groups, C / groups)."""
    return weight[:, :, i, j].reshape(found.groups, -1, weight.shape[1])


def _product(found: Geometry, weight: Array, column: Array) -> Array:
    """filter @ column by group: (N, Co, P)."""
    grouped = column.reshape(found.batch, found.groups, found.channels // found.groups, found.pixels)
    product: Array = np.matmul(weight[None], grouped)
    return product.reshape(found.batch, found.out_channels, found.pixels)


def output(arrays: Mapping[str, Array], found: Geometry, *, with_bound: bool) -> tuple[Array, Array, Array]:
    """The output, and for the bound: sum |filter column|, and the root of the summed squares of what coordinates shift.

    Each is (N, Co, Ho, Wo); the last two are empty unless `with_bound`.
    """
    out, magnitude, squares = (np.zeros((found.batch, found.out_channels, found.pixels)) for _ in range(3))
    with np.errstate(invalid="ignore"):
        for tap in taps(arrays, found):
            weight = _by_group(found, arrays["filter"], tap.i, tap.j)
            mask = tap.mask[:, :, None]
            out += _product(found, weight, tap.blend(tap.weights) * mask)
            if not with_bound:
                continue
            column = tap.blend(tap.weights, magnitudes=True) * np.abs(mask)
            magnitude += _product(found, np.abs(weight), column)
            ones = tuple(valid.astype(np.float64) for valid in tap.valid)
            moved = tap.blend(ones, magnitudes=True) * np.abs(mask) * tap.reach[:, :, None]
            squares += _product(found, np.square(weight), np.square(moved))
    shape = found.out_shape
    return out.reshape(shape), magnitude.reshape(shape), np.sqrt(squares).reshape(shape)


def _absolute(tap: Tap) -> Tap:
    """The tap with slopes made absolute; weights are positive."""
    return replace(
        tap,
        slopes_h=tuple(np.abs(slope) for slope in tap.slopes_h),
        slopes_w=tuple(np.abs(slope) for slope in tap.slopes_w),
    )


def gradients(arrays: Mapping[str, Array], found: Geometry, *, magnitudes: bool = False) -> dict[str, Array]:
    """Gradients by name; with `magnitudes`, the same sums over absolute values, for the bound."""
    weight, out_grad = (
        arrays["filter"],
        arrays["out_grad"].reshape(found.batch, found.groups, found.out_channels // found.groups, found.pixels),
    )
    if magnitudes:
        weight, out_grad = np.abs(weight), np.abs(out_grad)
    groups, pixels = found.deformable_groups, found.pixels
    per_group = found.channels // groups
    x_grad = np.zeros((found.batch, groups, per_group, found.size[0] * found.size[1]))
    offset_grad = np.zeros((found.batch, groups, found.taps, 2, pixels))
    mask_grad = np.zeros((found.batch, groups, found.taps, pixels))
    filter_grad = np.zeros_like(weight)
    images, deformable = np.ogrid[: found.batch, :groups]
    index = (
        images[:, :, None, None],
        deformable[:, :, None, None],
        np.arange(per_group)[None, None, :, None],
    )
    for exact in taps(arrays, found):
        tap = _absolute(exact) if magnitudes else exact
        number = tap.i * found.kernel[1] + tap.j
        by_group = _by_group(found, weight, tap.i, tap.j)
        column_grad = np.matmul(by_group.transpose(0, 2, 1)[None], out_grad)
        column_grad = column_grad.reshape(found.batch, groups, per_group, pixels)
        mask = np.abs(tap.mask) if magnitudes else tap.mask
        sampled = tap.blend(tap.weights, magnitudes=magnitudes)
        mask_grad[:, :, number] = np.sum(column_grad * sampled, axis=2)
        for axis, slopes in enumerate((tap.slopes_h, tap.slopes_w)):
            slope = tap.blend(slopes, magnitudes=magnitudes)
            offset_grad[:, :, number, axis] = np.sum(column_grad * slope, axis=2) * mask
        column = (sampled * mask[:, :, None]).reshape(found.batch, found.groups, weight.shape[1], pixels)
        filter_grad[:, :, tap.i, tap.j] = np.einsum("ngop,ngcp->goc", out_grad, column, optimize=True).reshape(
            filter_grad.shape[:2]
        )
        for place, valid, share in zip(tap.places, tap.valid, tap.weights, strict=True):
            given = column_grad * (mask * share * valid)[:, :, None]
            np.add.at(x_grad, (*index[:3], place[:, :, None]), given)
    found_all = {
        "x_grad": x_grad.reshape(arrays["x"].shape),
        "offset_grad": offset_grad.reshape(found.offset_shape),
        "filter_grad": filter_grad,
    }
    if "mask" in arrays:
        found_all["mask_grad"] = mask_grad.reshape(found.mask_shape)
    return found_all


def wobbles(arrays: Mapping[str, Array], found: Geometry, epsilon: float) -> dict[str, Array]:
    """How far one epsilon of every coordinate moves each gradient.

    A coordinate's rounding moves a weight or a slope by up to half an epsilon of the coordinate, however
    small that is. Rounding is independent from sample to sample, so that x and filter see the root of the
    summed squares; the channels of a sample share it, so that offset and mask see a plain sum. A coordinate
    that rounding may carry to a whole number has the slope of either side.
    """
    weight = np.abs(arrays["filter"])
    out_grad = np.abs(
        arrays["out_grad"].reshape(found.batch, found.groups, found.out_channels // found.groups, found.pixels)
    )
    groups, pixels = found.deformable_groups, found.pixels
    image = np.abs(arrays["x"].reshape(found.batch, groups, found.channels // groups, found.size[0] * found.size[1]))
    highest = image.max(axis=3, initial=0.0, keepdims=True)
    x_grad = np.zeros_like(image)
    offset_grad = np.zeros((found.batch, groups, found.taps, 2, pixels))
    mask_grad = np.zeros((found.batch, groups, found.taps, pixels))
    filter_grad = np.zeros_like(weight)
    images, deformable, channels, _ = np.ogrid[: found.batch, :groups, : image.shape[2], :1]
    for tap in taps(arrays, found):
        number = tap.i * found.kernel[1] + tap.j
        by_group = _by_group(found, weight, tap.i, tap.j)
        column_grad = np.matmul(by_group.transpose(0, 2, 1)[None], out_grad).reshape(*image.shape[:3], pixels)
        reach, mask = tap.reach, np.abs(tap.mask)
        moved = tap.blend(tuple(valid.astype(np.float64) for valid in tap.valid), magnitudes=True)
        mask_grad[:, :, number] = np.sum(column_grad * moved, axis=2) * reach
        jump = np.sum(column_grad * highest, axis=2) * mask
        for axis, fraction in enumerate((tap.fraction_h, tap.fraction_w)):
            from_whole = np.minimum(fraction, 1 - fraction)
            near = (from_whole > 0) & (from_whole <= epsilon * reach)
            offset_grad[:, :, number, axis] = mask_grad[:, :, number] * mask + np.where(near, 4 * jump / epsilon, 0.0)
        squares = np.square(moved * (mask * reach)[:, :, None])
        squares = squares.reshape(found.batch, found.groups, weight.shape[1], pixels)
        filter_grad[:, :, tap.i, tap.j] = np.einsum(
            "ngop,ngcp->goc", np.square(out_grad), squares, optimize=True
        ).reshape(filter_grad.shape[:2])
        for place, valid in zip(tap.places, tap.valid, strict=True):
            given = np.square(column_grad * (mask * reach * valid)[:, :, None])
            np.add.at(x_grad, (images, deformable, channels, place[:, :, None]), given)
    found_all = {
        "x_grad": np.sqrt(x_grad).reshape(arrays["x"].shape),
        "offset_grad": offset_grad.reshape(found.offset_shape),
        "filter_grad": np.sqrt(filter_grad),
    }
    if "mask" in arrays:
        found_all["mask_grad"] = mask_grad.reshape(found.mask_shape)
    return found_all
