"""Definition of normalization: batch normalization, forward, with an optional tensor added to its output.

Over the n values of each channel (every axis but `axis`), in training:

    mean = sum x / n                 inv_variance = 1 / sqrt(sum (x - mean)^2 / n + epsilon)
    y = (x - mean) inv_variance gamma + beta + add_to_output
    new_moving_mean     = momentum moving_mean     + (1 - momentum) mean
    new_moving_variance = momentum moving_variance + (1 - momentum) (unbiased variance)

In inference the moving statistics replace the batch's. `inv_variance` is the reciprocal of
the standard deviation, epsilon included: the name is OneFlow's. `momentum` is the retained share
(0.9 retains 90 %), as in OneFlow and TensorFlow; torch's 0.1 means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, log2, sqrt
from operator import index
from typing import NamedTuple

import numpy as np

from opgauge.ops._core.axes import normalize_axes, sum_pairwise
from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import (
    MARGIN,
    SIGNED,
    SIGNED_NUMBER,
    accumulated_limits,
    overflowing,
    sign_of,
    sum_bounds,
)
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register

MINIMUM_RANK = 2
"""Minimum rank of x."""


@dataclass(frozen=True, slots=True)
class NormalizationParams:
    """Parameters of normalization.

    axis: the channel axis; negative ones count from the end. epsilon: added to the variance, finite and not negative.
    training: use and return the batch's statistics. momentum: retained share of the moving statistics.
    """

    axis: int = 1
    epsilon: float = 1e-5
    training: bool = True
    momentum: float = 0.9

    def __post_init__(self) -> None:
        make_plain(self)
        object.__setattr__(self, "axis", index(self.axis))
        if not 0 <= self.epsilon < inf:
            msg = f"epsilon {self.epsilon} is not a number from 0 on"
            raise ParameterError(msg)
        if not 0 <= self.momentum <= 1:
            msg = f"momentum {self.momentum} is not in [0, 1]"
            raise ParameterError(msg)


def infer(shapes: Mapping[str, Shape], dtype: str, params: NormalizationParams) -> Shapes:
    """Shape rule: x with C channels; gamma, beta and statistics are (C,), in the accumulating dtype.

    Raises AxisError, and ShapeError for: rank below 2; one moving statistic without the other;
    inference without them; an addend of another shape; fewer than two values per channel in training.
    """
    x = shapes["x"]
    if len(x) < MINIMUM_RANK:
        msg = f"x has rank {len(x)}; normalization needs at least {MINIMUM_RANK}"
        raise ShapeError(msg)
    (axis,) = normalize_axes(params.axis, len(x))
    channels: Shape = (x[axis],)
    statistic = TensorSpec(channels, dtype_info(dtype).accumulate)
    moving = {name for name in ("moving_mean", "moving_variance") if name in shapes}
    _check(shapes, x, channels, params, moving)
    inputs = {"x": TensorSpec(x, dtype), "gamma": statistic, "beta": statistic}
    if moving:
        inputs |= {"moving_mean": statistic, "moving_variance": statistic}
    if "add_to_output" in shapes:
        inputs["add_to_output"] = TensorSpec(x, dtype)
    outputs = {"y": TensorSpec(x, dtype)}
    if params.training:
        outputs |= {"mean": statistic, "inv_variance": statistic}
        if moving:
            outputs |= {"new_moving_mean": statistic, "new_moving_variance": statistic}
    return Shapes(inputs, outputs)


def _check(
    shapes: Mapping[str, Shape], x: Shape, channels: Shape, params: NormalizationParams, moving: set[str]
) -> None:
    if len(moving) == 1:
        msg = f"only {next(iter(moving))} is given: moving mean and moving variance come together"
        raise ShapeError(msg)
    if not params.training and not moving:
        msg = "Must have moving mean and moving variance in inference"
        raise ShapeError(msg)
    for name in ("gamma", "beta", *sorted(moving)):
        if shapes.get(name, channels) != channels:
            msg = f"{name} is {list(shapes[name])}, not one value for each of {channels[0]} channels"
            raise ShapeError(msg)
    if shapes.get("add_to_output", x) != x:
        msg = f"add_to_output is {list(shapes['add_to_output'])}, x is {list(x)}: they must agree"
        raise ShapeError(msg)
    values = np.prod(x) // max(channels[0], 1)
    if params.training and channels[0] and values <= 1:
        count = "one value" if values else "no value"
        msg = f"x {list(x)} has {count} per channel: its variance is not defined in training"
        raise ShapeError(msg)


def _spread(statistic: Array, x: Array, axis: int) -> Array:
    shape = [1] * x.ndim
    shape[axis] = -1
    return statistic.reshape(shape)


def reference(arrays: Mapping[str, Array], params: NormalizationParams) -> dict[str, Array]:
    """Float64 by the formulas of this module, two passes."""
    x = arrays["x"]
    axis = params.axis % x.ndim
    others = tuple(other for other in range(x.ndim) if other != axis)
    outputs: dict[str, Array] = {}
    if params.training:
        n = x.size // max(x.shape[axis], 1)
        mean = sum_pairwise(x, others) / n if n else np.zeros(x.shape[axis])
        centred = x - _spread(mean, x, axis)
        variance = sum_pairwise(np.square(centred), others) / n if n else np.zeros(x.shape[axis])
        inverse = 1 / np.sqrt(variance + params.epsilon)
        outputs |= {"mean": mean, "inv_variance": inverse}
        if "moving_mean" in arrays:
            kept, new = params.momentum, 1 - params.momentum
            unbiased = variance * n / max(n - 1, 1)
            outputs["new_moving_mean"] = kept * arrays["moving_mean"] + new * mean
            outputs["new_moving_variance"] = kept * arrays["moving_variance"] + new * unbiased
    else:
        centred = x - _spread(arrays["moving_mean"], x, axis)
        inverse = 1 / np.sqrt(arrays["moving_variance"] + params.epsilon)
    y = centred  # in place: allocating further arrays takes longer than the computation
    y *= _spread(inverse * arrays["gamma"], x, axis)
    y += _spread(arrays["beta"], x, axis)
    if "add_to_output" in arrays:
        y += arrays["add_to_output"]
    return {"y": y, **outputs}


def work(shapes: Shapes, params: NormalizationParams) -> Work:
    """Each tensor once; eight operations per element in training, three in inference, one for the addend."""
    flops = (8 if params.training else 3) + ("add_to_output" in shapes.inputs)
    size = shapes.inputs["x"].size
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), flops * size)


def _add_size(error: Array, part: Array, factor: Array | float) -> None:
    """Add factor |part| to `error`; `part` is overwritten."""
    np.abs(part, out=part)
    part *= factor
    error += part


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: NormalizationParams, dtype: str
) -> dict[str, Array | float]:
    """Rounding of a stable algorithm in the accumulating dtype.

    The sums may run in sequence down the rows of channels-last x, which takes sqrt(n) roundings at random.
    Without variance nor epsilon, y is a quotient of roundings, and its bound infinite.
    The mean's error changes y by (mean's error) inv_variance gamma, and the variance by its square, which
    E[x^2] - E[x]^2 does not achieve. With an addend, y may be rounded to the dtype before the addition,
    as in an unfused pair of ops.
    """
    epsilon = accumulator_info(dtype).epsilon
    x, largest = arrays["x"], accumulated_limits(dtype)[1]
    axis = params.axis % x.ndim
    others = tuple(other for other in range(x.ndim) if other != axis)
    n = max(x.size // max(x.shape[axis], 1), 1)
    units = 4 + log2(n) + sqrt(n) / 2
    allowed: dict[str, Array | float] = {}
    error = np.abs(x)
    if params.training:
        size = np.mean(error, axis=others) if x.size else np.zeros(x.shape[axis])
        mean_error = units * epsilon * size
        inverse, mean = outputs["inv_variance"], outputs["mean"]
        inverse_units = (8 + units) * epsilon + np.square(mean_error * inverse)
        lost = _Lost(size > largest / n * (1 - MARGIN), n / np.square(inverse) > largest * (1 - MARGIN))
        allowed |= sum_bounds("mean", mean_error, size, largest / n, partial(_signs, x, others))
        allowed |= lost.statistic("inv_variance", inverse_units * inverse, inverse)
        if "moving_mean" in arrays:
            moved = np.abs(arrays["moving_mean"]) + np.abs(mean)
            allowed["new_moving_mean"] = overflowing(4 * epsilon * moved + mean_error, lost.mean)
            variance = np.abs(outputs["new_moving_variance"])
            exact = np.isinf(inverse)  # the variance of equal numbers, which is that of the mean's rounding
            units_of_variance = variance * (8 * epsilon + 2 * np.where(exact, 0.0, inverse_units))
            units_of_variance += np.where(exact, 2 * np.square(mean_error), 0.0)
            least = np.zeros(variance.shape)
            allowed |= lost.statistic("new_moving_variance", units_of_variance, least)
    else:
        mean, mean_error = arrays["moving_mean"], np.zeros(x.shape[axis])
        inverse = 1 / np.sqrt(arrays["moving_variance"] + params.epsilon)
        inverse_units = np.full(x.shape[axis], 8 * epsilon)
        lost = _Lost(np.zeros(x.shape[axis], np.bool_), np.zeros(x.shape[axis], np.bool_))
    scale = np.abs(inverse * arrays["gamma"])
    error *= 2 * epsilon
    error += _spread(mean_error + 2 * epsilon * np.abs(mean), x, axis)
    error *= _spread(scale, x, axis)
    # kernels may multiply x and the mean by the scale before they subtract
    highest = np.max(np.abs(x), axis=others, initial=0.0) + np.abs(mean)
    is_far = lost.mean | (highest * np.maximum(scale, 1.0) + np.abs(arrays["beta"]) > largest * (1 - MARGIN))
    is_far = _spread(is_far & np.isfinite(highest * scale), x, axis)
    part = x - _spread(mean, x, axis)
    _add_size(error, part, _spread(np.where(lost.variance, 1.0, inverse_units + 4 * epsilon) * scale, x, axis))
    error += 2 * epsilon * _spread(np.abs(arrays["beta"]), x, axis)
    np.copyto(error, np.inf, where=_spread(np.isinf(inverse), x, axis))
    if "add_to_output" in arrays:
        np.subtract(outputs["y"], arrays["add_to_output"], out=part)
        is_far = is_far | (np.abs(part) > dtype_info(dtype).largest * (1 - MARGIN))
        _add_size(error, part, dtype_info(dtype).epsilon)
        np.copyto(part, arrays["add_to_output"])
        _add_size(error, part, 2 * epsilon)
    return {**allowed, "y": overflowing(error, is_far) if np.any(is_far) else error}


def _signs(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Sum of the signs of x over axes, and number of elements that are not 0."""
    return np.sum(np.sign(x), axis=axes), np.sum(x != 0, axis=axes)


