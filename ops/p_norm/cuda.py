"""p_norm and p_norm_grad on CUDA: one launch, the tensor read once and the gradient written once."""

from __future__ import annotations

from math import gcd, inf
from typing import Any

import numpy as np
from opgauge.ops._core.axes import Axis, MergedAxes, Reduction, as_reduction, merge_axes, normalize_axes, to_rows
from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.reduction.launch import (
    Functor,
    column_lanes,
    expressions,
    launch,
    layout_struct,
    workspace_bytes,
)
from opgauge.ops._cuda.reduction.plan import LINE_PACKS, MOST_LANES, OPTIONS, touched_packs
from opgauge.ops._cuda.source import Source, divisor, flag, multiprocessors, whole_pack

THREADS = 256
SWEEP_THREADS = 128
PAIRED = range(32 << 20, 96 << 20)
"""Bytes of x whose gradient along rows is written by threads of two packs, not one; never in float64."""
ACCUMULATOR_BYTES = 8
COUNT_BYTES = 8
MOST_SPLITS = 2048
LEAST_SHARE = 4 * THREADS
"""Elements of a row or column below which it is not shared."""
LEAST_ROWS = 4
LARGEST_GRID = 65_535
SHORT_HELD, ROW_HELD, PART_HELD = 2, 4, 4
"""Packs of 128 threads that take short rows, of 256 that take a row, or a part of one, as kernels.cu has it."""
COLUMNS_HELD, LEAST_HELD, MOST_HELD = 8, 4, 255
"""Of a block that holds columns: packs of a thread, at least where not of four, as fewer blocks are under way then; and
rows, whose ties are counted in bytes."""
SETTLERS, MOST_SETTLERS, LONGEST_SHARED = 2, 512, 1 << 32
"""Blocks for each multiprocessor that settle ties of rows in parts, and how many at most; elements of a longer row."""
EXTREME_RESIDENT = 4
"""Blocks that any multiprocessor holds at once where some wait for others."""
_GRAD_BLOCKS = declare(
    "p_norm_grad.blocks_per_multiprocessor",
    32,
    (8, 16, 32, 64, 128),
    backend="cuda",
    ops=("p_norm_grad",),
    why="blocks that walk a gradient along columns: the end of a wave against the cost of a block",
)
_SWEPT = declare(
    "p_norm_grad.swept_packs",
    1 << 11,
    (0, 1 << 9, 1 << 11, 1 << 13),
    backend="cuda",
    ops=("p_norm_grad",),
    why="packs along the last axis up to which one sweep is made: norms from the cache against fewer reads of them",
)
WIDTHS = {name: 16 // dtype_info(name).itemsize for name in FLOATS}
CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
MODES = {
    0.0: "COUNT",
    1.0: "ABS",
    1.5: "ROOT_3",
    2.0: "SQUARE",
    2.5: "ROOT_5",
    3.0: "CUBE",
    inf: "LARGEST",
    -inf: "SMALLEST",
}
LIGHT = ("ABS", "SQUARE", "CUBE", "LARGEST", "SMALLEST")
"""Modes that take an element in two or three instructions."""
SLOPES = {0.0: "FLAT", 1.0: "SIGN", 2.0: "LINEAR", 3.0: "QUADRATIC", 1.5: "ROOT", 2.5: "ROOT_CUBED"}


def _rows_kernel(width: int) -> str:
    return "grad_halves" if width == 8 else "grad_rows"


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for dtype, width in WIDTHS.items():
        ctype = CTYPES[dtype]
        for mode in (*MODES.values(), "POWER"):
            found += expressions(f"Norm<{ctype}, {mode}>", width, light=mode in LIGHT)
        for slope in (*SLOPES.values(), "GENERAL", "BELOW_ONE"):
            for name in (_rows_kernel(width), "grad_packs"):
                found += [f"{name}<{ctype}, {width}, {slope}, {packs}>" for packs in (1, 2)[: min(width // 2, 2)]]
            found.append(f"grad_sweep<{ctype}, {width}, {slope}>")
            found += [f"grad_columns<{ctype}, {wide}, {slope}>" for wide in (1, width)]
        for wide in (1, width):
            found += [f"grad_extreme_{kind}<{ctype}, {wide}>" for kind in ("rows", "row", "long", "columns")]
            found += [f"grad_extreme_parts<{ctype}, {wide}, {whole}>" for whole in ("true", "false")[:wide]]
        found.append(f"grad_extreme_held<{ctype}, {width}>")
        found += [f"{name}<{ctype}>" for name in ("grad_part", "grad_spread", "grad_fuse")]
    return tuple(found)


SOURCE = Source(
    __file__,
    "kernels.cu",
    _expressions(),
    (*OPTIONS, f"-DMOST_LANES={MOST_LANES}", f"-DEXTREME_RESIDENT={EXTREME_RESIDENT}"),
)


def _order(porder: float | str) -> float:
    return 2.0 if porder == "fro" else float(porder)


def _layout(shape: tuple[int, ...], axis: Axis) -> Reduction:
    return as_reduction(shape, normalize_axes(axis, len(shape)))


def _axes(shape: tuple[int, ...], axis: Axis) -> MergedAxes:
    return merge_axes(shape, normalize_axes(axis, len(shape)))


def _workspace(shapes: Shapes, params: Params) -> int:
    return workspace_bytes(_axes(shapes.inputs["x"].shape, params.axis), ACCUMULATOR_BYTES)


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
    functor = Functor(f"Norm<{CTYPES[dtype]}, {mode}>", WIDTHS[dtype], accumulator, value, mode in LIGHT)
    return launch(SOURCE, functor, _axes(x.shape, axis), x, None, y, workspace)


def _grad_workspace(shapes: Shapes, params: Params) -> int:
    x = shapes.inputs["x"]
    axes = _axes(x.shape, params.axis)
    layout = axes.two_groups()
    copies = 0
    if layout is None:
        layout = Reduction(axes.count, axes.length, 1, 1, 1)
        copies = 2 * _part_bytes(x.size * dtype_info(x.dtype).itemsize)
    return copies + (extreme_workspace_bytes(layout) if abs(_order(params.porder)) == inf else 0)


def extreme_workspace_bytes(layout: Reduction) -> int:
    """Room for ties of porder +-inf, by result, where blocks share one, and for which parts of a row have any."""
    if layout.b == layout.c == 1:
        words, parts = layout.count + max(layout.count, MOST_SETTLERS), _fewest_parts(layout.length + 1)
        return COUNT_BYTES * words + layout.count * parts if parts > 1 else 0
    return COUNT_BYTES * layout.count if _most_splits(layout) > 1 else 0


def _most_splits(layout: Reduction) -> int:
    """Blocks that may share a result whose ties are counted."""
    return max(1, min(MOST_SPLITS, (1 << 16) // max(layout.count, 1), layout.length // LEAST_SHARE))


@kernel("p_norm_grad", "optimized", "cuda", FLOATS, prepare=True, workspace=_grad_workspace)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """One read of x, one write of dx; y and dy come from the cache.

    porder +-inf returns to elements that tie for the norm, where there are several.
    """
    del keepdim
    dx = out["dx"]
    if x.size == 0:
        return lambda: None
    p, layout = _order(porder), _axes(x.shape, axis).two_groups()
    if layout is None:
        return _grad_by_rows(p, x, y, dy, normalize_axes(axis, x.ndim), dx, workspace)
    if abs(p) == inf:
        return _extreme(layout, x, y, dy, dx, workspace)
    return _gradient(p, layout, x, y, dy, dx)


def _grad_by_rows(p: float, x: Any, y: Any, dy: Any, axes: tuple[int, ...], dx: Any, workspace: Any) -> Bound:
    """More than two groups of axes: through copies, in the workspace, in which they are rows."""
    room, shape = _part_bytes(x.nbytes), to_rows(x, axes).shape
    source, target = (workspace[at : at + x.nbytes].view(x.dtype).reshape(shape) for at in (0, room))
    layout = Reduction(y.size, x.size // y.size, 1, 1, 1)
    arrays = (source, y, dy, target)
    rows = _extreme(layout, *arrays, workspace[2 * room :]) if abs(p) == inf else _gradient(p, layout, *arrays)

    def run() -> None:
        source[...] = to_rows(x, axes)
        rows()
        to_rows(dx, axes)[...] = target

    return run


def _gradient(p: float, layout: Reduction, x: Any, y: Any, dy: Any, dx: Any) -> Bound:
    ctype, width = CTYPES[x.dtype.name], WIDTHS[x.dtype.name]
    slope = SLOPES.get(p, "GENERAL" if p > 1 else "BELOW_ONE")
    q = dtype_info(dtype_info(x.dtype.name).accumulate).numpy.type(p - 1)
    arrays = (x, y, dy, dx)
    shift = _shift(x, dx)
    if layout.b == layout.c == 1 and shift is not None and x.size < (1 << 31) - (1 << 20):
        packs = 2 if width > 2 and x.nbytes in PAIRED else 1
        blocks = max(1, -(-(x.size + shift) // (width * packs * SWEEP_THREADS)))
        name = _rows_kernel(width)
        numbers: tuple[Any, ...] = (q, np.int32(x.size), np.int32(shift), divisor(layout.length))
        if shift == layout.length % width == 0:
            name, numbers = "grad_packs", (q, np.uint32(x.size // width), divisor(layout.length // width))
        function = SOURCE.function(f"{name}<{ctype}, {width}, {slope}, {packs}>")
        return lambda: function((blocks,), (SWEEP_THREADS,), (*arrays, *numbers))
    swept = layout.r2 == 1 and x.size < width << 31 and _SWEPT.covers(layout.c // width)
    if swept and whole_pack(x, layout.c, *arrays) == width:
        function = SOURCE.function(f"grad_sweep<{ctype}, {width}, {slope}>")
        size = x.size // width
        rest = (q, np.uint32(size), divisor(layout.c // width), divisor(layout.r1))
        return lambda: function((-(-size // SWEEP_THREADS),), (SWEEP_THREADS,), (*arrays, *rest))
    target = _GRAD_BLOCKS.value() * multiprocessors()
    pack, grid, block, struct = _columns(layout, arrays, layout.length, target)
    function = SOURCE.function(f"grad_columns<{ctype}, {pack}, {slope}>")
    return lambda: function(grid, block, (*arrays, q, struct))


def _shift(x: Any, dx: Any) -> int | None:
    """Elements that x and dx lie past an address that is a multiple of 16; None where they differ in that."""
    return None if (x.data.ptr - dx.data.ptr) % 16 else x.data.ptr % 16 // x.dtype.itemsize


def _columns(
    layout: Reduction, arrays: tuple[Any, ...], most: int, target: int
) -> tuple[int, tuple[int, int], tuple[int, int], Any]:
    """Elements of a pack, grid, block and Layout of a kernel that walks along columns.

    `most` blocks share one, and no more than `target` there are where any do.
    """
    x = arrays[0]
    pack = whole_pack(x, layout.c, *arrays)
    lanes, across = column_lanes(layout.c, pack)
    rows = THREADS // lanes
    outer = layout.a * layout.b * across
    splits = max(1, min(most, target // outer, layout.length // (LEAST_ROWS * rows), LARGEST_GRID))
    return pack, (outer, splits), (lanes, rows), layout_struct(layout, splits, across)


def _extreme(layout: Reduction, x: Any, y: Any, dy: Any, dx: Any, workspace: Any) -> Bound:
    arrays = (x, y, dy, dx)
    if layout.b == layout.c == 1:
        return _extreme_rows(layout, arrays, workspace)
    pack, grid, block, struct = _columns(layout, arrays, _most_splits(layout), _resident())
    width, rows = WIDTHS[x.dtype.name], block[1]
    least = 1 if width == 4 else LEAST_HELD * rows
    if layout.r2 == 1 and pack == width and least <= layout.length <= min(COLUMNS_HELD * rows, MOST_HELD):
        function = SOURCE.function(f"grad_extreme_held<{CTYPES[x.dtype.name]}, {pack}>")
        return lambda: function(grid, block, (*arrays, struct))
    function = SOURCE.function(f"grad_extreme_columns<{CTYPES[x.dtype.name]}, {pack}>")
    return lambda: function(grid, block, (*arrays, struct, workspace))


def _extreme_rows(layout: Reduction, arrays: tuple[Any, ...], workspace: Any) -> Bound:
    x, dx = arrays[0], arrays[3]
    rows, length, found = layout.a, layout.length, _shift(x, dx)
    width, shift = WIDTHS[x.dtype.name], found
    if shift is None or length < width:
        width, shift = 1, 0
    ctype, packs = CTYPES[x.dtype.name], -(-length // width)
    if packs <= SWEEP_THREADS:
        most = min(SWEEP_THREADS, (SHORT_HELD * SWEEP_THREADS - 1) * width // length)
        filling = width // gcd(length, width)  # rows that together fill packs
        most = most // filling * filling or most
        function = SOURCE.function(f"grad_extreme_rows<{ctype}, {width}>")
        numbers: tuple[Any, ...] = (np.int64(rows), np.int32(most), np.int32(shift), divisor(length))
        return lambda: function((-(-rows // most),), (SWEEP_THREADS,), (*arrays, *numbers))
    most = touched_packs(rows, length, width, shift)
    if most > PART_HELD * THREADS and rows < _resident() and length < LONGEST_SHARED:
        share, parts = _parts(most)
        settlers = max(1, min(parts, min(SETTLERS * multiprocessors(), MOST_SETTLERS) // rows))
        whole = flag(shift == length % width == 0)
        function = SOURCE.function(f"grad_extreme_parts<{ctype}, {width}, {whole}>")
        blocks, waiting = rows * parts, rows * settlers
        sizes = (
            np.int64(length),
            np.int32(shift),
            np.int32(share),
            np.uint32(blocks),
            divisor(parts),
            divisor(settlers),
        )
        words = rows * COUNT_BYTES, (rows + waiting) * COUNT_BYTES
        mail = (workspace[: words[0]], workspace[words[0] : words[1]], workspace[words[1] :])
        return lambda: function((blocks + waiting,), (THREADS,), (*arrays, *sizes, *mail))
    name, number = ("row", np.int32) if most <= ROW_HELD * THREADS else ("long", np.int64)
    function = SOURCE.function(f"grad_extreme_{name}<{ctype}, {width}>")
    return lambda: function((rows,), (THREADS,), (*arrays, number(length), np.int32(shift)))


def _parts(packs: int) -> tuple[int, int]:
    """Packs of a part, whole lines, and parts of a row of so many."""
    share = -(-packs // (_fewest_parts(packs) * LINE_PACKS)) * LINE_PACKS
    return share, -(-packs // share)


def _fewest_parts(packs: int) -> int:
    """Parts that as many threads as a block has can hold; `_parts` gives no more of them."""
    return -(-packs // (PART_HELD * THREADS))


def _resident() -> int:
    return EXTREME_RESIDENT * multiprocessors()


def _three_workspace(shapes: Shapes, params: Params) -> int:
    dtype = shapes.inputs["x"].dtype
    if abs(_order(params.porder)) == inf or params.porder == 0:
        return _grad_workspace(shapes, params)
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
    p, dtype = _order(porder), x.dtype.name
    if abs(p) == inf or p == 0:
        return p_norm_grad(x=x, y=y, dy=dy, porder=porder, axis=axis, keepdim=False, out=out, workspace=workspace)
    wide = dtype_info(dtype_info(dtype).accumulate).numpy
    layout = _layout(x.shape, axis)
    q, part = wide.type(p - 1), workspace
    spread = workspace[_part_bytes(y.size * wide.itemsize) :]
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
