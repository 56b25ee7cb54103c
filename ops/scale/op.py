"""Definition of scale: scale x + bias, or scale (x + bias) if `bias_after_scale` is false.

16-bit floats compute in float32. For integers scale and bias are truncated to the dtype first
(2.7 becomes 2), and results wrap around. scale may be a tensor of one element instead of a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from opgauge.ops._core.dtype import FLOATS, INTS, accumulator_info, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import MARGIN, SIGNED_NUMBER, accumulated_limits, flushed, overflowing, sign_of
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register

DTYPES = (*FLOATS, *INTS)
"""Supported dtypes."""


@dataclass(frozen=True, slots=True)
class ScaleParams:
    """scale, bias: numbers. bias_after_scale: whether bias is added last."""

    scale: float = 1.0
    bias: float = 0.0
    bias_after_scale: bool = True

    def __post_init__(self) -> None:
        make_plain(self)


def infer(shapes: Mapping[str, Shape], dtype: str, params: ScaleParams) -> Shapes:
    """Shape rule: x's shape. Raises ShapeError for a scale of several elements, ParameterError for a non-integer."""
    spec = TensorSpec(shapes["x"], dtype)
    inputs = {"x": spec}
    if "scale" in shapes:
        if prod(shapes["scale"]) != 1:
            msg = f"scale is {list(shapes['scale'])}; it must be a tensor of one element"
            raise ShapeError(msg)
        inputs["scale"] = TensorSpec(shapes["scale"], dtype)
    if dtype in INTS:
        _check_integers(params, dtype)
    return Shapes(inputs, {"out": spec})


def _check_integers(params: ScaleParams, dtype: str) -> None:
    """Raise ParameterError for a scale or bias that an integer dtype does not have, once truncated."""
    limits = np.iinfo(dtype)
    for name in ("scale", "bias"):
        value = getattr(params, name)
        if not isfinite(value):
            msg = f"{name} {value}: {dtype} has no infinity and no NaN"
            raise ParameterError(msg)
        if not int(limits.min) <= int(value) <= int(limits.max):
            msg = f"{name} {value} is out of range for {dtype}"
            raise ParameterError(msg)


def as_integer(value: float, dtype: np.dtype) -> int:
    """A number truncated toward zero and wrapped into an integer dtype."""
    info = np.iinfo(dtype)
    span = int(info.max) - int(info.min) + 1
    return (int(value) - int(info.min)) % span + int(info.min)


def reference(arrays: Mapping[str, Array], params: ScaleParams) -> dict[str, Array]:
    """Float64 by the formula; integers in their own dtype, wrapping."""
    x = arrays["x"]
    if x.dtype.kind in "iu":
        scale = x.dtype.type(as_integer(params.scale, x.dtype))
        bias = x.dtype.type(as_integer(params.bias, x.dtype))
    else:
        scale, bias = np.float64(params.scale), np.float64(params.bias)
    if "scale" in arrays:
        scale = arrays["scale"].reshape(-1)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        result = x * scale + bias if params.bias_after_scale else (x + bias) * scale
    return {"out": np.asarray(result)}


def work(shapes: Shapes, params: ScaleParams) -> Work:
    """One read, one write, two operations."""
    del params
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), 2 * shapes.inputs["x"].size)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: ScaleParams, dtype: str
) -> dict[str, Array | float]:
    """Each rounding of the accumulating dtype: of scale, of bias, of the product or the sum."""
    if dtype_info(dtype).kind != "float":
        return {"out": 0.0}
    epsilon = 2 * accumulator_info(dtype).epsilon
    scale = float(arrays["scale"].reshape(-1)[0]) if "scale" in arrays else params.scale
    x, bias, factor = np.abs(arrays["x"]), abs(params.bias), abs(scale)
    small_x, small_bias, small_factor = (flushed(np.asarray(one), dtype) for one in (x, bias, factor))
    with np.errstate(invalid="ignore", over="ignore"):
        if params.bias_after_scale:
            partial, size = factor * x, epsilon * x * factor + epsilon * bias
            size = size + small_factor * x + small_x * factor + small_bias + flushed(partial, dtype)
        else:
            partial, size = np.abs(arrays["x"] + params.bias), (epsilon * x + epsilon * bias) * factor
            size = size + small_factor * (x + bias) + (small_x + small_bias + flushed(partial, dtype)) * factor
        size = size + flushed(outputs["out"], dtype)
        allowed = np.where(np.isfinite(size), size, 0.0)
    return _overflowing(allowed, partial, outputs["out"], is_finite=isfinite(scale) and isfinite(bias), dtype=dtype)


def _overflowing(
    allowed: Array, partial: Array, out: Array, *, is_finite: bool, dtype: str
) -> dict[str, Array | float]:
    """Bounds where the product or the sum that comes first may overflow; its sign is that of a result that has one."""
    beyond = (partial > accumulated_limits(dtype)[1] * (1 - MARGIN)) & np.isfinite(partial) & is_finite
    if not np.any(beyond):
        return {"out": allowed}
    return {"out": overflowing(allowed, beyond), sign_of("out"): SIGNED_NUMBER * (np.abs(out) > allowed)}


SCALE = register(
    Op(
        name="scale",
        params=ScaleParams,
        dtypes=DTYPES,
        inputs=(
            Input("x", doc="any shape"),
            Input("scale", required=False, kind="uniform", low=1.0, high=3.0, doc="one element, optional"),
        ),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="scale x + bias, or scale (x + bias)",
        source="Paddle tensor operation library, Paddle #34425",
    )
)
"""The registered op."""
