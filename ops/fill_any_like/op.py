"""Definition of fill_any_like: a tensor of x's shape, every element `value`; x itself is not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from opgauge.ops._core.dtype import FLOATS, INTS, dtype_info
from opgauge.ops._core.errors import ParameterError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register

DTYPES = (*FLOATS, *INTS, "bool")
"""Supported dtypes."""
EXACT = 2**53
"""Largest integer up to which float64 holds all."""


@dataclass(frozen=True, slots=True)
class FillAnyLikeParams:
    """value: the number to fill with; a float unless it is an integer that float64 would round, such as 2⁵³ + 1.

    dtype: of the output; None takes x's.
    """

    value: float | int = 0.0
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Make `2` and `2.0` the same value."""
        make_plain(self)
        if type(self.value) is int and abs(self.value) <= EXACT:
            object.__setattr__(self, "value", float(self.value))


def infer(shapes: Mapping[str, Shape], dtype: str, params: FillAnyLikeParams) -> Shapes:
    """Shape rule: x's shape. Raises ParameterError for a value outside the output dtype's range, DtypeError."""
    target = dtype_info(params.dtype or dtype)
    if target.name not in DTYPES:
        msg = f"fill_any_like does not fill {target.name}"
        raise ParameterError(msg)
    is_integer = target.kind in {"int", "uint"}
    lowest, largest = -target.largest, target.largest
    if is_integer:
        lowest, largest = int(np.iinfo(target.numpy).min), int(np.iinfo(target.numpy).max)
    beyond = not lowest <= params.value <= largest
    if target.kind != "bool" and beyond and (is_integer or isfinite(params.value)):
        msg = f"The filled value is out of range for target type {target.name}: {params.value}"
        raise ParameterError(msg)
    spec = TensorSpec(shapes["x"], dtype)
    return Shapes({"x": spec}, {"out": TensorSpec(shapes["x"], target.name)})


def as_element(value: float, dtype: str) -> np.generic:
    """`value` as one element: truncated for integers, `value != 0` for bool."""
    info = dtype_info(dtype)
    if info.kind == "bool":
        return np.bool_(value != 0)
    element: np.generic = info.numpy.type(int(value) if info.kind in {"int", "uint"} else value)
    return element


def reference(arrays: Mapping[str, Array], params: FillAnyLikeParams) -> dict[str, Array]:
    """A full array: in float64 for floats, in the dtype for integers and bool."""
    x = arrays["x"]
    dtype = params.dtype or (x.dtype.name if x.dtype.kind in "iub" else "float64")
    if dtype_info(dtype).kind == "float":
        return {"out": np.full(x.shape, params.value, np.float64)}
    return {"out": np.full(x.shape, as_element(params.value, dtype))}


def work(shapes: Shapes, params: FillAnyLikeParams) -> Work:
    """One write."""
    del params
    return Work(0, tensor_bytes(shapes.outputs), 0)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: FillAnyLikeParams, dtype: str
) -> dict[str, Array | float]:
    """Exact, except for the rounding of the value to the dtype, which the checker allows."""
    del arrays, outputs, params, dtype
    return {"out": 0.0}


FILL_ANY_LIKE = register(
    Op(
        name="fill_any_like",
        params=FillAnyLikeParams,
        dtypes=DTYPES,
        inputs=(Input("x", doc="gives the shape; its values are not read"),),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="a tensor like x, filled with one value",
        source="Paddle tensor operation library, Paddle #34425",
        errata=("reading the value as float32 loses int64 values above 2^24; integers are exact here",),
    )
)
"""The registered op."""
