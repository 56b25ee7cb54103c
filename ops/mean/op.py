"""Definition of mean: sum x / n over one axis, several axes, or all. Floats only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opgauge.ops._core.axes import Axis, normalize_axes, plain_axis, reduced_shape, sum_pairwise, sum_units
from opgauge.ops._core.dtype import FLOATS, accumulator_info
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import accumulated_limits, sum_bounds
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register


@dataclass(frozen=True, slots=True)
class MeanParams:
    """axis: one axis, several, or None for all. keepdim: retain the reduced axes with length 1."""

    axis: Axis = None
    keepdim: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        object.__setattr__(self, "axis", plain_axis(self.axis))


def infer(shapes: Mapping[str, Shape], dtype: str, params: MeanParams) -> Shapes:
    """Shape rule: x without the reduced axes; a full reduction gives a 0-d tensor. Raises AxisError."""
    x = shapes["x"]
    out = reduced_shape(x, normalize_axes(params.axis, len(x)), keepdim=params.keepdim)
    return Shapes({"x": TensorSpec(x, dtype)}, {"out": TensorSpec(out, dtype)})


def reference(arrays: Mapping[str, Array], params: MeanParams) -> dict[str, Array]:
    """Float64 sum over count; NaN for an empty sum."""
    x = arrays["x"]
    axes = normalize_axes(params.axis, x.ndim)
    count = float(np.prod([x.shape[axis] for axis in axes]))
    with np.errstate(invalid="ignore", divide="ignore"):
        return {"out": sum_pairwise(x, axes, keepdim=params.keepdim) / np.float64(count)}


def work(shapes: Shapes, params: MeanParams) -> Work:
    """Reads of x, writes of the means; one addition per element."""
    del params
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), shapes.inputs["x"].size)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: MeanParams, dtype: str
) -> dict[str, Array | float]:
    """Rounding of a sum in the accumulating dtype, and of its quotient; relative to the mean magnitude.

    If the sum of magnitudes exceeds that dtype, the sum may overflow.
    """
    x = arrays["x"]
    axes = normalize_axes(params.axis, x.ndim)
    n = max(x.size // max(outputs["out"].size, 1), 1)
    half = accumulator_info(dtype).epsilon / 2
    _, largest = accumulated_limits(dtype)
    size = np.sum(np.abs(x) / n, axis=axes, keepdims=params.keepdim)
    size = np.where(np.isfinite(size), size, 0.0)

    def signs() -> tuple[Array, Array]:
        total, count = (np.sum(one, axis=axes, keepdims=params.keepdim) for one in (np.sign(x), x != 0))
        return total, count

    return sum_bounds("out", half * (sum_units(n) + 4) * size, size, largest / n, signs)


MEAN = register(
    Op(
        name="mean",
        params=MeanParams,
        dtypes=FLOATS,
        inputs=(Input("x", doc="any shape"),),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="mean over axes, or over all",
        source="Paddle tensor operation library, Paddle #34425",
        errata=("multiplying by a 16-bit 1/n first loses the mean: it is 0 at n = 2^25; we divide once, at the end",),
    )
)
"""The registered op."""
