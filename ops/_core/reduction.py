"""Launch the reductions of `_include/reduce.cuh`: choose the kernel, its grid and its workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ops._core.axes import Reduction
from ops._core.cuda import Source, multiprocessors
from ops._core.kernel import Bound
from ops._core.op import Array

THREADS = 256
WARP = 32
MOST_SPLITS = 512
SHORT_ROW_PACKS = 4 * WARP * 8
TARGET_BLOCKS = 4
_LAYOUT = np.dtype([(name, np.int64) for name in ("a", "r1", "b", "r2", "c")])


def workspace_bytes(layout: Reduction, accumulator_bytes: int) -> int:
    """Room for tickets and partial results of any launch over `layout`."""
    return _tickets_bytes(layout) + layout.count * accumulator_bytes * _most_splits(layout)


def _most_splits(layout: Reduction) -> int:
    """Blocks that may share one result: few results, many blocks."""
    return max(1, min(MOST_SPLITS, (1 << 16) // max(layout.count, 1), layout.length // THREADS))


def _tickets_bytes(layout: Reduction) -> int:
    return -(-4 * max(layout.count, 1) // 256) * 256


@dataclass(frozen=True, slots=True)
class Functor:
    """A functor of a source: its C++ name, widest pack, accumulator size, and its fields by value."""

    name: str
    width: int
    accumulator_bytes: int
    value: Array


def expressions(functor: str, width: int) -> tuple[str, ...]:
    """What `launch` may ask of a source for this functor."""
    rows = tuple(f"{kind}<{functor}, {width}>" for kind in ("reduce_rows", "reduce_long"))
    return (*rows, *(f"reduce_columns<{functor}, {wide}>" for wide in sorted({1, width})))


def launch(source: Source, functor: Functor, layout: Reduction, x: Any, second: Any, out: Any, workspace: Any) -> Bound:
    """A callable that reduces `x` (and `second`, read beside it) over `layout` into `out`, in one launch."""
    if out.size == 0:
        return lambda: None
    tickets, partials = workspace, workspace[_tickets_bytes(layout) :]
    itemsize = x.dtype.itemsize
    width = functor.width
    blocks = TARGET_BLOCKS * multiprocessors()
    if layout.c == 1 and layout.b == 1:
        aligned = second is None or (x.data.ptr - second.data.ptr) % (width * itemsize) == 0
        shift = x.data.ptr % (width * itemsize) // itemsize
        if aligned:
            return _rows(source, functor, layout, (x, second, out), (tickets, partials), shift, blocks)
        layout = Reduction(layout.a, layout.r1, 1, layout.r2, 1)
    fits = all(array is None or array.data.ptr % (width * itemsize) == 0 for array in (x, second))
    wide = width if fits and layout.c % width == 0 else 1
    packs = -(-layout.c // wide)
    lanes = 1
    while lanes < WARP and lanes < packs:
        lanes *= 2
    across, outer = -(-packs // lanes), layout.a * layout.b
    rows = THREADS // lanes
    splits = max(1, min(_most_splits(layout), blocks // (across * outer), layout.length // (4 * rows)))
    function = source.function(f"reduce_columns<{functor.name}, {wide}>")
    shape = layout_struct(layout)
    arguments = (x, second, out, functor.value, shape, tickets, partials)
    grid, block = (across, outer, splits), (lanes, rows)
    return lambda: function(grid, block, arguments)


def _rows(
    source: Source,
    functor: Functor,
    layout: Reduction,
    arrays: tuple[Any, Any, Any],
    scratch: tuple[Any, Any],
    shift: int,
    blocks: int,
) -> Bound:
    rows, length = layout.a, layout.r1
    packs = length / functor.width
    common = (*arrays, functor.value, np.int64(rows), np.int64(length), np.int32(shift))
    if packs <= SHORT_ROW_PACKS and (rows >= blocks or packs <= WARP):
        lanes = 1
        while lanes < WARP and 4 * lanes < packs + 1:
            lanes *= 2
        function = source.function(f"reduce_rows<{functor.name}, {functor.width}>")
        arguments: tuple[Any, ...] = (*common, np.int32(lanes))
        grid = (-(-rows * lanes // THREADS),)
    else:
        splits = max(1, min(_most_splits(layout), blocks // rows, int(packs) // THREADS))
        function = source.function(f"reduce_long<{functor.name}, {functor.width}>")
        arguments = (*common, *scratch)
        grid = (rows, splits)  # type: ignore[assignment]
    return lambda: function(grid, (THREADS,), arguments)


def layout_struct(layout: Reduction) -> Array:
    """A `Layout` of `_include/reduce.cuh`."""
    return np.array((layout.a, layout.r1, layout.b, layout.r2, layout.c), _LAYOUT)
