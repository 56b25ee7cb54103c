"""The mathematics of deformable convolution in float64: the reference, and the magnitudes its bounds rest on.

Image by image: all samples of a pixel side by side are its column, and the rest is matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from opgauge.ops._core.op import Array
from opgauge.ops.deformable_conv.rows import CORNERS, Spread, blend
from opgauge.ops.deformable_conv.sampling import Geometry, Piece, Samples, pieces


def _by_tap(found: Geometry, weight: Array) -> Array:
    """The filter as (groups, Co / groups, taps C / groups)."""
    by_group = weight.reshape(found.groups, -1, weight.shape[1], found.taps)
    return by_group.transpose(0, 1, 3, 2).reshape(found.groups, by_group.shape[1], -1)


def output(arrays: Mapping[str, Array], found: Geometry) -> Array:
    """(N, Co, Ho, Wo)."""
    weight = _by_tap(found, arrays["filter"])
    out = np.zeros((found.batch, found.out_channels, found.pixels))
    for piece in pieces(found):
        at = piece.samples(arrays)
        (sampled,), _ = blend(piece.rows(arrays["x"]), at.places, [(at.weights, at.mask)])
        piece.of_output(out)[...] = _product(weight, piece.columns(sampled))
    return out.reshape(found.out_shape)


def output_bounds(arrays: Mapping[str, Array], found: Geometry) -> tuple[Array, Array]:
    """Sum |filter column|, and the root of the summed squares of what an epsilon of coordinates shifts.

    Each is (N, Co, Ho, Wo).
    """
    weight = np.abs(_by_tap(found, arrays["filter"]))
    magnitude, squares = np.zeros((2, found.batch, found.out_channels, found.pixels))
    for piece in pieces(found):
        at = piece.samples(arrays)
        (sampled, moved), _ = blend(np.abs(piece.rows(arrays["x"])), at.places, _sizes(at))
        piece.of_output(magnitude)[...] = _product(weight, piece.columns(sampled))
        piece.of_output(squares)[...] = _product(np.square(weight), np.square(piece.columns(moved)))
    return magnitude.reshape(found.out_shape), np.sqrt(squares).reshape(found.out_shape)


def _product(weight: Array, columns: Array) -> Array:
    """The filter times columns, (groups, Co / groups, P)."""
    product: Array = np.matmul(weight, columns.transpose(0, 2, 1))
    return product


def _sizes(at: Samples) -> list[tuple[Array, Array]]:
    """How to weigh magnitudes: as samples do, and for what moves by an epsilon of the coordinates."""
    mask = np.abs(at.mask)
    return [(at.weights, mask), (np.ones_like(at.weights), mask * at.reach)]


class Gradients:
    """Sums of gradients, in the shapes in which pieces add to them."""

    def __init__(self, found: Geometry) -> None:
        groups, pixels = found.deformable_groups, found.pixels
        self.found = found
        self.x = np.zeros((found.batch, groups, found.size[0] * found.size[1], found.channels // groups))
        self.offset = np.zeros((found.batch, groups, found.taps, 2, pixels))
        self.mask = np.zeros((found.batch, groups, found.taps, pixels))
        self.filter = np.zeros(
            (found.groups, found.out_channels // found.groups, found.taps, found.channels // found.groups)
        )

    def add_to_samples(self, piece: Piece, mask: Array, slopes: Sequence[Array]) -> None:
        """Those of mask and offset, (dg, S)."""
        self.mask[piece.image][..., piece.pixels] = piece.by_tap(mask)
        for axis, slope in enumerate(slopes):
            self.offset[piece.image][:, :, axis, piece.pixels] = piece.by_tap(slope)

    def add_to_filter(self, out_grad: Array, columns: Array) -> None:
        """(groups, Co / groups, P) times (groups, P, taps C / groups)."""
        self.filter += np.matmul(out_grad, columns).reshape(self.filter.shape)

    def by_name(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """In the shapes of the inputs."""
        weight = self.filter.transpose(0, 1, 3, 2)
        made = {"x": self.x.transpose(0, 1, 3, 2), "offset": self.offset, "filter": weight, "mask": self.mask}
        return {f"{name}_grad": grad.reshape(arrays[name].shape) for name, grad in made.items() if name in arrays}


def gradients(arrays: Mapping[str, Array], found: Geometry) -> dict[str, Array]:
    """Gradients by name."""
    weight, grads = _by_tap(found, arrays["filter"]), Gradients(found)
    for piece in pieces(found):
        at, out_grad = piece.samples(arrays), piece.of_output(arrays["out_grad"])
        column_grad = piece.parts(np.matmul(out_grad.transpose(0, 2, 1), weight))
        (sampled,), products = blend(piece.rows(arrays["x"]), at.places, [(at.weights, at.mask)], column_grad)
        grads.add_to_filter(out_grad, piece.columns(sampled))
        slopes = [at.mask * _sum(slope * products) for slope in at.slopes]
        grads.add_to_samples(piece, _sum(at.weights * products), slopes)
        for part, places in enumerate(at.places):
            spread, weights = Spread(places, grads.x.shape[2]), at.weights[part] * at.mask[part, :, None]
            grads.x[piece.image, part] += spread(column_grad[part], weights)
    return grads.by_name(arrays)


def _sum(by_corner: Array) -> Array:
    total: Array = np.sum(by_corner, axis=-1)
    return total


def gradient_bounds(
    arrays: Mapping[str, Array], found: Geometry, epsilon: float
) -> tuple[dict[str, Array], dict[str, Array]]:
    """By name: the gradients' sums over absolute values, and how far one epsilon of every coordinate moves each.

    A coordinate's rounding moves a weight or a slope by up to half an epsilon of the coordinate, however
    small that is. Rounding is independent from sample to sample, so that x and filter see the root of the
    summed squares; the channels of a sample share it, so that offset and mask see a plain sum. A coordinate
    that rounding may carry to a whole number has the slope of either side.
    """
    weight, sizes, wobbles = np.abs(_by_tap(found, arrays["filter"])), Gradients(found), Gradients(found)
    for piece in pieces(found):
        at, out_grad = piece.samples(arrays), np.abs(piece.of_output(arrays["out_grad"]))
        mask, rows = np.abs(at.mask), np.abs(piece.rows(arrays["x"]))
        column_grad = piece.parts(np.matmul(out_grad.transpose(0, 2, 1), weight))
        (sampled, moved), products = blend(rows, at.places, _sizes(at), column_grad)
        sizes.add_to_filter(out_grad, piece.columns(sampled))
        wobbles.add_to_filter(np.square(out_grad), np.square(piece.columns(moved)))
        slopes = [mask * _sum(np.abs(slope) * products) for slope in at.slopes]
        sizes.add_to_samples(piece, _sum(at.weights * products), slopes)
        shaken = _sum(products) * at.reach
        jump = 4 / epsilon * mask * np.matmul(column_grad, rows.max(axis=1)[..., None])[..., 0]
        near = [_is_near_whole(fraction, epsilon * at.reach) for fraction in at.fractions]
        wobbles.add_to_samples(piece, shaken, [shaken * mask + np.where(one, jump, 0.0) for one in near])
        for part, places in enumerate(at.places):
            spread = Spread(places, sizes.x.shape[2])
            sizes.x[piece.image, part] += spread(column_grad[part], at.weights[part] * mask[part, :, None])
            squares = np.repeat(np.square((mask * at.reach)[part, :, None]), CORNERS, axis=1)
            wobbles.x[piece.image, part] += spread(np.square(column_grad[part]), squares)
    wobbles.x, wobbles.filter = np.sqrt(wobbles.x), np.sqrt(wobbles.filter)
    return sizes.by_name(arrays), wobbles.by_name(arrays)


def _is_near_whole(fraction: Array, distance: Array) -> Array:
    """Near a whole number, but not at it."""
    from_whole = np.minimum(fraction, 1 - fraction)
    near: Array = (from_whole > 0) & (from_whole <= distance)
    return near
