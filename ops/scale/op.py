"""Definition of scale: scale x + bias, or scale (x + bias) if `bias_after_scale` is false.

16-bit floats compute in float32. For integers scale and bias are truncated to the dtype first
(2.7 becomes 2), and results wrap around. scale may be a tensor of one element instead of a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from opgauge.ops._core.dtype import FLOATS, INTS, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.registry import register

DTYPES = (*FLOATS, *INTS)
"""Supported dtypes."""


@dataclass(frozen=True, slots=True)
class ScaleParams:
    """scale, bias: numbers. bias_after_scale: whether bias is added last."""

    scale: float = 1.0
    bias: float = 0.0
    bias_after_scale: bool = True


def infer(shapes: Mapping[str, Shape], dtype: str, params: ScaleParams) -> Shapes:
    """Shape rule: x's shape. Raises ShapeError for a scale of several elements, ParameterError for a non-integer."""
    spec = TensorSpec(shapes["x"], dtype)
    inputs = {"x": spec}
    if "scale" in shapes:
        if prod(shapes["scale"]) != 1:
            msg = f"scale is {list(shapes['scale'])}; it must be a tensor of one element"
            raise ShapeError(msg)
        inputs["scale"] = TensorSpec(shapes["scale"], dtype)
    if dtype in INTS and not (isfinite(params.scale) and isfinite(params.bias)):
        msg = f"scale {params.scale}, bias {params.bias}: {dtype} has no infinity and no NaN"
        raise ParameterError(msg)
    return Shapes(inputs, {"out": spec})


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
    del outputs
    if dtype_info(dtype).kind != "float":
        return {"out": 0.0}
    epsilon = dtype_info(dtype_info(dtype).accumulate).epsilon
    scale = np.abs(arrays["scale"].reshape(-1)[0]) if "scale" in arrays else abs(params.scale)
    x, bias = np.abs(arrays["x"]), abs(params.bias)
    size = scale * x + bias if params.bias_after_scale else scale * (x + bias)
    with np.errstate(invalid="ignore"):
        return {"out": 2 * epsilon * np.where(np.isfinite(size), size, 0.0)}


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
