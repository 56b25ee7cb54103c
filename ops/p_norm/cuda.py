"""p_norm on CUDA: one launch, the tensor read once."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.axes import Axis, MergedAxes, merge_axes, normalize_axes
from opgauge.ops._core.dtype import FLOATS, accumulator_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops._cuda.reduction.launch import (
    Functor,
    launch,
    workspace_bytes,
)
from opgauge.ops.p_norm.cuda_source import CTYPES, LIGHT, MODES, SOURCE, WIDTHS

ACCUMULATOR_BYTES = 8
"""Largest accumulator of a partial result: float64, or a count."""


def order_of(porder: float | str) -> float:
    """The order as a number."""
    return 2.0 if porder == "fro" else float(porder)


def axes_of(shape: tuple[int, ...], axis: Axis) -> MergedAxes:
    """The merged axes of a tensor of `shape`, reduced over `axis`."""
    return merge_axes(shape, normalize_axes(axis, len(shape)))


def _workspace(shapes: Shapes, params: Params) -> int:
    return workspace_bytes(axes_of(shapes.inputs["x"].shape, params.axis), ACCUMULATOR_BYTES)


@kernel("p_norm", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def p_norm(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any) -> Bound:
    """One read of x. Sums of 16-bit floats are float32; the count of porder 0 is exact."""
    del keepdim
    y = out["y"]
    if x.size == 0:
        return bind_fill(y, 0)
    p, dtype = order_of(porder), x.dtype.name
    wide = accumulator_info(dtype).numpy
    mode = MODES.get(p, "POWER")
    accumulator = ACCUMULATOR_BYTES if mode == "COUNT" else wide.itemsize
    value = np.array((p, 1 / p if p else 0.0), [("p", wide), ("inverse", wide)])
    functor = Functor(f"Norm<{CTYPES[dtype]}, {mode}>", WIDTHS[dtype], accumulator, value, mode in LIGHT)
    return launch(SOURCE, functor, axes_of(x.shape, axis), x, None, y, workspace)
