"""Definition of p_norm and p_norm_grad.

For one slice v along the reduced axes, with p = porder and q = p - 1:

    p = 0     y = number of elements that are not zero      dx = 0
    p = inf   y = max |v|                                   dx = sign(x) dy [|x| = y] / ties
    p = -inf  y = min |v|                                   the same
    else      y = (sum |v|^p)^(1/p)                         dx = sign(x) |x|^q dy / y^q

`fro` is p = 2. If the quotient is not defined the gradient is 0: at x = 0 for p < 1,
at y = 0 for p > 1. Elements that tie for the maximum or minimum share dy evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Literal

import numpy as np

from opgauge.ops._core.axes import Axis, normalize_axes, plain_axis, reduced_shape, sum_pairwise, sum_units
from opgauge.ops._core.dtype import FLOATS, accumulator_info
from opgauge.ops._core.errors import ParameterError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import MARGIN, SIGNED, SIGNED_NUMBER, overflowing, sign_of
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register

HALF = 0.5
"""Relative error of a sum of powers from which all of them may be lost."""
FEW, MANY = 2.0**-900, 2.0**1000
"""Sums of powers within which float64 neither loses terms that matter nor overflows."""


@dataclass(frozen=True, slots=True)
class PNormParams:
    """Parameters of p_norm and p_norm_grad.

    porder: the order of the norm: any number, an infinity, or "fro".
    axis: one axis, several, or None for the whole tensor as one vector. porder 0 is not defined over two axes or more.
    keepdim: retain the reduced axes with length 1.
    """

    porder: float | Literal["fro"] = 2.0
    axis: Axis = -1
    keepdim: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        if isinstance(self.porder, str):
            if self.porder != "fro":
                msg = f"porder {self.porder!r}: the only word it takes is 'fro'"
                raise ParameterError(msg)
        elif isnan(self.porder):
            msg = "porder is not a number (NaN)"
            raise ParameterError(msg)
        object.__setattr__(self, "axis", plain_axis(self.axis))
        if isinstance(self.axis, tuple):
            if not self.axis:
                msg = "axis []: a norm needs an axis"
                raise ParameterError(msg)
            if len(self.axis) > 1 and self.porder == 0:
                msg = "porder 0 is not defined over two axes"
                raise ParameterError(msg)


def order(params: PNormParams) -> float:
    """Numeric porder: 2 for "fro"."""
    return 2.0 if params.porder == "fro" else float(params.porder)


def _outputs(shapes: Mapping[str, Shape], params: PNormParams) -> tuple[Shape, Shape]:
    x = shapes["x"]
    return x, reduced_shape(x, normalize_axes(params.axis, len(x)), keepdim=params.keepdim)


def infer(shapes: Mapping[str, Shape], dtype: str, params: PNormParams) -> Shapes:
    """Shape rule: x to y. Raises AxisError."""
    x, y = _outputs(shapes, params)
    return Shapes({"x": TensorSpec(x, dtype)}, {"y": TensorSpec(y, dtype)})


def infer_grad(shapes: Mapping[str, Shape], dtype: str, params: PNormParams) -> Shapes:
    """Shape rule: x, with y and dy of the reduced shape, to dx. Raises AxisError."""
    x, y = _outputs(shapes, params)
    inputs = {"x": TensorSpec(x, dtype), "y": TensorSpec(y, dtype), "dy": TensorSpec(y, dtype)}
    return Shapes(inputs, {"dx": TensorSpec(x, dtype)})


def reference(arrays: Mapping[str, Array], params: PNormParams) -> dict[str, Array]:
    """Float64 p-norm by its definition."""
    x = arrays["x"]
    axes = normalize_axes(params.axis, x.ndim)
    return {"y": _norm(x, order(params), axes, keepdim=params.keepdim)}


def _norm(x: Array, p: float, axes: tuple[int, ...], *, keepdim: bool) -> Array:
    if x.size == 0:
        return np.zeros(reduced_shape(x.shape, axes, keepdim=keepdim))
    magnitude = np.abs(x)
    if p == 0:
        return np.asarray(np.sum(x != 0, axis=axes, keepdims=keepdim), np.float64)
    if p == inf:
        return np.asarray(np.max(magnitude, axis=axes, keepdims=keepdim))
    if p == -inf:
        return np.asarray(np.min(magnitude, axis=axes, keepdims=keepdim))
    with np.errstate(all="ignore"):
        total = np.asarray(sum_pairwise(magnitude**p, axes, keepdim=keepdim))
        found = np.asarray(total ** (1 / p))
        if np.all((total > FEW) & (total < MANY)):
            return found
        # powers exceed float64: those of the ratios to the element that decides do not
        unit = _deciding(magnitude, p, axes)
        shares = sum_pairwise((magnitude / unit) ** p, axes, keepdim=keepdim)
        scaled = unit.reshape(found.shape) * shares ** (1 / p)
        return np.where((total > FEW) & (total < MANY) | ~np.isfinite(scaled), found, scaled)


def _deciding(magnitude: Array, p: float, axes: tuple[int, ...]) -> Array:
    """Largest magnitude of each slice, or the smallest for p < 0; the reduced axes have length 1."""
    found: Array = (np.max if p > 0 else np.min)(magnitude, axis=axes, keepdims=True)
    return found


def reference_grad(arrays: Mapping[str, Array], params: PNormParams) -> dict[str, Array]:
    """Float64 gradient by the table of this module; y is taken as given."""
    x = arrays["x"]
    axes = normalize_axes(params.axis, x.ndim)
    kept = reduced_shape(x.shape, axes, keepdim=True)
    y, dy = arrays["y"].reshape(kept), arrays["dy"].reshape(kept)
    p = order(params)
    magnitude, sign = np.abs(x), np.sign(x)
    if p == 0:
        return {"dx": np.zeros_like(x)}
    if abs(p) == inf:
        tied = (magnitude == y) | np.isnan(x)
        count = np.maximum(np.sum(tied, axis=axes, keepdims=True), 1)
        return {"dx": sign * tied * dy / count}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        gradient = sign * dy * (magnitude / y) ** (p - 1)
    if p < 1:
        return {"dx": np.where(x == 0, 0.0, gradient)}
    if p == 1:
        return {"dx": sign * dy}
    return {"dx": np.where(np.broadcast_to(y == 0, x.shape), 0.0, gradient)}


def derive_grad(arrays: Mapping[str, Array], params: PNormParams) -> dict[str, Array]:
    """Derived input: y of the gradient is the norm of its x."""
    return {"y": reference({"x": arrays["x"]}, params)["y"].reshape(arrays["y"].shape)}


def work(shapes: Shapes, params: PNormParams) -> Work:
    """Reads of x, writes of y; two operations per element."""
    del params
    flops = 2 * shapes.inputs["x"].size
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), flops)


def work_grad(shapes: Shapes, params: PNormParams) -> Work:
    """Reads of x, y and dy, writes of dx; four operations per element."""
    del params
    flops = 4 * shapes.inputs["x"].size
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), flops)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: PNormParams, dtype: str
) -> dict[str, Array | float]:
    """Rounding of powers, their sum and its root in the accumulating dtype; powers below its normal range may be lost.

    A power costs |p| (|log2 |x|| + 1) epsilons; the root divides the relative error of the sum by p.
    If the sum exceeds the accumulating dtype, as for |x| ~ 1e13 with p = 4 in float32, it may overflow.
    """
    p, y = order(params), np.abs(outputs["y"])
    if p == 0 or abs(p) == inf or arrays["x"].size == 0:
        return {"y": 0.0}
    wide = accumulator_info(dtype)
    axes = normalize_axes(params.axis, arrays["x"].ndim)
    magnitude, costs = np.abs(arrays["x"]), p not in {1.0, 2.0}
    unit = _deciding(magnitude, p, axes)
    with np.errstate(all="ignore"):
        powers = (magnitude / unit) ** p  # of ratios, which do not overflow
        total = _sum(powers, axes, y)
        edge = float(np.finfo(wide.numpy).tiny) ** (1 / p)
        small = magnitude < 2 * edge if p > 0 else magnitude > edge / 2
        lost = _sum(np.where(small, powers, 0.0), axes, y) if np.any(small) else 0.0
        bits = np.where(powers > 0, np.abs(np.log2(magnitude)) + 1, 0.0) if costs else 0.0
        cost = abs(p) * _sum(powers * bits, axes, y) / total if costs else 0.0
        error = wide.epsilon * (8 + sum_units(arrays["x"].size // y.size) / 2 + cost) + lost / total
        roots = (1 + error) ** (1 / p), np.maximum(1 - error, 0.0) ** (1 / p)
        root = 4 + (np.abs(np.log2(y)) if costs else 0.0)
        allowed = y * (np.maximum(np.abs(roots[0] - 1), np.abs(roots[1] - 1)) + wide.epsilon * root)
        reach = np.log2(total * (1 + error)) + p * np.log2(unit).reshape(y.shape)
        fits = reach < np.log2(wide.largest) - MARGIN
        beyond = ~fits & np.isfinite(y) & (y > 0)
        allowed = np.where(np.isfinite(y) & (y > 0), np.where(fits | (p > 0), allowed, y), 0.0)
    # for p < 0 a sum that is lost has an infinite root
    return {"y": overflowing(allowed, beyond if p > 0 else error > HALF), sign_of("y"): SIGNED_NUMBER}


def _sum(x: Array, axes: tuple[int, ...], like: Array) -> Array:
    return np.asarray(np.sum(x, axis=axes)).reshape(like.shape)


def bound_grad(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: PNormParams, dtype: str
) -> dict[str, Array | float]:
    """Rounding of a few products in the accumulating dtype; values below its normal range may be flushed.

    (|x| / y)^q costs q (|log2(|x| / y)| + 1) more epsilons if it needs a power. y is an input, rounded to
    the dtype.
    """
    p = order(params)
    if p in {0.0, 1.0}:
        return {"dx": 0.0}
    wide = accumulator_info(dtype)
    dx = np.abs(outputs["dx"])
    if abs(p) == inf:
        return {"dx": 4 * wide.epsilon * np.where(np.isfinite(dx), dx, 0.0)}
    q, tiny = p - 1, float(np.finfo(wide.numpy).tiny)
    kept = reduced_shape(dx.shape, normalize_axes(params.axis, dx.ndim), keepdim=True)
    dy = np.abs(arrays["dy"].reshape(kept))
    with np.errstate(all="ignore"):
        ratio = np.abs(arrays["x"]) / arrays["y"].reshape(kept)
        ratio = np.where((ratio > 0) & (ratio < inf), ratio, 1.0)
        units: Array | float = 8.0
        if q not in {1.0, 2.0}:
            units = 8 + 2 * abs(q) * (np.abs(np.log2(ratio)) + 1)
        allowed = units * wide.epsilon * dx + tiny * (1 + dy)
        vanishing = ratio < tiny
        if np.any(vanishing):
            allowed = np.where(vanishing, dx + dy * tiny**q if q > 0 else inf, allowed)
        if q < 0 or np.max(ratio, initial=1.0) > 2:
            allowed = np.where(ratio**q < wide.largest / 2, allowed, inf)
        allowed = np.where(np.isfinite(dx) & np.isfinite(dy), allowed, 0.0)
        if _is_moderate(arrays, q, wide.largest):
            return {"dx": allowed}
        parts = [np.log2(np.abs(one)) for one in (arrays["x"], arrays["y"].reshape(kept), dy)]
        return _extreme_bounds(allowed, dx, q, parts, (np.log2(tiny), np.log2(wide.largest)))


def _is_moderate(arrays: Mapping[str, Array], q: float, largest: float) -> bool:
    """Whether no power, quotient or product of the formula can leave the normal range, by the extreme inputs."""
    exponents = [1.0]
    for name, factor in (("x", abs(q)), ("y", abs(q)), ("dy", 1.0)):
        size = np.abs(arrays[name])
        low, high = np.min(size, where=size > 0, initial=1.0), np.max(size, initial=1.0)
        exponents.append(factor * max(-np.log2(low), np.log2(high)))
    return bool(sum(exponents) < np.log2(largest) - 4)


def _extreme_bounds(
    allowed: Array, dx: Array, q: float, logarithms: Sequence[Array], limits: tuple[float, float]
) -> dict[str, Array | float]:
    """Bounds where |x|^q, y^q, or a product or quotient of one of them with dy leaves the normal range.

    A power or product that overflows, and a divisor that is lost, make the result infinite or NaN; a factor that is
    lost makes it 0. logarithms: of |x|, y and |dy|. limits: logarithms of the smallest and largest normal numbers.
    """
    x, y, dy = logarithms
    power, divisor = q * x, q * y
    lowest, highest = limits[0] + 1, limits[1] - 1
    with np.errstate(invalid="ignore"):
        factors = (power, power + dy, dy - divisor, power - divisor)
        is_infinite = (np.abs(divisor) > min(highest, -lowest)) | np.logical_or.reduce(
            [np.broadcast_to(one > highest, dx.shape) for one in factors]
        )
        is_lost = np.logical_or.reduce([np.broadcast_to(one < lowest, dx.shape) for one in factors])
    usable = np.isfinite(dx) & (dx > 0)
    allowed = np.where(usable & (is_lost | is_infinite), np.maximum(allowed, dx), allowed)
    return {"dx": overflowing(allowed, is_infinite & np.isfinite(dx)), sign_of("dx"): SIGNED}


P_NORM = register(
    Op(
        name="p_norm",
        params=PNormParams,
        dtypes=FLOATS,
        inputs=(Input("x", doc="any shape"),),
        outputs=("y",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="(sum |x|^p)^(1/p) over one axis, several axes or all",
        source="Paddle p_norm; p_norm_grad design document of 2023-03-31",
        errata=("the document's claim that torch.norm and pdist share their kernels is wrong",),
    )
)
"""The registered op."""

P_NORM_GRAD = register(
    Op(
        name="p_norm_grad",
        params=PNormParams,
        dtypes=FLOATS,
        inputs=(
            Input("x", doc="any shape"),
            Input("y", required=False, doc="p_norm of x, reduced shape"),
            Input("dy", required=False, doc="gradient of y, reduced shape"),
        ),
        outputs=("dx",),
        infer=infer_grad,
        reference=reference_grad,
        derive=derive_grad,
        work=work_grad,
        bound=bound_grad,
        summary="gradient of p_norm with respect to x",
        source="Paddle p_norm_grad; p_norm_grad design document of 2023-03-31",
        errata=(
            "the document's formula is off by one power: the exponent is p - 1",
            "epsilon does not prevent 0/0 in float16; masks do",
            "three kernels are not the least: one suffices, broadcasting is an index computation",
        ),
    )
)
"""The registered op."""
