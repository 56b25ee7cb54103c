"""Definition of add_n: in_0 + in_1, element by element, without broadcasting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.registry import register


@dataclass(frozen=True, slots=True)
class AddNParams:
    """add_n has no parameters."""


def infer(shapes: Mapping[str, Shape], dtype: str, params: AddNParams) -> Shapes:
    """Shape rule: two equal shapes; raises ShapeError for different ones."""
    del params
    first, second = shapes["in_0"], shapes.get("in_1", shapes["in_0"])
    if first != second:
        msg = f"in_0 is {list(first)}, in_1 is {list(second)}: add_n does not broadcast"
        raise ShapeError(msg)
    spec = TensorSpec(first, dtype)
    return Shapes({"in_0": spec, "in_1": spec}, {"out": spec})


def reference(arrays: Mapping[str, Array], params: AddNParams) -> dict[str, Array]:
    """The sum."""
    del params
    return {"out": np.add(arrays["in_0"], arrays["in_1"])}


def work(shapes: Shapes, params: AddNParams) -> Work:
    """Two tensors read, one written; one operation an element."""
    del params
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), shapes.outputs["out"].size)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: AddNParams, dtype: str
) -> dict[str, Array | float]:
    """One rounding, which the checker allows anyway."""
    del arrays, outputs, params, dtype
    return {"out": 0.0}


ADD_N = register(
    Op(
        name="add_n",
        params=AddNParams,
        dtypes=FLOATS,
        inputs=(Input("in_0", doc="any shape"), Input("in_1", required=False, doc="the shape of in_0")),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="in_0 + in_1",
        source="OneFlow add_n; FuseAddToOutput, OneFlow #3524",
    )
)
"""The registered op."""
