"""p_norm and p_norm_grad on CUDA: one launch, the tensor read once and the gradient written once."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ops._core.axes import Axis, Reduction, as_reduction, normalize_axes
from ops._core.cuda import Source, divisor, multiprocessors, widest_pack
from ops._core.dtype import FLOATS, dtype_info
from ops._core.kernel import Bound
from ops._core.op import Params, Shapes
from ops._core.reduction import Functor, expressions, lanes_for, launch, layout_struct, workspace_bytes
from ops._core.registry import kernel
from ops._core.tuning import declare

THREADS = 256
ACCUMULATOR_BYTES = 8
WARP = 32
_GRAD_BLOCKS = declare(
    "p_norm_grad.blocks_per_multiprocessor",
    32,
    (8, 16, 32, 64, 128),
    backend="cuda",
    ops=("p_norm_grad",),
    why="blocks that walk a gradient along columns: the end of a wave against the cost of a block",
)
_PACKS_PER_LANE = declare(
    "p_norm_grad.packs_per_lane",
    4,
    (1, 2, 4, 8),
    backend="cuda",
    ops=("p_norm_grad",),
    why="packs that a lane holds before a row of porder +-inf gets more lanes: rows a block against registers",
)
_WARP_ROW = declare(
    "p_norm_grad.warp_row_packs",
    WARP * WARP,
    (WARP * WARP // 4, WARP * WARP // 2, WARP * WARP, WARP * WARP * 2, WARP * WARP * 4),
    backend="cuda",
    ops=("p_norm_grad",),
    why="packs up to which a row of porder +-inf is one warp's: longer ones are a block's",
)
WIDTHS = {name: 16 // dtype_info(name).itemsize for name in FLOATS}
CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
MODES = {0.0: "COUNT", 1.0: "ABS", 2.0: "SQUARE", 3.0: "CUBE", inf: "LARGEST", -inf: "SMALLEST"}
SLOPES = {0.0: "FLAT", 1.0: "SIGN", 2.0: "LINEAR", 3.0: "QUADRATIC", 1.5: "ROOT", 2.5: "ROOT_CUBED"}


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for dtype, width in WIDTHS.items():
        ctype = CTYPES[dtype]
        for mode in (*MODES.values(), "POWER"):
            found += expressions(f"Norm<{ctype}, {mode}>", width)
        for slope in (*SLOPES.values(), "GENERAL", "BELOW_ONE"):
            found.append(f"grad_rows<{ctype}, {width}, {slope}>")
            found += [f"grad_columns<{ctype}, {wide}, {slope}>" for wide in (1, width)]
        found += [f"grad_extreme_rows<{ctype}, {wide}>" for wide in _powers(width)]
        found += [f"{name}<{ctype}>" for name in ("grad_extreme_columns", "grad_part", "grad_spread", "grad_fuse")]
    return tuple(found)


def _powers(width: int) -> tuple[int, ...]:
    return tuple(1 << bit for bit in range(width.bit_length()))


SOURCE = Source(__file__, "kernels.cu", _expressions())


def _order(porder: float | str) -> float:
    return 2.0 if porder == "fro" else float(porder)


def _layout(shape: tuple[int, ...], axis: Axis) -> Reduction:
    return as_reduction(shape, normalize_axes(axis, len(shape)))


def _workspace(shapes: Shapes, params: Params) -> int:
    return workspace_bytes(_layout(shapes.inputs["x"].shape, params.axis), ACCUMULATOR_BYTES)


@kernel("p_norm", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def p_norm(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any) -> Bound:
    """One read of x. Sums of 16-bit floats are float32; the count of porder 0 is exact."""
    del keepdim
    y = out["y"]
    if x.size == 0:
        return lambda: y.fill(0)
    p, dtype = _order(porder), x.dtype.name
    wide = dtype_info(dtype_info(dtype).accumulate).numpy
    mode = MODES.get(p, "POWER")
    accumulator = ACCUMULATOR_BYTES if mode == "COUNT" else wide.itemsize
    value = np.array((p, 1 / p if p else 0.0), [("p", wide), ("inverse", wide)])
    functor = Functor(f"Norm<{CTYPES[dtype]}, {mode}>", WIDTHS[dtype], accumulator, value)
    return launch(SOURCE, functor, _layout(x.shape, axis), x, None, y, workspace)


@kernel("p_norm_grad", "optimized", "cuda", FLOATS, prepare=True)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> Bound:
    """One read of x, one write of dx; y and dy come from the cache. porder +-inf reads a long row twice."""
    del keepdim
    dx = out["dx"]
    if x.size == 0:
        return lambda: None
    p, layout = _order(porder), _layout(x.shape, axis)
    if abs(p) == inf:
        return _extreme(layout, x, y, dy, dx)
    dtype = x.dtype.name
    width, wide = WIDTHS[dtype], dtype_info(dtype_info(dtype).accumulate).numpy
    slope = SLOPES.get(p, "GENERAL" if p > 1 else "BELOW_ONE")
    arrays = (x, y, dy, dx)
    q = wide.type(p - 1)
    same = (x.data.ptr - dx.data.ptr) % 16 == 0
    if layout.b == layout.c == 1 and same and x.size < (1 << 31) - (1 << 20):
        shift = x.data.ptr % 16 // x.dtype.itemsize
        function = SOURCE.function(f"grad_rows<{CTYPES[dtype]}, {width}, {slope}>")
        grid = (max(1, -(-(x.size + shift) // (width * THREADS))),)
        arguments: tuple[Any, ...] = (*arrays, q, np.int32(x.size), np.int32(shift), divisor(layout.length))
    else:
        pack = width if widest_pack(x.dtype.itemsize, layout.c, *arrays) == width else 1
        function = SOURCE.function(f"grad_columns<{CTYPES[dtype]}, {pack}, {slope}>")
        grid = (max(1, _GRAD_BLOCKS.cap(-(-x.size // (pack * THREADS)), multiprocessors())),)
        arguments = (*arrays, q, layout_struct(layout))
    return lambda: function(grid, (THREADS,), arguments)


def _extreme(layout: Reduction, x: Any, y: Any, dy: Any, dx: Any) -> Bound:
    ctype = CTYPES[x.dtype.name]
    arrays = (x, y, dy, dx)
    if layout.b == layout.c == 1:
        rows, length = layout.a, layout.length
        width = widest_pack(x.dtype.itemsize, length, x, dx)
        packs = length // width
        lanes = lanes_for(_PACKS_PER_LANE, packs) if _WARP_ROW.covers(packs) else THREADS
        function = SOURCE.function(f"grad_extreme_rows<{ctype}, {width}>")
        grid: tuple[int, ...] = (-(-rows * lanes // THREADS),)
        block: tuple[int, ...] = (THREADS,)
        arguments: tuple[Any, ...] = (*arrays, np.int64(rows), np.int64(length), np.int32(lanes))
    else:
        function = SOURCE.function(f"grad_extreme_columns<{ctype}>")
        grid, block = (-(-layout.c // WARP), layout.a * layout.b), (WARP, THREADS // WARP)
        arguments = (*arrays, layout_struct(layout))
    return lambda: function(grid, block, arguments)


def _three_workspace(shapes: Shapes, params: Params) -> int:
    del params
    dtype = shapes.inputs["x"].dtype
    itemsize = dtype_info(dtype_info(dtype).accumulate).itemsize
    return _part_bytes(shapes.inputs["y"].size * itemsize) + shapes.inputs["x"].size * itemsize


def _part_bytes(size: int) -> int:
    return -(-size // 256) * 256


@kernel(
    "p_norm_grad",
    "three_kernel",
    "cuda",
    FLOATS,
    prepare=True,
    workspace=_three_workspace,
    relaxed=64.0,
    note="the design document's plan: |x|^(p-1) and y^-(p-1) apart, which overflow where their product does not",
)
def p_norm_grad_three_kernel(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """Part on the reduced shape, part spread over the whole, one elementwise kernel: 4N of traffic, finite porder."""
    del keepdim
    dx = out["dx"]
    if x.size == 0:
        return lambda: None
    p, layout, dtype = _order(porder), _layout(x.shape, axis), x.dtype.name
    if abs(p) == inf or p == 0:
        return p_norm_grad(x=x, y=y, dy=dy, porder=porder, axis=axis, keepdim=False, out=out)
    wide = dtype_info(dtype_info(dtype).accumulate).numpy
    q, part = wide.type(p - 1), workspace
    spread = workspace[_part_bytes(y.size * wide.itemsize) :]
    launches = []
    for name, size, arguments in (
        ("grad_part", y.size, (y, dy, part, q, np.int64(y.size))),
        ("grad_spread", x.size, (part, spread, layout_struct(layout), np.int64(x.size))),
        ("grad_fuse", x.size, (x, spread, dx, q, np.int64(x.size))),
    ):
        launches.append((SOURCE.function(f"{name}<{CTYPES[dtype]}>"), (-(-size // THREADS),), arguments))

    def run() -> None:
        for function, grid, arguments in launches:
            function(grid, (THREADS,), arguments)

    return run
