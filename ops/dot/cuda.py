"""dot on CUDA: one read of each vector, one launch, a fixed order of summation."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.axes import MergedAxes, merge_axes
from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops._cuda.reduction.launch import Functor, expressions, launch, workspace_bytes
from opgauge.ops._cuda.reduction.plan import CONSTANTS, STRUCTS
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.dot.op import DTYPES

ACCUMULATOR_BYTES = 16
FUNCTORS = {name: f"Dot<{dtype_info(name).ctype}>" for name in FLOATS} | {
    "int32": "IntegerDot<unsigned int>",
    "int64": "IntegerDot<unsigned long long>",
    "complex64": "ComplexDot<float2>",
    "complex128": "ComplexDot<double2>",
}
"""Bytes of an accumulator, functors by dtype, and elements per vector by dtype."""
WIDTHS = {name: 16 // dtype_info(name).itemsize for name in DTYPES}
SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    tuple(item for name in DTYPES for item in expressions(FUNCTORS[name], WIDTHS[name], only_rows=True)),
    constants=CONSTANTS,
    structs=STRUCTS,
)
"""Elements per vector by dtype, and the declared instances of kernels.cu."""


def _axes(shape: tuple[int, ...]) -> MergedAxes:
    return merge_axes(shape, (len(shape) - 1,))


def _workspace(shapes: Shapes, params: Params) -> int:
    del params
    return workspace_bytes(_axes(shapes.inputs["x"].shape), ACCUMULATOR_BYTES)


@kernel("dot", "optimized", "cuda", DTYPES, prepare=True, workspace=_workspace)
def dot(*, x: Any, y: Any, out: dict[str, Any], workspace: Any) -> Bound:
    """Products summed in float32 for 16-bit floats, in the dtype itself otherwise."""
    result = out["out"]
    if x.size == 0:
        return bind_fill(result, 0)
    dtype = x.dtype.name
    accumulator = accumulator_info(dtype).itemsize
    nothing = np.zeros((), [("unused", np.uint32)])
    functor = Functor(FUNCTORS[dtype], WIDTHS[dtype], accumulator, nothing)
    return launch(SOURCE, functor, _axes(x.shape), x, y, result, workspace)
