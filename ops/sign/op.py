"""Definition of sign: -1, 0 or 1 as x is below, at or above zero; NaN stays NaN; x / |x| for complex x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opgauge.ops._core.dtype import COMPLEX, FLOATS, INTS, dtype_info
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.registry import register

DTYPES = (*FLOATS, *INTS, *COMPLEX)
"""Supported dtypes."""


@dataclass(frozen=True, slots=True)
class SignParams:
    """sign has no parameters."""


def infer(shapes: Mapping[str, Shape], dtype: str, params: SignParams) -> Shapes:
    """Shape rule: x's shape."""
    del params
    spec = TensorSpec(shapes["x"], dtype)
    return Shapes({"x": spec}, {"out": spec})


def reference(arrays: Mapping[str, Array], params: SignParams) -> dict[str, Array]:
    """`numpy.sign`: 0 at both zeros, NaN at NaN. Complex numbers are scaled first: their magnitude may overflow."""
    del params
    x = arrays["x"]
    if x.dtype.kind == "c":
        largest = np.maximum(np.abs(x.real), np.abs(x.imag))
        usable = (largest > 0) & np.isfinite(largest)
        x = np.divide(x, largest, out=x.copy(), where=usable)
    return {"out": np.asarray(np.sign(x))}


def work(shapes: Shapes, params: SignParams) -> Work:
    """One read, one write, one comparison."""
    del params
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), shapes.inputs["x"].size)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: SignParams, dtype: str
) -> dict[str, Array | float]:
    """Exact for real numbers; a few roundings of a quotient for complex ones, more for subnormal x."""
    del outputs, params
    if dtype not in COMPLEX:
        return {"out": 0.0}
    part = np.finfo(dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        coarse = np.nan_to_num(float(part.smallest_subnormal) / np.abs(arrays["x"]), posinf=0.0)
    return {"out": 4 * (dtype_info(dtype).epsilon + coarse)}


SIGN = register(
    Op(
        name="sign",
        params=SignParams,
        dtypes=DTYPES,
        inputs=(Input("x", doc="any shape"),),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="-1, 0 or 1 by the sign of x",
        source="Paddle tensor operation library, Paddle #34425",
    )
)
"""The registered op."""
