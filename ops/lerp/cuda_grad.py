"""lerp_grad on CUDA: no full-size temporary is written, and at most one launch per summed gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.axes import as_reduction, merge_axes
from opgauge.ops._core.broadcast import merge_operands, reduced_axes
from opgauge.ops._core.dtype import FLOATS, accumulating
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shape, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.pointwise import LARGEST, THREADS, flat, flat_width
from opgauge.ops._cuda.reduction.launch import bind_plan
from opgauge.ops._cuda.reduction.plan import most_partials
from opgauge.ops._cuda.reduction.problem import GpuSize, ReduceProblem
from opgauge.ops._cuda.source import flag, multiprocessors
from opgauge.ops._cuda.struct import address, pack
from opgauge.ops._cuda.vectors import whole_vector
from opgauge.ops.lerp.cuda import (
    CROSSED_ROWS,
    CTYPES,
    SOURCE,
    bind_broadcast,
    broadcast_launch,
    gradients,
    in_halves,
    split_weight,
)
from opgauge.ops.lerp.cuda_sums import SummedGradient, bind_sum, bind_two
from opgauge.ops.lerp.infinite import bind_infinite, sums_infinite
from opgauge.ops.lerp.sums import beside_plan, most_splits

SUMMED_GRADS = {
    name: np.dtype([("factor", name), ("other_factor", name), ("other", np.uint64), ("size", np.int64)])
    for name in ("float32", "float64")
}
"""`SummedGrad` of kernels.cu by NumPy's type of sums."""


