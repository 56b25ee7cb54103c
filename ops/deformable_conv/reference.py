"""The mathematics of deformable convolution in float64: the reference, and the magnitudes for its bounds.

Image by image: all samples of a pixel form its column, and the rest is matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opgauge.ops._core.op import Array
from opgauge.ops.deformable_conv.rows import CORNERS, RowScatter, blend
from opgauge.ops.deformable_conv.sampling import Pair, Piece, Samples, SamplingGeometry, pieces


def _by_tap(found: SamplingGeometry, weight: Array) -> Array:
    """The filter as (groups, Co / groups, taps C / groups)."""
    by_group = weight.reshape(found.groups, -1, weight.shape[1], found.taps)
    return by_group.transpose(0, 1, 3, 2).reshape(found.groups, by_group.shape[1], -1)


def output(arrays: Mapping[str, Array], found: SamplingGeometry) -> Array:
    """Output of the convolution, (N, Co, Ho, Wo)."""
    weight = _by_tap(found, arrays["filter"])
    out = np.zeros((found.batch, found.out_channels, found.pixels), weight.dtype)
    for piece in pieces(found):
        at = piece.samples(arrays)
        (sampled,), _ = blend(piece.rows(arrays["x"]), at.places, [(at.weights, at.mask)])
        piece.of_output(out)[...] = _product(weight, piece.columns(sampled))
    return out.reshape(found.out_shape)


def output_bounds(arrays: Mapping[str, Array], found: SamplingGeometry) -> tuple[Array, Array]:
    """Sum |filter column|, and the root of the summed squares of the change per epsilon of the coordinates.

    Both are (N, Co, Ho, Wo).
    """
    weight = np.abs(_by_tap(found, arrays["filter"]))
    magnitude, squares = np.zeros((2, found.batch, found.out_channels, found.pixels), weight.dtype)
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
    """Weights for magnitudes: those of samples, and those of changes per epsilon of the coordinates."""
    mask = np.abs(at.mask)
    return [(at.weights, mask), (np.ones_like(at.weights), mask * at.reach)]


class Gradients:
    """Sums of gradients, in the shapes in which pieces are added."""

    def __init__(self, found: SamplingGeometry, dtype: np.dtype) -> None:
        groups, pixels = found.deformable_groups, found.pixels
        self.found = found
        self.x = np.zeros((found.batch, groups, found.size[0] * found.size[1], found.channels // groups), dtype)
        self.offset = np.zeros((found.batch, groups, found.taps, 2, pixels), dtype)
        self.mask = np.zeros((found.batch, groups, found.taps, pixels), dtype)
        self.filter = np.zeros(
            (found.groups, found.out_channels // found.groups, found.taps, found.channels // found.groups), dtype
        )

    def add_to_samples(self, piece: Piece, mask: Array, slopes: Sequence[Array]) -> None:
        """Add the gradients of mask and offset, (dg, S)."""
        self.mask[piece.image][..., piece.pixels] = piece.by_tap(mask)
        for axis, slope in enumerate(slopes):
            self.offset[piece.image][:, :, axis, piece.pixels] = piece.by_tap(slope)

    def add_to_filter(self, out_grad: Array, columns: Array) -> None:
        """Add the product of (groups, Co / groups, P) and (groups, P, taps C / groups)."""
        self.filter += np.matmul(out_grad, columns).reshape(self.filter.shape)

    def by_name(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Gradients in the shapes of the inputs."""
        weight = self.filter.transpose(0, 1, 3, 2)
        made = {"x": self.x.transpose(0, 1, 3, 2), "offset": self.offset, "filter": weight, "mask": self.mask}
        return {f"{name}_grad": grad.reshape(arrays[name].shape) for name, grad in made.items() if name in arrays}


def gradients(arrays: Mapping[str, Array], found: SamplingGeometry) -> dict[str, Array]:
    """Gradients by name."""
    weight = _by_tap(found, arrays["filter"])
    grads = Gradients(found, weight.dtype)
    for piece in pieces(found):
        at, out_grad = piece.samples(arrays), piece.of_output(arrays["out_grad"])
        column_grad = piece.parts(np.matmul(out_grad.transpose(0, 2, 1), weight))
        (sampled,), products = blend(piece.rows(arrays["x"]), at.places, [(at.weights, at.mask)], column_grad)
        grads.add_to_filter(out_grad, piece.columns(sampled))
        slopes = [at.mask * _sum(slope * products) for slope in at.slopes]
        grads.add_to_samples(piece, _sum(at.weights * products), slopes)
        for part, places in enumerate(at.places):
            spread, weights = RowScatter(places, grads.x.shape[2]), at.weights[part] * at.mask[part, :, None]
            grads.x[piece.image, part] += spread(column_grad[part], weights)
    return grads.by_name(arrays)


def _sum(by_corner: Array) -> Array:
    total: Array = np.sum(by_corner, axis=-1)
    return total


