"""p_norm_grad on CUDA: one launch, the tensor read once and the gradient written once."""

from __future__ import annotations

from math import gcd, inf
from typing import Any

import numpy as np

from opgauge.ops._core.axes import Axis, MergedAxes, Reduction, normalize_axes, reduced_shape, to_rows
from opgauge.ops._core.broadcast import merge_operands
from opgauge.ops._core.dtype import FLOATS, accumulating, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Params, Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.pointwise import SINGLE_THREADS, one_per_thread
from opgauge.ops._cuda.reduction.elements import DIGITS, pack_digits
from opgauge.ops._cuda.reduction.launch import (
    column_lanes,
    layout_struct,
)
from opgauge.ops._cuda.reduction.problem import HALF_BYTES, LARGEST, LINE_VECTORS, touched_vectors
from opgauge.ops._cuda.source import flag, multiprocessors
from opgauge.ops._cuda.struct import divisor
from opgauge.ops._cuda.vectors import whole_vector
from opgauge.ops.p_norm.cuda import axes_of, order_of
from opgauge.ops.p_norm.cuda_source import (
    APART_EACH,
    COLUMNS_EACH,
    CTYPES,
    GRAD_MODES,
    INF_RESIDENT,
    MINIMUM_EACH,
    MOST_COUNTED,
    PART_EACH,
    ROW_THREADS,
    SHORT_EACH,
    SOURCE,
    THREADS,
    WIDTHS,
    rows_kernel,
)

PAIRED = range(32 << 20, 96 << 20)
"""Bytes of x for which threads of a row gradient take two vectors, not one; never in float64."""
COUNT_BYTES, MOST_SPLITS = 8, 2048
LEAST_SHARE = 4 * THREADS
"""Minimum elements of a row or column that several blocks share."""
LEAST_ROWS, FEWEST_ROWS, FEWEST_UP_TO = 4, 2, 1 << 21
"""Minimum rows of a thread that follows columns, and for up to so many 16-bit elements: 5 to 11 % less from cache."""
LARGEST_GRID = 65_535
INF_BLOCKS = 4
"""Blocks per multiprocessor up to which a block has fewer short rows, one warp's at least."""
FIXUPS, MOST_FIXUPS, LONGEST_SHARED = 2, 512, 1 << 32
"""Fix-up blocks per multiprocessor for ties of split rows, and their maximum; maximum elements of a split row."""
_GRAD_BLOCKS, _SHORT_COLUMNS = 32, 1 << 11
"""Blocks per multiprocessor that traverse a gradient along columns; maximum vectors along the last axis for one pass,
with norms from cache. Two and four times as many are as fast on an H200."""
_REUSED_FROM = 1 << 20
"""16-bit elements from which a thread reuses the factors of its eight columns, each a quotient or a root, for several
rows: an H200 took 4.0 us, not 5.3, for 4096 x 1024 at porder 2, and 54, not 61, for 200000 x 256 from memory."""
_SPLIT, _FOLLOWED = 1 << 18, range(8 << 20, 20 << 20)
"""Elements up to which those of a vector have a norm each, if no vectors divide the columns, and bytes of x for which
columns are followed instead in 4-byte types: they are in L2, and have 0.8 to 0.97 of the hot time."""
_SHORT_ROW, _SHORT_BYTES = 16, 4
"""Maximum elements of a row that each of its threads reads, to count ties, and, of elements of so many bytes or more,
whose vectors find a norm for each element: 400000 rows of 3 take 3.30 us, not 3.70."""
_APART_COLUMNS = 1 << 8
"""Minimum elements of rows that are traversed as columns where x and dx share no vectors: rows of 1000 take 0.6 of the
time, rows of 100 take 1.7."""
_FEW, _FEW_IN_ROWS = 1 << 16, 200_000
"""Elements up to which a thread computes one, unless rows are whole vectors, and those of rows for finite porder: 50
norms of one element took 1.68 us, not 0.90, as threads waited for one norm after another; 286 rows of 250 take 1.25,
not 1.49."""
_FEW_TIED, _ROWS_AT_ONCE = 1 << 18, 8
"""Elements of at most 4 bytes, and rows per multiprocessor, up to which a row of +-inf has a block whose threads read
single elements: 500 rows of 250 in bfloat16 take 1.61 us, not 2.28; doubles are not faster."""


def grad_workspace(shapes: Shapes, params: Params) -> int:
    """Bytes for ties at porder +-inf, and for copies where axes of both kinds alternate often."""
    x, p = shapes.inputs["x"], order_of(params.porder)
    axes = axes_of(x.shape, params.axis)
    layout = axes.two_groups()
    copies = 0
    if layout is None and not _is_by_element(p, axes):
        copies = 2 * part_bytes(x.size * dtype_info(x.dtype).itemsize)
    layout = layout or Reduction(axes.count, axes.length, 1, 1, 1)
    return copies + (inf_workspace_bytes(layout) if abs(p) == inf else 0)