class _Lost(NamedTuple):
    """Channels whose sum, or sum of squares, overflows in the accumulating dtype."""

    mean: Array
    variance: Array

    def statistic(self, name: str, error: Array, least: Array) -> dict[str, Array | float]:
        """Bounds of a statistic of the variance, which is not negative: infinite or zero where the variance is lost."""
        beyond = self.mean | self.variance
        found = overflowing(np.where(beyond, np.maximum(error, least), error), beyond)
        return {name: found, sign_of(name): np.where(self.mean, SIGNED, SIGNED_NUMBER)}


NORMALIZATION = register(
    Op(
        name="normalization",
        params=NormalizationParams,
        dtypes=FLOATS,
        inputs=(
            Input("x", doc="(N, C, ...) or (N, ..., C), by axis"),
            Input("gamma", required=False, mean=1.0, std=0.25, doc="(C,)"),
            Input("beta", required=False, doc="(C,)"),
            Input("moving_mean", required=False, doc="(C,), optional in training"),
            Input("moving_variance", required=False, kind="uniform", low=0.5, high=2.0, doc="(C,)"),
            Input("add_to_output", required=False, doc="the shape of x, optional"),
        ),
        outputs=("y", "mean", "inv_variance", "new_moving_mean", "new_moving_variance"),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="batch normalization, forward, with an optional addend",
        source="OneFlow normalization; FuseAddToOutput, OneFlow #3524",
        errata=(
            "E[x^2] - E[x]^2 in the working dtype, as OneFlow's CPU kernel has it, loses the variance at mean >> std",
            "a separate addend costs one read at every site, in place or not",
        ),
    )
)
"""The registered op."""