def gradient_bounds(
    arrays: Mapping[str, Array], found: SamplingGeometry, epsilon: float
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Gradients' sums over absolute values, and the change of each per epsilon of every coordinate, by name.

    A coordinate's rounding changes a weight or a derivative by up to half an epsilon of the coordinate, however
    small that is. Rounding is independent between samples, so that x and filter accumulate the root of the
    summed squares; the channels of a sample share it, so that offset and mask accumulate a plain sum. A coordinate
    that rounding may move to a whole number has the derivative of either side, and so has one at the edge of what is
    interpolated, -1 and H, of which implementations take either.
    """
    weight = np.abs(_by_tap(found, arrays["filter"]))
    sizes, wobbles = Gradients(found, weight.dtype), Gradients(found, weight.dtype)
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
        near = [
            _is_near_whole(fraction, epsilon * at.reach) | at_edge
            for fraction, at_edge in zip(at.fractions, _are_at_edges(at, found.size, epsilon), strict=True)
        ]
        wobbles.add_to_samples(piece, shaken, [shaken * mask + np.where(one, jump, 0.0) for one in near])
        for part, places in enumerate(at.places):
            spread = RowScatter(places, sizes.x.shape[2])
            sizes.x[piece.image, part] += spread(column_grad[part], at.weights[part] * mask[part, :, None])
            squares = np.repeat(np.square((mask * at.reach)[part, :, None]), CORNERS, axis=1)
            wobbles.x[piece.image, part] += spread(np.square(column_grad[part]), squares)
    wobbles.x, wobbles.filter = np.sqrt(wobbles.x), np.sqrt(wobbles.filter)
    return sizes.by_name(arrays), wobbles.by_name(arrays)


def overflowing_outputs(arrays: Mapping[str, Array], found: SamplingGeometry, largest: float) -> dict[str, Array]:
    """By name, where the output has a column entry that may exceed `largest`; 0 times such an entry is NaN."""
    where = np.zeros((found.batch, found.out_channels, found.pixels), np.bool_)
    for piece in pieces(found):
        at = piece.samples(arrays)
        beyond = piece.columns(_sampled(piece, at, arrays)[0] > largest)
        piece.of_output(where)[...] = np.any(beyond, axis=2, keepdims=True).transpose(0, 2, 1)
    return {"out": where.reshape(found.out_shape)}


def overflowing_gradients(
    arrays: Mapping[str, Array], found: SamplingGeometry, largest: float, largest_sum: float
) -> dict[str, Array]:
    """By name, where a gradient has a column entry beyond `largest`, or a column gradient beyond `largest_sum`."""
    weight = np.abs(_by_tap(found, arrays["filter"]))
    counts = Gradients(found, weight.dtype)
    for piece in pieces(found):
        at, out_grad = piece.samples(arrays), np.abs(piece.of_output(arrays["out_grad"]))
        column_grad = piece.parts(np.matmul(out_grad.transpose(0, 2, 1), weight))
        sampled, products = _sampled(piece, at, arrays, column_grad)
        columns, grads = sampled > largest, column_grad > largest_sum
        touched = np.logical_or(np.max(columns | grads, axis=-1), np.max(products, axis=-1) > largest_sum)
        counts.add_to_samples(piece, touched, [touched, touched])
        counts.filter += np.max(piece.columns(columns), axis=1).reshape(found.groups, 1, found.taps, -1)
        for part, places in enumerate(at.places):
            spread = RowScatter(places, counts.x.shape[2])
            counts.x[piece.image, part] += spread(grads[part].astype(weight.dtype), np.ones_like(at.weights[part]))
    return {name: array > 0 for name, array in counts.by_name(arrays).items()}


def _sampled(
    piece: Piece, at: Samples, arrays: Mapping[str, Array], against: Array | None = None
) -> tuple[Array, Array]:
    """Magnitudes of samples before and after the mask, whichever is larger, and products as `blend` returns them."""
    factors = (at.weights, np.maximum(np.abs(at.mask), 1))
    (sampled,), products = blend(np.abs(piece.rows(arrays["x"])), at.places, [factors], against)
    return sampled, products


def _is_near_whole(fraction: Array, distance: Array) -> Array:
    """Whether a fraction is close to a whole number, but not equal to it."""
    from_whole = np.minimum(fraction, 1 - fraction)
    near: Array = (from_whole > 0) & (from_whole <= distance)
    return near


def _are_at_edges(at: Samples, size: Pair, epsilon: float) -> list[Array]:
    """By axis, whether rounding may move a sample from or to -1 or the size, if it is not beyond along the other."""
    reach = np.abs(at.position[0]) + np.abs(at.position[1]) + 2
    found = []
    for place, length, beside, width in zip(at.position, size, at.position[::-1], size[::-1], strict=True):
        with np.errstate(invalid="ignore"):  # an infinite position is at no edge
            is_near = np.minimum(np.abs(place + 1), np.abs(place - length)) / reach <= epsilon
        found.append(is_near & (beside >= -1) & (beside <= width))
    return found