def _workspace(shapes: Shapes, params: Params) -> int:
    """Bytes of flagged partial sums: two 64-bit words per number at most, of both gradients if one launch sums them."""
    del params
    full = shapes.inputs["dout"].shape
    sizes = [spec.size for spec in shapes.outputs.values() if spec.size != prod(full)]
    both = 2 if len(sizes) == 2 and sizes[0] == sizes[1] else 1
    partials = (max(both * size * most_splits(size), most_partials(size, prod(full) // size)) for size in sizes if size)
    return 16 * max(partials, default=0)


@kernel("lerp_grad", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def lerp_grad(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """One launch for equal shapes, or one summed gradient and a scalar weight; else one launch per gradient."""
    if sums_infinite(x, y, dout, weight, out):
        given = {"need_x": need_x, "need_y": need_y, "workspace": workspace}
        return bind_infinite(lerp_grad, x=x, y=y, dout=dout, weight=weight, out=out, **given)
    return _gradient(x.shape, y.shape, dout, weight, out, workspace, subtract=False)


@kernel(
    "lerp_grad",
    "subtract_fused",
    "cuda",
    FLOATS,
    prepare=True,
    workspace=_workspace,
    relaxed=2.0**24,
    note="dX = dout - weight dout in one kernel; like the optimized one if a gradient is summed",
)
def lerp_grad_subtract(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """The design document's plan, fused into one elementwise kernel."""
    if sums_infinite(x, y, dout, weight, out):
        given = {"need_x": need_x, "need_y": need_y, "workspace": workspace}
        return bind_infinite(lerp_grad_subtract, x=x, y=y, dout=dout, weight=weight, out=out, **given)
    return _gradient(x.shape, y.shape, dout, weight, out, workspace, subtract=True)


def _gradient(
    x: Shape, y: Shape, dout: Any, weight: Any, out: dict[str, Any], workspace: Any, *, subtract: bool
) -> Bound:
    dx, dy = out.get("dx"), out.get("dy")
    wide = accumulating(dout)
    sums = [gradient is not None and bool(reduced_axes(shape, dout.shape)) for gradient, shape in ((dx, x), (dy, y))]
    if not any(sums):
        return _unsummed(dout=dout, weight=weight, out={"dx": dx, "dy": dy}, subtract=subtract)
    tensor = None if isinstance(weight, float | int) else weight
    if tensor is None:
        fused = _summed(x, y, dout, weight, (dx, dy), sums, workspace)
        if fused is not None:
            return fused
        factors = ((wide(1 - weight), wide(0)), (wide(weight), wide(0)))
    else:
        factors = ((wide(1), wide(-1)), (wide(0), wide(1)))
    found = [SummedGradient(dx, x, *factors[0]), SummedGradient(dy, y, *factors[1])]
    summed = [one for one, holds in zip(found, sums, strict=True) if holds]
    beside = [one for one, holds in zip(found, sums, strict=True) if not holds and one.out is not None]
    if len(summed) == 1 or reduced_axes(x, dout.shape) == reduced_axes(y, dout.shape):
        return bind_sum(dout, tensor, summed, beside[0] if beside else None, workspace)
    return bind_two(dout, tensor, (found[0], found[1])) or _one_by_one(dout, tensor, summed, workspace)


def _one_by_one(dout: Any, tensor: Any, summed: Sequence[SummedGradient], workspace: Any) -> Bound:
    """A launch for each gradient."""
    steps: list[Bound] = []
    for one in summed:
        alone = None
        if tensor is None:
            alone = _fused(dout, one.out, None, one.shape, (one.offset, one.offset), workspace)
        steps.append(alone or bind_sum(dout, tensor, [one], None, workspace))

    def run() -> None:
        for step in steps:
            step()

    return run


def _summed(
    x: Shape,
    y: Shape,
    dout: Any,
    weight: float,
    gradients: tuple[Any, Any],
    sums: list[bool],
    workspace: Any,
) -> Bound | None:
    """One launch for a scalar weight; None if the axes do not allow it."""
    wide = accumulating(dout)
    factors = (wide(1 - weight), wide(weight))
    if all(sums):
        return _crossed(dout, gradients, (x, y), factors)
    if sums[0]:
        return _fused(dout, *gradients, x, factors, workspace)
    return _fused(dout, *gradients[::-1], y, factors[::-1], workspace)


def _unsummed(*, dout: Any, weight: Any, out: dict[str, Any], subtract: bool) -> Bound:
    """Gradients of dout's shape."""
    dx, dy = out["dx"], out["dy"]
    wide, ctype = accumulating(dout), CTYPES[dout.dtype.name]
    tensor, number = split_weight(weight, wide)
    if tensor is None or tensor.shape == dout.shape:
        width = flat_width(dout, tensor, dx, dy)
        launch = flat(dout.size, width, dout.dtype.itemsize, is_kept=True)
        rest = wide(1 - weight) if tensor is None else wide(0)
        arguments = (dout, number if tensor is None else tensor, dx, dy, *launch.numbers[:2], rest)
        functor = gradients(ctype, flag(tensor is not None), flag(subtract))
        expression = f"lerp_flat<{functor}, {launch.width}, {launch.extent}>"
        return bind_launch(SOURCE, expression, launch.grid, launch.block, arguments)
    if dout.size >= LARGEST:
        return in_halves(partial(_unsummed, subtract=subtract), dout.shape, {"dout": dout, "weight": tensor}, out)
    broadcast = broadcast_launch(merge_operands(dout.shape, tensor.shape), [tensor], [dx, dy], given=dout)
    return bind_broadcast(broadcast, gradients(ctype), (dout, tensor, dx, dy))


def _fused(dout: Any, summed: Any, other: Any, shape: Shape, factors: tuple[Any, Any], workspace: Any) -> Bound | None:
    """One gradient summed; the other is written in the same pass unless None.

    None for axes that `bind_sum` handles: many elements of more than two groups of axes, or of two that end with a
    summed one. workspace: for flagged partial sums.
    """
    axes = merge_axes(dout.shape, reduced_axes(shape, dout.shape))
    layout, wide = axes.two_groups(), np.dtype(accumulating(dout))
    aligned = () if layout is None or layout.r2 == 1 else (layout.c, summed)
    width = whole_vector(dout, other, *aligned)
    wide_out = summed.data.ptr % (width * dout.dtype.itemsize) == 0
    problem = ReduceProblem(axes, dout.dtype.itemsize, width, wide.itemsize, wide_out=wide_out, kept=True)
    plan = beside_plan(problem, GpuSize(multiprocessors()))
    if plan is None:
        return None
    scaled = {"factor": factors[0], "other_factor": factors[1], "other": address(other), "size": dout.size}
    value = pack(SUMMED_GRADS[wide.name], scaled)
    name = f"SummedGrad<{CTYPES[dout.dtype.name]}>"
    held = other  # value has its address alone
    return bind_plan(SOURCE, plan, name, value, (dout, None, summed), workspace, held)


def _crossed(
    dout: Any, gradients: tuple[Any, Any], shapes: tuple[Shape, Shape], factors: tuple[Any, Any]
) -> Bound | None:
    """Both gradients summed, over two adjacent axes: dout is read once, in one launch; else None."""
    try:
        layouts = [as_reduction(dout.shape, reduced_axes(shape, dout.shape)) for shape in shapes]
    except AxisError:
        return None
    outer, inner = sorted(layouts, key=lambda layout: layout.a)
    apart = outer.a * outer.length != inner.a or outer.c != inner.length * inner.c
    width = whole_vector(dout, inner.c, *gradients)
    across = -(-inner.c // (width * WARP))
    # one gradient is summed over the steps and retains the rows, the other vice versa
    rows, steps = sorted(layouts, key=lambda layout: layout.length)
    if apart or width == 1 or rows.length not in CROSSED_ROWS or across * outer.a < multiprocessors():
        return None
    over_steps = layouts.index(steps)
    kept, walked = gradients[over_steps], gradients[1 - over_steps]
    sizes = (*map(np.int32, (steps.length, rows.length, inner.c)), np.int64(steps.c), np.int64(rows.c))
    arguments = (dout, kept, walked, factors[over_steps], factors[1 - over_steps], *sizes)
    expression = f"grad_crossed<{CTYPES[dout.dtype.name]}, {width}>"
    return bind_launch(SOURCE, expression, (across, outer.a), (THREADS,), arguments)
