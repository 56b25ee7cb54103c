"""Definition of flatten: axes start_axis to stop_axis merged into one, elements in order.

copy: into a new tensor (2N of traffic), or a view of x, which moves nothing and exists only
if x's strides allow it. A 0-d tensor becomes one of shape (1,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from opgauge.ops._core.dtype import COMPLEX, FLOATS, INTS
from opgauge.ops._core.errors import AxisError, ParameterError
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import register

DTYPES = (*FLOATS, *INTS, "bool", *COMPLEX)
"""Supported dtypes."""


@dataclass(frozen=True, slots=True)
class FlattenParams:
    """start_axis, stop_axis: the first and the last axis to merge, negative from the end. copy: see the module."""

    start_axis: int = 0
    stop_axis: int = -1
    copy: bool = True

    def __post_init__(self) -> None:
        make_plain(self)


def flat_shape(shape: Shape, params: FlattenParams) -> Shape:
    """`shape` with the axes merged. Raises AxisError, and ParameterError if stop precedes start."""
    if not shape:
        if params.start_axis not in {0, -1} or params.stop_axis not in {0, -1}:
            msg = "a 0-d tensor has no axis but 0 and -1 to flatten"
            raise AxisError(msg)
        return (1,)
    rank = len(shape)
    for name, axis in (("start_axis", params.start_axis), ("stop_axis", params.stop_axis)):
        if not -rank <= axis < rank:
            msg = f"{name} {axis} is out of range for rank {rank}"
            raise AxisError(msg)
    start, stop = params.start_axis % rank, params.stop_axis % rank
    if stop < start:
        msg = "The stop_axis should be greater than or equal to start_axis."
        raise ParameterError(msg)
    return (*shape[:start], prod(shape[start : stop + 1]), *shape[stop + 1 :])


def infer(shapes: Mapping[str, Shape], dtype: str, params: FlattenParams) -> Shapes:
    """Shape rule: x with the axes merged; a view of x if `copy` is false."""
    flat = TensorSpec(flat_shape(shapes["x"], params), dtype, None if params.copy else "x")
    return Shapes({"x": TensorSpec(shapes["x"], dtype)}, {"out": flat})


def reference(arrays: Mapping[str, Array], params: FlattenParams) -> dict[str, Array]:
    """The elements in order, in the merged shape."""
    return {"out": arrays["x"].reshape(flat_shape(arrays["x"].shape, params))}


def work(shapes: Shapes, params: FlattenParams) -> Work:
    """One read and one write, or nothing for a view."""
    if not params.copy:
        return Work(0, 0, 0)
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), 0)


def bound(
    arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: FlattenParams, dtype: str
) -> dict[str, Array | float]:
    """Exact."""
    del arrays, outputs, params, dtype
    return {"out": 0.0}


FLATTEN = register(
    Op(
        name="flatten",
        params=FlattenParams,
        dtypes=DTYPES,
        inputs=(Input("x", doc="any shape, any strides"),),
        outputs=("out",),
        infer=infer,
        reference=reference,
        work=work,
        bound=bound,
        summary="axes merged into one, by copy or as a view",
        source="Paddle tensor operation library, Paddle #34425",
    )
)
"""The registered op."""
