"""Definition of lerp and lerp_grad; x, y and weight broadcast together.

    out = x + weight (y - x)          dX = (1 - weight) dout,  dY = weight dout, each summed to its input's shape

Kernels may also compute y - (1 - weight) (y - x), as torch does for weight >= 1/2, or (1 - weight) x + weight y: the
bound covers all three. Ours return y exactly at weight 1, x where x = y, and no infinity for a finite result.
A difference of numbers of one sign cannot overflow, and numbers of different signs are weighted separately.
There is no gradient for weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from opgauge.ops._core.axes import sum_units
from opgauge.ops._core.broadcast import broadcast_shape, reduce_to, reduced_axes
from opgauge.ops._core.dtype import FLOATS, accumulator_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import MARGIN, accumulated_limits, overflowing, sum_bounds
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register

HIGHEST_RANK = 6
"""Maximum rank of every input."""


@dataclass(frozen=True, slots=True)
class LerpParams:
    """weight: a number, unless it is given as a tensor."""

    weight: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)


@dataclass(frozen=True, slots=True)
class LerpGradParams:
    """weight: as for lerp. need_x, need_y: which gradients to compute; at least one."""

    weight: float | None = None
    need_x: bool = True
    need_y: bool = True

    def __post_init__(self) -> None:
        make_plain(self)
        if not (self.need_x or self.need_y):
            msg = "need_x and need_y are both false: at least one gradient must be requested"
            raise ParameterError(msg)


def _full(shapes: Mapping[str, Shape], params: LerpParams | LerpGradParams) -> Shape:
    if ("weight" in shapes) == (params.weight is not None):
        msg = "weight must be given once: as a number among the params, or as a tensor among the shapes"
        raise ParameterError(msg)
    for name in ("x", "y", "weight"):
        shape = shapes.get(name, ())
        if len(shape) > HIGHEST_RANK:
            msg = f"{name} has rank {len(shape)}; lerp takes up to {HIGHEST_RANK}"
            raise ShapeError(msg)
        if prod(shape) == 0:
            msg = f"LerpKernel's input {name} must not be empty."
            raise ShapeError(msg)
    return broadcast_shape(shapes["x"], shapes["y"], shapes.get("weight", ()))


def _inputs(shapes: Mapping[str, Shape], dtype: str) -> dict[str, TensorSpec]:
    return {name: TensorSpec(shapes[name], dtype) for name in ("x", "y", "weight") if name in shapes}


def infer(shapes: Mapping[str, Shape], dtype: str, params: LerpParams) -> Shapes:
    """Shape rule: x, y, weight to their common shape. Raises ShapeError: empty, rank over 6, no common shape."""
    return Shapes(_inputs(shapes, dtype), {"out": TensorSpec(_full(shapes, params), dtype)})


def infer_grad(shapes: Mapping[str, Shape], dtype: str, params: LerpGradParams) -> Shapes:
    """Shape rule: x and y (shapes only), weight, and dout of the common shape, to dx and dy. Raises ShapeError."""
    full = _full(shapes, params)
    if shapes.get("dout", full) != full:
        msg = f"dout is {list(shapes['dout'])}; x, y and weight broadcast to {list(full)}"
        raise ShapeError(msg)
    wanted = {"dx": params.need_x, "dy": params.need_y}
    outputs = {name: TensorSpec(shapes[name[1:]], dtype) for name, want in wanted.items() if want}
    return Shapes({**_inputs(shapes, dtype), "dout": TensorSpec(full, dtype)}, outputs)


def _weight(arrays: Mapping[str, Array], params: LerpParams | LerpGradParams) -> Array:
    return arrays["weight"] if "weight" in arrays else np.asarray(params.weight, np.float64)


def reference(arrays: Mapping[str, Array], params: LerpParams) -> dict[str, Array]:
    """Float64 by the formula; x and y of different signs are weighted separately, as their difference may overflow."""
    x, y = np.broadcast_arrays(arrays["x"], arrays["y"])
    weight = _weight(arrays, params)
    apart = (x < 0) != (y < 0)
    step = np.subtract(y, x, out=np.zeros_like(y), where=~apart)
    return {"out": np.asarray(np.where(apart, (1 - weight) * x + weight * y, x + weight * step))}


def reference_grad(arrays: Mapping[str, Array], params: LerpGradParams) -> dict[str, Array]:
    """Float64 by the formulas, summed pairwise."""
    weight, dout = _weight(arrays, params), arrays["dout"]
    found = {}
    if params.need_x:
        found["dx"] = reduce_to(np.asarray((1 - weight) * dout), arrays["x"].shape)
    if params.need_y:
        found["dy"] = reduce_to(np.asarray(weight * dout), arrays["y"].shape)
    return found


def work(shapes: Shapes, params: LerpParams) -> Work:
    """Every tensor once; three operations an element."""
    del params
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), 3 * shapes.outputs["out"].size)


def work_grad(shapes: Shapes, params: LerpGradParams) -> Work:
    """Reads of dout and weight, writes of the gradients; x and y are not read."""
    del params
    read = {name: spec for name, spec in shapes.inputs.items() if name in {"dout", "weight"}}
    size = shapes.inputs["dout"].size
    sums = sum(size for spec in shapes.outputs.values() if spec.size < size)
    return Work(tensor_bytes(read), tensor_bytes(shapes.outputs), 3 * size + sums)


def _half_epsilon(dtype: str) -> float:
    return accumulator_info(dtype).epsilon / 2


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: LerpParams, dtype: str
) -> dict[str, Array | float]:
    """A difference, a product and a sum, each rounded once in the accumulating dtype; a number weight once.

    The difference, or its product with the weight, may overflow in one of the three formulas.
    """
    del outputs
    x, y, weight = arrays["x"], arrays["y"], _weight(arrays, params)
    tiny, largest = accumulated_limits(dtype)
    share, rest = np.abs(weight), np.abs(1 - weight)
    size = np.abs(x) + np.abs(y)
    units = 2 * _half_epsilon(dtype) * (2 * (share + np.minimum(share, rest)) + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        allowed = (units + np.where(share < tiny, share, 0.0)) * size
        partial = np.maximum(np.maximum(share, rest), 1.0) * np.abs(y - x)
        partial = np.maximum(partial, np.maximum(rest * np.abs(x), share * np.abs(y)))
    finite = np.isfinite(size) & np.isfinite(share)
    return {"out": overflowing(allowed, finite & (partial > largest * (1 - MARGIN)))}


def bound_grad(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: LerpGradParams, dtype: str
) -> dict[str, Array | float]:
    """(4 + sum_units(n)) half epsilons of the sum of magnitudes of the n values summed into one."""
    given, dout = _weight(arrays, params), np.abs(arrays["dout"])
    weight, rest = np.abs(given), np.abs(1 - given)
    tiny, largest = accumulated_limits(dtype)
    allowed: dict[str, Array | float] = {}
    for name, factor, signed in (("dx", rest, 1 - given), ("dy", weight, given)):
        if name not in outputs:
            continue
        shape = outputs[name].shape
        count = prod(dout.shape[axis] for axis in reduced_axes(shape, dout.shape))
        units = _half_epsilon(dtype) * (4 + (sum_units(count) if count > 1 else 0))
        terms = np.asarray(factor * dout)
        size, flushed = reduce_to(terms, shape), ((terms < tiny) | (factor < tiny)) & (terms > 0)
        error = units * size + (reduce_to(np.where(flushed, terms, 0.0), shape) if np.any(flushed) else 0.0)
        allowed |= sum_bounds(name, error, size, largest, partial(_signs, signed, arrays["dout"], shape))
    return allowed


def _signs(factor: Array, dout: Array, shape: Shape) -> tuple[Array, Array]:
    """Sum of the signs of factor dout, and number of products that are not 0, for a gradient of that shape."""
    signs = np.asarray(np.sign(factor) * np.sign(dout))
    return reduce_to(signs, shape), reduce_to(np.abs(signs), shape)


_WEIGHT = Input("weight", required=False, kind="uniform", low=0.0, high=1.0, doc="broadcasts with x and y")
_SOURCE = "Paddle lerp; lerp_grad design document of 2022-09-08"

LERP = register(
    Op(
        name="lerp",
        params=LerpParams,
        dtypes=FLOATS,
        inputs=(Input("x", doc="rank 0 to 6"), Input("y", doc="broadcasts with x"), _WEIGHT),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="x + weight (y - x)",
        source=_SOURCE,
    )
)
"""The registered op."""

LERP_GRAD = register(
    Op(
        name="lerp_grad",
        params=LerpGradParams,
        dtypes=FLOATS,
        inputs=(
            Input("x", doc="gives the shape of dx; its values are not read"),
            Input("y", doc="gives the shape of dy; its values are not read"),
            _WEIGHT,
            Input("dout", required=False, doc="gradient of out, the common shape"),
        ),
        outputs=("dx", "dy"),
        infer=infer_grad,
        reference=reference_grad,
        work=work_grad,
        bound=bound_grad,
        summary="gradients of lerp with respect to x and y",
        source=_SOURCE,
        errata=(
            "dX = dout - dY holds before summing only, and loses accuracy for weight near 1: (1 - weight) dout",
            "both sums are needed wherever an input's shape differs from the output's, leading axes included",
            "the document's table of torch times is in microseconds, not seconds",
        ),
    )
)
"""The registered op."""
