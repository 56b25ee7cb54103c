"""lerp and lerp_grad on CUDA: nothing is spread out in memory, at most one launch for each gradient that is summed."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from opgauge.ops._core.axes import as_reduction
from opgauge.ops._core.broadcast import Walk, reduced_axes, walk
from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shape, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.pointwise import THREADS, axes_struct, blocks, flat, kept_blocks, strides_struct
from opgauge.ops._cuda.reduction import LONG_RESIDENT, collectors
from opgauge.ops._cuda.source import Source, flag, multiprocessors, whole_pack

WARP = 32
MOST_SPLITS = 1024
UNDER_WAY = 4
"""Packs that a thread which sums loads at a time."""
_BLOCKS = declare(
    "lerp_grad.blocks_per_multiprocessor",
    4,
    (2, 4, 8, 16),
    backend="cuda",
    ops=("lerp_grad",),
    why="blocks that share sums along columns: bandwidth against partial sums",
)
_LARGE = declare(
    "lerp.large_blocks_megabytes",
    256,
    (0, 64, 128, 256, 512),
    backend="cuda",
    ops=("lerp",),
    why="megabytes of a result from which on, with a tensor of weights, blocks are large and keep less in the cache",
)
CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
WIDTHS = {name: 16 // dtype_info(name).itemsize for name in FLOATS}
WALKED = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 2}
"""Packs of a thread that finds its operands by index arithmetic."""
FLAGS = ("false", "true")
STEPS, NO_TENSOR = ((1, 1), (0, 1), (1, 0)), -1
"""Of x and y along a row: 0 where all of it is one element. Of a weight that is a number."""
CROSSED_ROWS = range(17, 65)
"""Of two axes that are summed, the length of the shorter: loads of a warp at a time, and sums that it keeps."""
LARGE_THREADS = 1024
"""Of a block where long tensors are mixed by one of weights."""
MOST_ROWS = 65_535
"""Blocks along a grid's second axis, or its third."""


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for name, ctype in CTYPES.items():
        for width in (1, WIDTHS[name]):
            found += [f"{kind}<{ctype}, {width}>" for kind in ("grad_rows", "grad_columns")]
            found.append(f"lerp_broadcast<{ctype}, {width}, {WALKED[name]}>")
            found += [f"lerp_flat<{ctype}, {width}, {tensor}, ANY, {THREADS}>" for tensor in FLAGS]
            flags = (f"{tensor}, {subtract}" for tensor in FLAGS for subtract in FLAGS)
            found += [f"grad_flat<{ctype}, {width}, {both}>" for both in flags]
        found += [
            f"lerp_rows<{ctype}, {WIDTHS[name]}, {x_step}, {y_step}, {step}>"
            for x_step, y_step in STEPS
            for step in (NO_TENSOR, 0, 1)
        ]
        found.append(f"grad_crossed<{ctype}, {WIDTHS[name]}>")
        found += [f"lerp_flat<{ctype}, {WIDTHS[name]}, {tensor}, LARGE, {THREADS}>" for tensor in FLAGS]
        found.append(f"lerp_flat<{ctype}, {WIDTHS[name]}, true, LARGE, {LARGE_THREADS}>")
        found += [f"grad_broadcast<{ctype}>", f"grad_any<{ctype}>"]
    return tuple(found)


SOURCE = Source(__file__, "kernels.cu", _expressions())


def _wide(x: Any) -> Any:
    return dtype_info(dtype_info(x.dtype.name).accumulate).numpy.type


def _flag(tensor: Any) -> str:
    """Whether the weight is a tensor, in C++."""
    return flag(tensor is not None)


def _split_weight(weight: Any, wide: Any) -> tuple[Any, Any]:
    """The weight as (tensor or None, number)."""
    return (None, wide(weight)) if isinstance(weight, float | int) else (weight, wide(0))


