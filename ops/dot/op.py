"""Definition of dot: the sum over the last axis of x y, without conjugation, for equal shapes of rank 1 or 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import log2

import numpy as np

from opgauge.ops._core.dtype import COMPLEX, FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.overflow import accumulated_limits, flushed, sum_bounds
from opgauge.ops._core.registry import register

DTYPES = (*FLOATS, "int32", "int64", *COMPLEX)
"""Supported dtypes."""


@dataclass(frozen=True, slots=True)
class DotParams:
    """dot has no parameters."""


def infer(shapes: Mapping[str, Shape], dtype: str, params: DotParams) -> Shapes:
    """Shape rule: (n,) and (n,) to (), or (b, n) and (b, n) to (b,). Raises ShapeError for other shapes."""
    del params
    x, y = shapes["x"], shapes.get("y", shapes["x"])
    if len(x) not in (1, 2):
        msg = f"ShapeError: x has rank {len(x)}; the rank should be 1 or 2"
        raise ShapeError(msg)
    if x != y:
        msg = f"ShapeError: x is {list(x)}, y is {list(y)}: they should agree"
        raise ShapeError(msg)
    spec = TensorSpec(x, dtype)
    return Shapes({"x": spec, "y": spec}, {"out": TensorSpec(x[:-1], dtype)})


def reference(arrays: Mapping[str, Array], params: DotParams) -> dict[str, Array]:
    """Float64 (complex128); integers wrap around in their own dtype."""
    del params
    return {"out": np.asarray(np.sum(arrays["x"] * arrays["y"], axis=-1, dtype=arrays["x"].dtype))}


def work(shapes: Shapes, params: DotParams) -> Work:
    """Reads of x and y, a write of the sums; two operations per element, eight for complex numbers."""
    del params
    spec = shapes.inputs["x"]
    flops = (8 if spec.dtype in COMPLEX else 2) * spec.size
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), flops)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: DotParams, dtype: str
) -> dict[str, Array | float]:
    """Half an epsilon of the accumulating dtype, times (log2 n + 6), of sum |x y|; integers are exact."""
    del params
    if dtype_info(dtype).kind in ("int", "uint"):
        return {"out": 0.0}
    wide = accumulator_info(dtype)
    units = wide.epsilon / 2 * (log2(max(arrays["x"].shape[-1], 1)) + 6)
    x, y = arrays["x"], arrays["y"]
    terms = _size(x) * _size(y)
    size, tiny = np.asarray(np.sum(terms, axis=-1)), accumulated_limits(dtype)[0]
    is_small = (_size(x) < tiny) | (_size(y) < tiny) | (terms < tiny)
    error = units * size + np.sum(np.where(is_small, terms, 0.0), axis=-1) + flushed(outputs["out"], dtype)
    return sum_bounds("out", error, size, wide.largest, None if dtype in COMPLEX else partial(_signs, x, y))


def _signs(x: Array, y: Array) -> tuple[Array, Array]:
    """Sum of the products' signs, and number of products that are not 0."""
    signs = np.sign(x) * np.sign(y)
    return np.sum(signs, axis=-1), np.sum(np.abs(signs), axis=-1)


def _size(x: Array) -> Array:
    """Magnitudes; for complex numbers sums of those of both parts, whose products are the terms of both sums."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


DOT = register(
    Op(
        name="dot",
        params=DotParams,
        dtypes=DTYPES,
        inputs=(Input("x", doc="(n,) or (b, n)"), Input("y", required=False, doc="the shape of x")),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="sum of x y over the last axis, not conjugated",
        source="Paddle tensor operation library, Paddle #34425",
    )
)
"""The registered op."""