def _is_by_element(p: float, axes: MergedAxes) -> bool:
    """Whether a thread computes an element where more than two groups of axes are reduced."""
    return abs(p) < inf and len(axes.lengths) <= DIGITS and axes.count * axes.length <= LARGEST


def inf_workspace_bytes(layout: Reduction) -> int:
    """Bytes for ties of porder +-inf, by result, if blocks share one, and for flags of a row's parts with ties."""
    if layout.b == layout.c == 1:
        words, parts = layout.count + max(layout.count, MOST_FIXUPS), _fewest_parts(layout.length + 1)
        return COUNT_BYTES * words + layout.count * parts if parts > 1 else 0
    return COUNT_BYTES * layout.count if _most_splits(layout) > 1 else 0


def _most_splits(layout: Reduction) -> int:
    """Maximum blocks per result whose ties are counted."""
    return max(1, min(MOST_SPLITS, (1 << 16) // max(layout.count, 1), layout.length // LEAST_SHARE))


@kernel("p_norm_grad", "optimized", "cuda", FLOATS, prepare=True, workspace=grad_workspace)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any], workspace: Any
) -> Bound:
    """One read of x, one write of dx; y and dy come from the cache.

    porder +-inf rewrites elements that tie for the norm, if there are several.
    """
    del keepdim
    dx = out["dx"]
    if x.size == 0:
        return lambda: None
    p, axes = order_of(porder), axes_of(x.shape, axis)
    layout = axes.two_groups()
    if layout is None:
        reduced = normalize_axes(axis, x.ndim)
        if _is_by_element(p, axes):
            return _element_by_element(p, x, y, dy, reduced, dx)
        return _by_rows(p, x, y, dy, reduced, dx, workspace)
    if abs(p) == inf:
        return _inf_gradient(layout, x, y, dy, dx, workspace)
    return _gradient(p, layout, x, y, dy, dx)


def _element_by_element(p: float, x: Any, y: Any, dy: Any, axes: tuple[int, ...], dx: Any) -> Bound:
    """More than two groups of axes, finite porder: a thread finds the norm of its element."""
    steps = merge_operands(x.shape, reduced_shape(x.shape, axes, keepdim=True))
    digits = pack_digits(tuple(zip(steps.lengths, steps.strides[0], strict=True)))
    expression = f"grad_any_axes<{CTYPES[x.dtype.name]}, {_mode(p)}>"
    arguments = (x, y, dy, dx, accumulating(x)(p - 1), np.int32(x.size), digits)
    return bind_launch(SOURCE, expression, *one_per_thread(x.size, 1), arguments)


def _mode(p: float) -> str:
    return GRAD_MODES.get(p, "GENERAL" if p > 1 else "BELOW_ONE")


