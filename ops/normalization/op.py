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
from math import log2, sqrt
from operator import index

import numpy as np

from opgauge.ops._core.axes import normalize_axes, sum_pairwise
from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.registry import register

MINIMUM_RANK = 2
"""Minimum rank of x."""


@dataclass(frozen=True, slots=True)
class NormalizationParams:
    """Parameters of normalization.

    axis: the channel axis; negative ones count from the end. epsilon: added to the variance, not negative.
    training: use and return the batch's statistics. momentum: retained share of the moving statistics.
    """

    axis: int = 1
    epsilon: float = 1e-5
    training: bool = True
    momentum: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "axis", index(self.axis))
        if not self.epsilon >= 0:
            msg = f"epsilon {self.epsilon} is negative"
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
    The mean's error changes y by (mean's error) inv_variance gamma, and the variance by its square, which
    E[x^2] - E[x]^2 does not achieve. With an addend, y may be rounded to the dtype before the addition,
    as in an unfused pair of ops.
    """
    epsilon = dtype_info(dtype_info(dtype).accumulate).epsilon
    x = arrays["x"]
    axis = params.axis % x.ndim
    others = tuple(other for other in range(x.ndim) if other != axis)
    n = max(x.size // max(x.shape[axis], 1), 1)
    units = 4 + log2(n) + sqrt(n) / 2
    allowed: dict[str, Array | float] = {}
    error = np.abs(x)
    if params.training:
        mean_error = units * epsilon * np.mean(error, axis=others) if x.size else np.zeros(x.shape[axis])
        inverse, mean = outputs["inv_variance"], outputs["mean"]
        far = n / np.square(inverse) > dtype_info(dtype_info(dtype).accumulate).largest
        inverse_units = (8 + units) * epsilon + np.square(mean_error * inverse)
        allowed |= {"mean": mean_error, "inv_variance": inverse_units * inverse}
        if "moving_mean" in arrays:
            moved = np.abs(arrays["moving_mean"]) + np.abs(mean)
            allowed["new_moving_mean"] = 4 * epsilon * moved + mean_error
            variance = np.abs(outputs["new_moving_variance"])
            allowed["new_moving_variance"] = variance * (8 * epsilon + 2 * inverse_units)
    else:
        mean, mean_error = arrays["moving_mean"], np.zeros(x.shape[axis])
        inverse = 1 / np.sqrt(arrays["moving_variance"] + params.epsilon)
        inverse_units = np.full(x.shape[axis], 8 * epsilon)
    scale = np.abs(inverse * arrays["gamma"])
    error *= 2 * epsilon
    error += _spread(mean_error + 2 * epsilon * np.abs(mean), x, axis)
    error *= _spread(scale, x, axis)
    part = x - _spread(mean, x, axis)
    _add_size(error, part, _spread((inverse_units + 4 * epsilon) * scale, x, axis))
    error += 2 * epsilon * _spread(np.abs(arrays["beta"]), x, axis)
    if "add_to_output" in arrays:
        np.subtract(outputs["y"], arrays["add_to_output"], out=part)
        _add_size(error, part, dtype_info(dtype).epsilon)
        np.copyto(part, arrays["add_to_output"])
        _add_size(error, part, 2 * epsilon)
    if params.training:
        _lift(allowed, error, far, axis)
    return {**allowed, "y": error}


def _lift(allowed: dict[str, Array | float], error: Array, far: Array, axis: int) -> None:
    """No bound on results of the variances of `far` channels, whose sums of squares overflow."""
    for name in ("inv_variance", "new_moving_variance"):
        if name in allowed:
            allowed[name] = np.where(far, np.inf, allowed[name])
    error[(slice(None),) * axis + (far,)] = np.inf


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
