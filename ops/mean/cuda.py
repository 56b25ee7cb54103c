"""mean on CUDA: one read of x, one launch, a fixed order of summation."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.axes import Axis, MergedAxes, merge_axes, normalize_axes
from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops._cuda.reduction.launch import Functor, expressions, launch, workspace_bytes
from opgauge.ops._cuda.reduction.plan import CONSTANTS, STRUCTS
from opgauge.ops._cuda.source import CudaSource

ACCUMULATOR_BYTES = 8
NAMES = {name: (f"Mean<{dtype_info(name).ctype}>", 16 // dtype_info(name).itemsize) for name in FLOATS}
SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    tuple(item for name, width in NAMES.values() for item in expressions(name, width)),
    constants=CONSTANTS,
    structs=STRUCTS,
)
"""Functors and elements per vector by dtype, and the declared instances of kernels.cu."""


def _axes(shape: tuple[int, ...], axis: Axis) -> MergedAxes:
    return merge_axes(shape, normalize_axes(axis, len(shape)))


def _workspace(shapes: Shapes, params: Params) -> int:
    return workspace_bytes(_axes(shapes.inputs["x"].shape, params.axis), ACCUMULATOR_BYTES)


@kernel("mean", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def mean(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any) -> Bound:
    """Sum in float32 (float64 for float64), divide once."""
    del keepdim
    result = out["out"]
    if x.size == 0:
        return bind_fill(result, np.nan)
    axes = _axes(x.shape, axis)
    wide = accumulator_info(x.dtype.name).numpy
    name, width = NAMES[x.dtype.name]
    count = wide.type(axes.length)
    value = np.array((count, 1 / count), [("count", wide), ("inverse", wide)])
    functor = Functor(name, width, wide.itemsize, value)
    return launch(SOURCE, functor, axes, x, None, result, workspace)