@kernel("lerp", "optimized", "cuda", FLOATS, prepare=True)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """One launch: flat where the shapes agree, by index arithmetic elsewhere."""
    result = out["out"]
    wide, ctype = _wide(x), CTYPES[x.dtype.name]
    tensor, number = _split_weight(weight, wide)
    operands = (x, y, tensor, result)
    if x.shape == y.shape and (tensor is None or tensor.shape == x.shape):
        width = whole_pack(x, result.size, *operands)
        wide_packs = width == WIDTHS[x.dtype.name]
        large = tensor is not None and wide_packs and result.nbytes >= _LARGE.value() << 20
        threads = LARGE_THREADS if large else THREADS
        kept = kept_blocks(result.nbytes) if wide_packs else 0
        extent = "LARGE" if large or kept else "ANY"
        grid, block = flat(result.size, width, threads)
        function = SOURCE.function(f"lerp_flat<{ctype}, {width}, {_flag(tensor)}, {extent}, {threads}>")
        arguments = (*operands, number, np.int64(result.size // width), np.uint32(kept))
        return lambda: function(grid, block, arguments)
    steps = walk(result.shape, x.shape, y.shape, () if tensor is None else tensor.shape)
    simple = all(strides[-1] in {0, 1} for strides in steps.strides)
    width = whole_pack(x, steps.lengths[-1], *operands, *_row_strides(steps.strides)) if simple else 1
    if width > 1 and _long_rows(steps.lengths, width):
        rows = _blend_rows(operands, number, steps, width)
        if rows is not None:
            return rows
    packs = WALKED[x.dtype.name]
    function = SOURCE.function(f"lerp_broadcast<{ctype}, {width}, {packs}>")
    strides = tuple(strides_struct(item) for item in steps.strides)
    numbers = (number, np.uint32(result.size // width), axes_struct(steps), *strides)
    grid = (blocks(result.size, width, packs),)
    return lambda: function(grid, (THREADS,), (*operands, *numbers))


def _long_rows(lengths: Shape, width: int) -> bool:
    """Two axes, and rows that a block or more can take."""
    return len(lengths) == 2 and lengths[0] <= MOST_ROWS and lengths[1] >= width * THREADS


def _blend_rows(operands: tuple[Any, ...], number: Any, steps: Walk, width: int) -> Bound | None:
    """Two axes: rows need no division. None where both x and y are one element along a row."""
    rows, length = steps.lengths
    (across,), block = flat(length, width)
    (x_row, x_step), (y_row, y_step), (weight_row, weight_step) = steps.strides[:3]
    if (x_step, y_step) not in STEPS:
        return None
    if operands[2] is None:
        weight_step = NO_TENSOR
    ctype = CTYPES[operands[0].dtype.name]
    function = SOURCE.function(f"lerp_rows<{ctype}, {width}, {x_step}, {y_step}, {weight_step}>")
    numbers = (np.int64(length // width), *(np.int64(row) for row in (x_row, y_row, weight_row)))
    return lambda: function((across, rows), block, (*operands, number, *numbers))


def _row_strides(strides: tuple[Shape, ...]) -> tuple[int, ...]:
    """Strides past the innermost, of operands contiguous along it: each must keep packs aligned."""
    return tuple(stride for item in strides if item[-1] == 1 for stride in item[:-1])


def _workspace(shapes: Shapes, params: Params) -> int:
    """What blocks that share a summed gradient send each other: two words of 64 bits a number at most."""
    del params
    sizes = (spec.size for spec in shapes.outputs.values() if spec.shape != shapes.inputs["dout"].shape)
    return max((16 * size * _splits(size) for size in sizes), default=0)


def _splits(size: int) -> int:
    """Most blocks that share one result."""
    return max(1, min(MOST_SPLITS, (1 << 18) // max(size, 1)))


@kernel("lerp_grad", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def lerp_grad(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """Same shapes: one launch. One gradient summed: one launch where the weight is a number. Else one launch each."""
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
    note="dX = dout - weight dout in one kernel; as the optimized one wherever something is summed",
)
def lerp_grad_subtract(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """The design document's plan, fused into the one elementwise kernel that it asks for."""
    del need_x, need_y
    return _gradient(x.shape, y.shape, dout, weight, out, workspace, subtract=True)


def _gradient(
    x: Shape, y: Shape, dout: Any, weight: Any, out: dict[str, Any], workspace: Any, *, subtract: bool
) -> Bound:
    dx, dy = out.get("dx"), out.get("dy")
    wide = _wide(dout)
    sums = [gradient is not None and bool(reduced_axes(shape, dout.shape)) for gradient, shape in ((dx, x), (dy, y))]
    if not any(sums):
        return _unsummed(dout, weight, dx, dy, subtract=subtract)
    tensor = None if isinstance(weight, float | int) else weight
    if tensor is None:
        fused = _summed(x, y, dout, weight, (dx, dy), sums, workspace)
        if fused is not None:
            return fused
    steps_to_run = []
    for gradient, shape, sign, offset in ((dx, x, -1, 1), (dy, y, 1, 0)):
        if gradient is None:
            continue
        factor = wide(offset + sign * weight) if tensor is None else wide(0)
        alone = None
        if tensor is None and all(sums):
            alone = _fused(dout, gradient, None, shape, (factor, factor), workspace)
        share = (wide(0), factor) if tensor is None else (wide(sign), wide(offset))
        steps_to_run.append(alone or _sum_any(dout, tensor, gradient, shape, share))

    def run() -> None:
        for step in steps_to_run:
            step()

    return run


def _summed(
    x: Shape, y: Shape, dout: Any, weight: float, gradients: tuple[Any, Any], sums: list[bool], workspace: Any
) -> Bound | None:
    """One launch, the weight a number; None where the axes do not allow it."""
    wide = _wide(dout)
    factors = (wide(1 - weight), wide(weight))
    if all(sums):
        return _crossed(dout, gradients, (x, y), factors)
    if sums[0]:
        return _fused(dout, *gradients, x, factors, workspace)
    return _fused(dout, *gradients[::-1], y, factors[::-1], workspace)


def _unsummed(dout: Any, weight: Any, dx: Any, dy: Any, *, subtract: bool) -> Bound:
    """Gradients of dout's shape."""
    wide, ctype = _wide(dout), CTYPES[dout.dtype.name]
    tensor, number = _split_weight(weight, wide)
    if tensor is None or tensor.shape == dout.shape:
        width = whole_pack(dout, dout.size, tensor, dx, dy)
        grid, block = flat(dout.size, width)
        flags = f"{_flag(tensor)}, {flag(subtract)}"
        function = SOURCE.function(f"grad_flat<{ctype}, {width}, {flags}>")
        rest = wide(1 - weight) if tensor is None else wide(0)
        arguments: tuple[Any, ...] = (dout, tensor, dx, dy, number, rest, np.int64(dout.size // width))
        return lambda: function(grid, block, arguments)
    steps = walk(dout.shape, tensor.shape)
    function, grid = SOURCE.function(f"grad_broadcast<{ctype}>"), (blocks(dout.size, 1),)
    walked = (axes_struct(steps), strides_struct(steps.strides[0]))
    arguments = (dout, tensor, dx, dy, np.uint32(dout.size), *walked)
    return lambda: function(grid, (THREADS,), arguments)


def _waiting() -> int:
    """Blocks that wait for others must be fewer: one for each sum, or each column block's."""
    return LONG_RESIDENT * multiprocessors()


def _fused(dout: Any, summed: Any, other: Any, shape: Shape, factors: tuple[Any, Any], workspace: Any) -> Bound | None:
    """One gradient summed over adjacent axes, the other written beside it unless None; None elsewhere."""
    try:
        layout = as_reduction(dout.shape, reduced_axes(shape, dout.shape))
    except AxisError:
        return None
    if layout.b != 1:
        return None
    ctype = CTYPES[dout.dtype.name]
    if layout.c == 1:
        width = whole_pack(dout, layout.length, other)
        packs = layout.length // width
        most = _splits(summed.size) if layout.a < _waiting() else 1
        share = -(-packs // min(most, -(-packs // (THREADS * UNDER_WAY))))
        splits = -(-packs // share)
        function = SOURCE.function(f"grad_rows<{ctype}, {width}>")
        lanes, collecting = collectors(layout.a, splits, THREADS)
        launched = layout.a * splits + (collecting if splits > 1 else 0)
        numbers = (np.int32(layout.a), np.int64(layout.length), np.int32(splits), np.int64(share), np.int32(lanes))
        arguments: tuple[Any, ...] = (dout, summed, other, *factors, *numbers, workspace)
        return lambda: function((launched,), (THREADS,), arguments)
    if layout.a > MOST_ROWS:
        return None
    width = whole_pack(dout, layout.c, other)
    packs = -(-layout.c // width)
    lanes = 1
    while lanes < WARP and lanes < packs:
        lanes *= 2
    across, rows = -(-packs // lanes), THREADS // lanes
    room = _BLOCKS.value() * multiprocessors() // (across * layout.a) if across * layout.a < _waiting() else 1
    splits = max(1, min(_splits(summed.size), room, -(-layout.length // rows)))
    function = SOURCE.function(f"grad_columns<{ctype}, {width}>")
    grid, sizes = (across, splits, layout.a), (np.int32(layout.length), np.int32(layout.c))
    return lambda: function(grid, (lanes, rows), (dout, summed, other, *factors, *sizes, workspace))


def _crossed(
    dout: Any, gradients: tuple[Any, Any], shapes: tuple[Shape, Shape], factors: tuple[Any, Any]
) -> Bound | None:
    """Both gradients summed, over two adjacent axes: dout is read once, in one launch; None elsewhere."""
    try:
        layouts = [as_reduction(dout.shape, reduced_axes(shape, dout.shape)) for shape in shapes]
    except AxisError:
        return None
    outer, inner = sorted(layouts, key=lambda layout: layout.a)
    apart = outer.a * outer.length != inner.a or outer.c != inner.length * inner.c
    width = whole_pack(dout, inner.c, *gradients)
    across = -(-inner.c // (width * WARP))
    # one gradient is summed over the steps and has the rows, the other the other way round
    rows, steps = sorted(layouts, key=lambda layout: layout.length)
    if apart or width == 1 or rows.length not in CROSSED_ROWS or across * outer.a < multiprocessors():
        return None
    over_steps = layouts.index(steps)
    kept, walked = gradients[over_steps], gradients[1 - over_steps]
    function = SOURCE.function(f"grad_crossed<{CTYPES[dout.dtype.name]}, {width}>")
    sizes = (*map(np.int32, (steps.length, rows.length, inner.c)), np.int64(steps.c), np.int64(rows.c))
    arguments = (dout, kept, walked, factors[over_steps], factors[1 - over_steps], *sizes)
    return lambda: function((across, outer.a), (THREADS,), arguments)


def _sum_any(dout: Any, tensor: Any, gradient: Any, shape: Shape, share: tuple[Any, Any]) -> Bound:
    """One gradient by the general kernel: a block for each of its elements.

    share: what the weight is multiplied by, and what is added, for the factor of dout; without a tensor, the second.
    """
    full = dout.shape
    axes = reduced_axes(shape, full)
    weight = () if tensor is None else tensor.shape
    kept_shape = tuple(1 if axis in axes else length for axis, length in enumerate(full))
    summed_shape = tuple(length if axis in axes else 1 for axis, length in enumerate(full))
    kept = _walk_part(full, weight, kept_shape)
    summed = _walk_part(full, weight, summed_shape)
    function = SOURCE.function(f"grad_any<{CTYPES[dout.dtype.name]}>")
    arguments = (dout, tensor, gradient, *share, *kept, *summed, np.uint32(prod(summed_shape)))
    return lambda: function((gradient.size,), (THREADS,), arguments)


def _walk_part(full: Shape, weight: Shape, part: Shape) -> tuple[Any, Any, Any]:
    """Axes of `part`, a shape equal to `full` or 1 along each axis, with its strides in dout and in weight."""
    padded = (1,) * (len(full) - len(weight)) + tuple(weight)
    strides_dout, strides_weight, step_dout, step_weight = [], [], 1, 1
    for length, own in zip(reversed(full), reversed(padded), strict=True):
        strides_dout.append(step_dout)
        strides_weight.append(0 if own == 1 else step_weight)
        step_dout *= length
        step_weight *= own
    return (
        axes_struct(Walk(tuple(part) or (1,), ())),
        strides_struct(tuple(reversed(strides_dout))),
        strides_struct(tuple(reversed(strides_weight))),
    )
