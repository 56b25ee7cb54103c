"""lerp_grad on CUDA: no full-size temporary is written, and at most one launch per summed gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.axes import Reduction, as_reduction, merge_axes
from opgauge.ops._core.broadcast import merge_operands, reduced_axes
from opgauge.ops._core.dtype import FLOATS, accumulating, dtype_info
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array, Params, Shape, Shapes
from opgauge.ops._core.plans import announce
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import AXES, THREADS, axes_struct, flat, strided, strides_struct
from opgauge.ops._cuda.reduction.launch import bind_plan
from opgauge.ops._cuda.reduction.problem import GRID_RESIDENT, GpuSize, ReduceProblem
from opgauge.ops._cuda.reduction.rows import collectors
from opgauge.ops._cuda.source import CudaSource, flag, multiprocessors, whole_vector
from opgauge.ops._cuda.struct import address, pack, pointer
from opgauge.ops.lerp.cuda import (
    CROSSED_ROWS,
    CTYPES,
    FEW_ELEMENTS,
    FLAGS,
    IN_FLIGHT,
    SOURCE,
    WARP,
    WIDTHS,
    split_weight,
)
from opgauge.ops.lerp.sums import FIX_UP, SUM_THREADS, AxisGroup, beside_plan, partial_places, sum_plan

MOST_SPLITS = 1024
"""Maximum blocks that share one row."""


def _sum_expressions() -> tuple[str, ...]:
    kinds = [(rows, sums) for rows in FLAGS for sums in (1, 2)]
    found = [f"reduce_any<{ctype}, 1, {rows}, true, {sums}>" for ctype in CTYPES.values() for rows, sums in kinds]
    for name, ctype in CTYPES.items():
        found += [
            f"reduce_any<{ctype}, {WIDTHS[name]}, {rows}, {spread}, {sums}>" for rows, sums in kinds for spread in FLAGS
        ]
    return tuple(found)


WIDE = {"float": np.float32, "double": np.float64}
FACTORS = {ctype: np.dtype([("offset", dtype), ("sign", dtype)]) for ctype, dtype in WIDE.items()}
PARTIALS = {
    ctype: np.dtype([("splits", pointer(ctype)), ("groups", pointer(ctype)), ("arrivals", pointer("unsigned int"))])
    for ctype in WIDE
}
SUMMED_GRADS = {
    name: np.dtype([("factor", name), ("other_factor", name), ("other", np.uint64), ("size", np.int64)])
    for name in ("float32", "float64")
}
PARTS = strided(1, np.int64, (AXES,))
PART = np.dtype(
    [
        ("axes", PARTS[f"Axes<{AXES}>"]),
        ("pad", "V4"),
        *((name, PARTS[f"Strides<{AXES}, 1, long long>"]) for name in ("dout", "weight")),
        ("units", np.uint32),
        ("end", "V4"),
    ]
)
"""`SummedGrad` of kernels.cu by NumPy's type of sums. Structs of sums.cu by C++ type: dout's factor in a gradient;
pointers to the splits' and the groups' partial sums, and to the arrival counters; a group of dout's axes, of `units`
vectors along the innermost axis or elements."""
SUMS = CudaSource(
    __file__,
    "sums.cu",
    _sum_expressions(),
    constants={"AXES": AXES, "SUM_THREADS": SUM_THREADS, "FIX_UP": FIX_UP},
    structs=PARTS
    | {"Part": PART}
    | {f"Factor<{ctype}>": dtype for ctype, dtype in FACTORS.items()}
    | {f"Partials<{ctype}>": dtype for ctype, dtype in PARTIALS.items()},
)
"""Declared instances of sums.cu."""


def _workspace(shapes: Shapes, params: Params) -> int:
    """Bytes for partial sums: of one gradient's blocks by `_fused`, then of each summed gradient's by `_sum`."""
    del params
    full = shapes.inputs["dout"]
    itemsize = dtype_info(dtype_info(full.dtype).accumulate).itemsize
    sizes = _summed_sizes(shapes.outputs, full.shape)
    general = sum(partial_places(size, 1, itemsize).nbytes for size in sizes)
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        general = max(general, partial_places(sizes[0], 2, itemsize).nbytes)
    return _flagged_bytes(shapes.outputs, full.shape) + general


def _summed_sizes(outputs: Mapping[str, Any], full: Shape) -> list[int]:
    """Sizes of the gradients that are summed; outputs: arrays or specs."""
    return [output.size for output in outputs.values() if output.size != prod(full)]


def _flagged_bytes(outputs: Mapping[str, Any], full: Shape) -> int:
    """Bytes of flagged partials of `_fused`: at most two 64-bit words per number."""
    return max((16 * size * _splits(size) for size in _summed_sizes(outputs, full)), default=0)


def _splits(size: int) -> int:
    """Maximum blocks that share one result."""
    return max(1, min(MOST_SPLITS, (1 << 18) // max(size, 1)))


@kernel("lerp_grad", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def lerp_grad(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """One launch for equal shapes, or one summed gradient and a scalar weight; else one launch per gradient."""
    del need_x, need_y
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
    del need_x, need_y
    return _gradient(x.shape, y.shape, dout, weight, out, workspace, subtract=True)


def _gradient(
    x: Shape, y: Shape, dout: Any, weight: Any, out: dict[str, Any], workspace: Any, *, subtract: bool
) -> Bound:
    dx, dy = out.get("dx"), out.get("dy")
    wide = accumulating(dout)
    scratch = None if workspace is None else workspace[_flagged_bytes(out, dout.shape) :]
    sums = [gradient is not None and bool(reduced_axes(shape, dout.shape)) for gradient, shape in ((dx, x), (dy, y))]
    if not any(sums):
        return _unsummed(dout, weight, dx, dy, subtract=subtract)
    tensor = None if isinstance(weight, float | int) else weight
    if tensor is None:
        fused = _summed(x, y, dout, weight, (dx, dy), sums, workspace)
        if fused is not None:
            return fused
        factors = ((wide(1 - weight), wide(0)), (wide(weight), wide(0)))
    else:
        factors = ((wide(1), wide(-1)), (wide(0), wide(1)))
    found = [_Gradient(dx, x, *factors[0]), _Gradient(dy, y, *factors[1])]
    summed = [one for one, holds in zip(found, sums, strict=True) if holds]
    beside = [one for one, holds in zip(found, sums, strict=True) if not holds and one.out is not None]
    if len(summed) == 1 or reduced_axes(x, dout.shape) == reduced_axes(y, dout.shape):
        return _sum(dout, tensor, summed, beside[0] if beside else None, scratch)
    size = partial_places(summed[0].out.size, 1, np.dtype(wide).itemsize).nbytes
    steps: list[Bound] = []
    for one, room in zip(summed, (scratch, None if scratch is None else scratch[size:]), strict=True):
        alone = None
        if tensor is None:
            alone = _fused(dout, one.out, None, one.shape, (one.offset, one.offset), workspace)
        steps.append(alone or _sum(dout, tensor, [one], None, room))

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


def _unsummed(dout: Any, weight: Any, dx: Any, dy: Any, *, subtract: bool) -> Bound:
    """Gradients of dout's shape."""
    wide, ctype = accumulating(dout), CTYPES[dout.dtype.name]
    tensor, number = split_weight(weight, wide)
    if tensor is None or tensor.shape == dout.shape:
        width = whole_vector(dout, tensor, dx, dy)
        launch = flat(dout.size, width, dout.dtype.itemsize, is_kept=True)
        flags = f"{flag(tensor is not None)}, {flag(subtract)}"
        function = SOURCE.function(f"grad_flat<{ctype}, {launch.width}, {launch.extent}, {flags}>")
        rest = wide(1 - weight) if tensor is None else wide(0)
        arguments: tuple[Any, ...] = (dout, tensor, dx, dy, *launch.numbers[:2], number, rest)
        return lambda: function(launch.grid, launch.block, arguments)
    steps = merge_operands(dout.shape, tensor.shape)
    width = whole_vector(dout, dout, dx, dy) if dout.size > FEW_ELEMENTS else 1
    function = SOURCE.function(f"grad_broadcast<{ctype}, {width}>")
    grid, block = (-(-dout.size // (width * THREADS)),), (THREADS,)
    walked = (axes_struct(steps), strides_struct(steps.strides[0], dtype=np.uint32))
    arguments = (dout, tensor, dx, dy, np.uint32(dout.size), *walked)
    return lambda: function(grid, block, arguments)


def _waiting() -> int:
    """Whether blocks that wait are resident: one per sum, or per column block."""
    return GRID_RESIDENT * multiprocessors()


def _fused(dout: Any, summed: Any, other: Any, shape: Shape, factors: tuple[Any, Any], workspace: Any) -> Bound | None:
    """One gradient summed; the other is written in the same pass unless None.

    None for axes or rows that `_sum` handles: many elements of more than two groups of axes, of two that end with a
    summed one, or of rows too short for a thread block. workspace: for flagged partial sums.
    """
    axes = merge_axes(dout.shape, reduced_axes(shape, dout.shape))
    layout, wide = axes.two_groups(), np.dtype(accumulating(dout))
    aligned = () if layout is None or layout.r2 == 1 else (layout.c, summed)
    width = whole_vector(dout, other, *aligned)
    wide_out = summed.data.ptr % (width * dout.dtype.itemsize) == 0
    problem = ReduceProblem(axes, dout.dtype.itemsize, width, wide.itemsize, wide_out=wide_out, kept=True)
    plan = beside_plan(problem, GpuSize(multiprocessors()))
    if plan is None:
        if layout is None or layout.c * layout.b > 1:
            return None
        return _rows(dout, summed, other, layout, factors, workspace)
    scaled = {"factor": factors[0], "other_factor": factors[1], "other": address(other), "size": dout.size}
    value = pack(SUMMED_GRADS[wide.name], scaled)
    name = f"SummedGrad<{CTYPES[dout.dtype.name]}>"
    held = other  # value has its address alone
    return bind_plan(SOURCE, plan, name, value, (dout, None, summed), workspace, held)


def _rows(
    dout: Any, summed: Any, other: Any, layout: Reduction, factors: tuple[Any, Any], workspace: Any
) -> Bound | None:
    width = whole_vector(dout, layout.length, other)
    vectors = layout.length // width
    if vectors < THREADS:
        return None
    most = _splits(summed.size) if layout.a < _waiting() else 1
    share = -(-vectors // min(most, -(-vectors // (THREADS * IN_FLIGHT))))
    splits = -(-vectors // share)
    function = SOURCE.function(f"grad_rows<{CTYPES[dout.dtype.name]}, {width}>")
    lanes, collecting = collectors(layout.a, splits, THREADS)
    launched = layout.a * splits + (collecting if splits > 1 else 0)
    numbers = (np.int32(layout.a), np.int64(layout.length), np.int32(splits), np.int64(share), np.int32(lanes))
    arguments: tuple[Any, ...] = (dout, summed, other, *factors, *numbers, workspace)
    return lambda: function((launched,), (THREADS,), arguments)


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
    function = SOURCE.function(f"grad_crossed<{CTYPES[dout.dtype.name]}, {width}>")
    sizes = (*map(np.int32, (steps.length, rows.length, inner.c)), np.int64(steps.c), np.int64(rows.c))
    arguments = (dout, kept, walked, factors[over_steps], factors[1 - over_steps], *sizes)
    return lambda: function((across, outer.a), (THREADS,), arguments)


class _Gradient(NamedTuple):
    """A gradient to write: its buffer, its input's shape, and dout's factor: offset + sign weight."""

    out: Any
    shape: Shape
    offset: Any
    sign: Any


def _sum(dout: Any, tensor: Any, summed: Sequence[_Gradient], other: _Gradient | None, workspace: Any) -> Bound:
    """One launch for one or two gradients summed over the same axes, and optionally one that is not.

    workspace: bytes of `partial_places`, zero.
    """
    ctype, wide = CTYPES[dout.dtype.name], np.dtype(accumulating(dout))
    beside = None if other is None else other.out
    widest = whole_vector(dout, dout.size, tensor, beside)
    weight = () if tensor is None else tensor.shape
    plan = sum_plan(dout.shape, summed[0].shape, weight, widest, multiprocessors())
    announce(plan)
    places = partial_places(summed[0].out.size, len(summed), wide.itemsize)
    flags = f"{flag(plan.rows)}, {flag(plan.spread)}, {len(summed)}"
    function = SUMS.function(f"reduce_any<{ctype}, {plan.width}, {flags}>")
    kind = dtype_info(wide.name).ctype
    addresses = {name: address(workspace) + getattr(places, name) for name in ("splits", "groups", "arrivals")}
    partials = pack(PARTIALS[kind], addresses)
    outs = (summed[0].out, summed[1].out if len(summed) > 1 else None, beside)
    scaled = (summed[0], summed[-1], other or summed[0])
    factors = [pack(FACTORS[kind], {"offset": one.offset, "sign": one.sign}) for one in scaled]
    parts = (_part(plan.kept), _part(plan.summed))
    arguments = (dout, tensor, *outs, *factors, *parts, np.int32(plan.bits), partials)

    def run(_held: Any = workspace) -> None:  # the arguments contain its address alone
        function((plan.blocks, plan.splits), (SUM_THREADS,), arguments)

    return run


def _part(part: AxisGroup) -> Array:
    """`Part` struct of sums.cu."""
    strides = {"dout": strides_struct(part.dout), "weight": strides_struct(part.weight)}
    return pack(PART, {"axes": axes_struct(part.axes), "units": part.units, **strides})
