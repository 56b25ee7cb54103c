"""p_norm_grad on CUDA by the design document's plan, for comparison."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from opgauge.ops._core.axes import Axis, Reduction
from opgauge.ops._core.dtype import FLOATS, accumulator_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shape, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.reduction.launch import layout_struct
from opgauge.ops.p_norm.cuda import axes_of, order_of
from opgauge.ops.p_norm.cuda_grad import grad_workspace, p_norm_grad, part_bytes
from opgauge.ops.p_norm.cuda_source import CTYPES, SOURCE, THREADS


def _workspace(shapes: Shapes, params: Params) -> int:
    x = shapes.inputs["x"]
    if _layout(order_of(params.porder), x.shape, params.axis) is None:
        return grad_workspace(shapes, params)
    itemsize = accumulator_info(x.dtype).itemsize
    return part_bytes(shapes.inputs["y"].size * itemsize) + x.size * itemsize


def _layout(p: float, shape: Shape, axis: Axis) -> Reduction | None:
    """The axes; None if `optimized` computes in its place: finite porder but 0, at most two groups of axes."""
    return None if abs(p) == inf or p == 0 else axes_of(shape, axis).two_groups()


@kernel(
    "p_norm_grad",
    "three_kernel",
    "cuda",
    FLOATS,
    prepare=True,
    workspace=_workspace,
    relaxed=64.0,
    note="the design document's plan: |x|^(p-1) and y^-(p-1) apart, which overflow where their product does not",
)
def p_norm_grad_three_kernel(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """Part on the reduced shape, part broadcast, one elementwise kernel: 4N of traffic, finite porder."""
    del keepdim
    dx = out["dx"]
    if x.size == 0:
        return lambda: None
    p, dtype = order_of(porder), x.dtype.name
    layout = _layout(p, x.shape, axis)
    if layout is None:
        return p_norm_grad(x=x, y=y, dy=dy, porder=porder, axis=axis, keepdim=False, out=out, workspace=workspace)
    wide = accumulator_info(dtype).numpy
    q, part = wide.type(p - 1), workspace
    spread = workspace[part_bytes(y.size * wide.itemsize) :]
    launches = []
    for name, size, arguments in (
        ("grad_part", y.size, (y, dy, part, q, np.int64(y.size))),
        ("grad_spread", x.size, (part, spread, layout_struct(layout, 1, 1), np.int64(x.size))),
        ("grad_fuse", x.size, (x, spread, dx, q, np.int64(x.size))),
    ):
        launches.append((SOURCE.function(f"{name}<{CTYPES[dtype]}>"), (-(-size // THREADS),), arguments))

    def run() -> None:
        for function, grid, arguments in launches:
            function(grid, (THREADS,), arguments)

    return run