def _by_rows(p: float, x: Any, y: Any, dy: Any, axes: tuple[int, ...], dx: Any, workspace: Any) -> Bound:
    """More than two groups of axes, porder +-inf or many groups: through copies, in the workspace, which are rows."""
    room, shape = part_bytes(x.nbytes), to_rows(x, axes).shape
    source, target = (workspace[at : at + x.nbytes].view(x.dtype).reshape(shape) for at in (0, room))
    layout = Reduction(y.size, x.size // y.size, 1, 1, 1)
    arrays = (source, y, dy, target)
    rows = _inf_gradient(layout, *arrays, workspace[2 * room :]) if abs(p) == inf else _gradient(p, layout, *arrays)

    def run() -> None:
        source[...] = to_rows(x, axes)
        rows()
        to_rows(dx, axes)[...] = target

    return run


def _gradient(p: float, layout: Reduction, x: Any, y: Any, dy: Any, dx: Any) -> Bound:
    ctype, width = CTYPES[x.dtype.name], WIDTHS[x.dtype.name]
    mode = _mode(p)
    q = accumulating(x)(p - 1)
    arrays = (x, y, dy, dx)
    shift = _shift(x, dx)
    whole = _is_whole(shift, layout.length, width)
    if layout.length == 1 and whole_vector(x, x.size, *arrays) == width:  # every element has its own norm
        layout = Reduction(1, 1, 1, 1, x.size)
    are_rows = layout.b == layout.c == 1
    is_few = x.size <= (_FEW_IN_ROWS if are_rows else _FEW)
    is_apart = are_rows and shift is None and layout.length >= _APART_COLUMNS
    is_short = shift == 0 and layout.length <= _SHORT_ROW and x.dtype.itemsize >= _SHORT_BYTES
    by_element = not whole and (is_few or is_short)
    if are_rows and not is_apart and x.size < (1 << 31) - (1 << 20) and not by_element:
        vectors = 2 if width > 2 and x.nbytes in PAIRED else 1
        name = rows_kernel(width)
        if shift is None:
            name, width, shift, vectors = "grad_rows", 1, 0, APART_EACH
        blocks = max(1, -(-(x.size + shift) // (width * vectors * ROW_THREADS)))
        numbers: tuple[Any, ...] = (q, np.int32(x.size), np.int32(shift), divisor(layout.length))
        if whole:
            name, numbers = "grad_rows_aligned", (q, np.uint32(x.size // width), divisor(layout.length // width))
        expression = f"{name}<{ctype}, {width}, {mode}, {vectors}>"
        return bind_launch(SOURCE, expression, (blocks,), (ROW_THREADS,), (*arrays, *numbers))
    swept = _short_columns(layout, arrays, is_few=is_few, cheap=mode in {"FLAT", "SIGN"})
    if swept is not None:
        width, norms = swept
        across, along = (width if norms == one else 1 for one in ("NEIGHBOURS", "THE_SAME"))
        vectors = -(-x.size // width)
        many = (-(-vectors // ROW_THREADS),), (ROW_THREADS,)
        launch_grid, threads = one_per_thread(vectors, 1) if width == 1 else many
        lengths = (layout.r2 // along, layout.b * layout.c // across, layout.r1)
        expression = f"grad_short_columns<{ctype}, {width}, {mode}, {norms}>"
        numbers = (q, np.uint32(x.size // (across * along)), *map(divisor, lengths))
        return bind_launch(SOURCE, expression, launch_grid, threads, (*arrays, *numbers))
    least = FEWEST_ROWS if x.dtype.itemsize == HALF_BYTES and x.size <= FEWEST_UP_TO else LEAST_ROWS
    vector, grid, block, struct = _columns(layout, arrays, layout.length, _GRAD_BLOCKS * multiprocessors(), least)
    return bind_launch(SOURCE, f"grad_columns<{ctype}, {vector}, {mode}>", grid, block, (*arrays, q, struct))


def _short_columns(layout: Reduction, arrays: tuple[Any, ...], *, is_few: bool, cheap: bool) -> tuple[int, str] | None:
    """V and NORMS of `grad_short_columns`; None for columns that are followed, with factors in registers."""
    x, dx = arrays[0], arrays[3]
    width = WIDTHS[x.dtype.name]
    if layout.r2 > 1 and layout.c > 1:
        return None
    if layout.r2 == 1:
        if x.size >= width << 31 or (layout.length > 1 and layout.c // width > _SHORT_COLUMNS):
            return None
        if not is_few and whole_vector(x, layout.c, *arrays) == width:
            costly = not cheap and x.dtype.itemsize == HALF_BYTES and x.size >= _REUSED_FROM
            reused = costly and layout.length >= 2 * (THREADS // column_lanes(layout.c, width)[0])
            return None if reused else (width, "NEIGHBOURS")
    elif not is_few and x.size < width << 31 and whole_vector(x, layout.r2, x, dx) == width:
        return width, "THE_SAME"
    splits = is_few or x.size <= _SPLIT or layout.c == 1 or (x.dtype.itemsize == 4 and x.nbytes not in _FOLLOWED)
    if not splits or x.size >= 1 << 31:
        return None
    aligned = is_few or whole_vector(x, dx) == width
    return (1 if is_few else width, "EACH_ITS_OWN") if aligned else None


def _shift(x: Any, dx: Any) -> int | None:
    """Elements from a 16-byte boundary to x and dx; None if they differ."""
    return None if (x.data.ptr - dx.data.ptr) % 16 else x.data.ptr % 16 // x.dtype.itemsize


def _is_whole(shift: int | None, length: int, width: int) -> bool:
    """Whether every row begins and ends with a vector."""
    return shift == length % width == 0


def _columns(
    layout: Reduction, arrays: tuple[Any, ...], most: int, target: int, least: int = LEAST_ROWS
) -> tuple[int, tuple[int, int], tuple[int, int], Any]:
    """Elements of a vector, grid, block and Layout of a kernel that traverses columns.

    At most `most` blocks share a column, and at most `target` exist if any do; a thread has at least `least` rows.
    """
    x = arrays[0]
    vector = whole_vector(x, layout.c, *arrays)
    lanes, across = column_lanes(layout.c, vector)
    rows = THREADS // lanes
    outer = layout.a * layout.b * across
    splits = max(1, min(most, target // outer, layout.length // (least * rows), LARGEST_GRID))
    return vector, (outer, splits), (lanes, rows), layout_struct(layout, splits, across)


def _inf_gradient(layout: Reduction, x: Any, y: Any, dy: Any, dx: Any, workspace: Any) -> Bound:
    arrays = (x, y, dy, dx)
    if layout.b == layout.c == 1:
        return _inf_rows(layout, arrays, workspace)
    vector, grid, block, struct = _columns(layout, arrays, _most_splits(layout), _resident())
    width, rows = WIDTHS[x.dtype.name], block[1]
    least = 1 if width == 4 else MINIMUM_EACH * rows
    if layout.r2 == 1 and vector == width and least <= layout.length <= min(COLUMNS_EACH * rows, MOST_COUNTED):
        expression = f"grad_inf_columns_block<{CTYPES[x.dtype.name]}, {vector}>"
        return bind_launch(SOURCE, expression, grid, block, (*arrays, struct))
    expression = f"grad_inf_columns_grid<{CTYPES[x.dtype.name]}, {vector}>"
    return bind_launch(SOURCE, expression, grid, block, (*arrays, struct, workspace))


def _inf_rows(layout: Reduction, arrays: tuple[Any, ...], workspace: Any) -> Bound:
    x, dx = arrays[0], arrays[3]
    if dx.size <= _FEW and layout.length <= _SHORT_ROW:
        numbers: tuple[Any, ...] = (np.int32(dx.size), divisor(layout.length))
        grid, expression = (-(-dx.size // SINGLE_THREADS),), f"grad_inf_few<{CTYPES[x.dtype.name]}>"
        return bind_launch(SOURCE, expression, grid, (SINGLE_THREADS,), (*arrays, *numbers))
    rows, length, found = layout.a, layout.length, _shift(x, dx)
    width, shift = WIDTHS[x.dtype.name], found
    few = dx.size <= _FEW and length <= ROW_THREADS and not _is_whole(shift, length, width)
    is_alone = dx.size <= _FEW_TIED and length <= PART_EACH * THREADS and rows <= _ROWS_AT_ONCE * multiprocessors()
    is_alone &= x.dtype.itemsize <= np.dtype(np.float32).itemsize
    if shift is None or length < width or few or is_alone:
        width, shift = 1, 0
    ctype, vectors = CTYPES[x.dtype.name], -(-length // width)
    if vectors <= ROW_THREADS and not is_alone:
        most = min(ROW_THREADS, (SHORT_EACH * ROW_THREADS - 1) * width // length)
        most = min(most, max(WARP, -(-rows // (INF_BLOCKS * multiprocessors()))))
        filling = width // gcd(length, width)  # rows that together are whole vectors
        most = most // filling * filling or most
        expression = f"grad_inf_short_rows<{ctype}, {width}>"
        numbers = (np.int64(rows), np.int32(most), np.int32(shift), divisor(length))
        return bind_launch(SOURCE, expression, (-(-rows // most),), (ROW_THREADS,), (*arrays, *numbers))
    return _parted_rows(arrays, rows, length, width, shift, workspace)


def _parted_rows(arrays: tuple[Any, ...], rows: int, length: int, width: int, shift: int, workspace: Any) -> Bound:
    """Rows in parts that a block's threads can hold; the parts of few long rows are computed by a block each."""
    most = touched_vectors(rows, length, width, shift)
    share, parts, blocks, fixups = PART_EACH * THREADS, _fewest_parts(most), rows, 0
    scope, whole = "BLOCK" if parts == 1 else "LOOP", False
    flagged: tuple[Any, ...] = (None, None, None)
    if parts > 1 and rows < _resident() and length < LONGEST_SHARED:
        scope, whole = "GRID", _is_whole(shift, length, width)
        share, parts = _parts(most)
        blocks, fixups = rows * parts, max(1, min(parts, min(FIXUPS * multiprocessors(), MOST_FIXUPS) // rows))
        words = rows * COUNT_BYTES, (rows + rows * fixups) * COUNT_BYTES
        flagged = (workspace[: words[0]], workspace[words[0] : words[1]], workspace[words[1] :])
    sizes = (np.int64(length), np.int32(shift), np.int32(share), divisor(parts), np.uint32(blocks))
    expression = f"grad_inf_rows<{CTYPES[arrays[0].dtype.name]}, {width}, {scope}, {flag(whole)}>"
    arguments = (*arrays, *sizes, divisor(max(fixups, 1)), *flagged)
    return bind_launch(SOURCE, expression, (blocks + rows * fixups,), (THREADS,), arguments)


def _parts(vectors: int) -> tuple[int, int]:
    """Vectors per part, whole cache lines, and parts of a row."""
    share = -(-vectors // (_fewest_parts(vectors) * LINE_VECTORS)) * LINE_VECTORS
    return share, -(-vectors // share)


def _fewest_parts(vectors: int) -> int:
    """Maximum parts of a row that a block's threads can hold."""
    return -(-vectors // (PART_EACH * THREADS))


def _resident() -> int:
    return INF_RESIDENT * multiprocessors()


def part_bytes(size: int) -> int:
    """Bytes of a part of a workspace, behind which another one is aligned."""
    return -(-size // 256) * 256
