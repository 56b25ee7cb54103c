"""Launch the reductions of `_include/reduce.cuh`: choose the kernel, its grid and its workspace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from ops._core.axes import Reduction
from ops._core.cuda import Source, multiprocessors
from ops._core.kernel import Bound
from ops._core.op import Array
from ops._core.tuning import Parameter, declare

THREADS = 256
WARP = 32
MOST_SPLITS = 512
_REDUCTIONS = ("dot", "mean", "p_norm")
_SHORT_ROW = declare(
    "reduction.short_row_packs",
    4 * WARP * 8,
    (4 * WARP * 2, 4 * WARP * 4, 4 * WARP * 8, 4 * WARP * 16, 4 * WARP * 32),
    backend="cuda",
    ops=_REDUCTIONS,
    why="packs of 16 bytes up to which a row is one warp's: longer ones are shared by blocks",
)
_PACKS_PER_LANE = declare(
    "reduction.packs_per_lane",
    4,
    (1, 2, 4, 8),
    backend="cuda",
    ops=_REDUCTIONS,
    why="packs that a lane takes before a row gets more lanes: rows a block against loads in flight",
)
_BLOCKS = declare(
    "reduction.blocks_per_multiprocessor",
    4,
    (2, 4, 8, 16),
    backend="cuda",
    ops=_REDUCTIONS,
    why="blocks that a reduction of few results is shared among: bandwidth against partial results",
)
_STREAMED = declare(
    "reduction.streamed_megabytes",
    192,
    (0, 48, 96, 192, 384),
    backend="cuda",
    ops=_REDUCTIONS,
    why="megabytes up to which rows are read past what the L2 cache holds, from LEAST_STREAMED on",
)
LEAST_STREAMED = 12 << 20
"""Bytes: less is read again before it leaves the cache."""
MOST_LANES = 64
_LAYOUT = np.dtype(
    [*((name, np.int64) for name in ("a", "r1", "b", "r2", "c", "share")), ("across", np.uint32), ("unused", np.uint32)]
)


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
    kinds = product(("reduce_rows", "reduce_long"), ("false", "true"))
    rows = tuple(f"{kind}<{functor}, {width}, {stream}>" for kind, stream in kinds)
    return (*rows, *(f"reduce_columns<{functor}, {wide}>" for wide in sorted({1, width})))


def launch(source: Source, functor: Functor, layout: Reduction, x: Any, second: Any, out: Any, workspace: Any) -> Bound:
    """A callable that reduces `x` (and `second`, read beside it) over `layout` into `out`, in one launch."""
    if out.size == 0:
        return lambda: None
    tickets, partials = workspace, workspace[_tickets_bytes(layout) :]
    itemsize = x.dtype.itemsize
    width = functor.width
    if layout.c == 1 and layout.b == 1:
        aligned = second is None or (x.data.ptr - second.data.ptr) % (width * itemsize) == 0
        shift = x.data.ptr % (width * itemsize) // itemsize
        if aligned:
            return _rows(source, functor, layout, (x, second, out), (tickets, partials), shift)
        layout = Reduction(layout.a, layout.r1, 1, layout.r2, 1)
    fits = all(array is None or array.data.ptr % (width * itemsize) == 0 for array in (x, second))
    wide = width if fits and layout.c % width == 0 else 1
    lanes, across = column_lanes(layout.c, wide)
    outer, rows = layout.a * layout.b * across, THREADS // lanes
    most = min(_most_splits(layout), layout.length // (4 * rows))
    splits = max(1, min(most, _target_blocks() // outer)) if most > 1 else 1
    function = source.function(f"reduce_columns<{functor.name}, {wide}>")
    arguments = (x, second, out, functor.value, layout_struct(layout, splits, across), tickets, partials)
    grid, block = (outer, splits), (lanes, rows)
    return lambda: function(grid, block, arguments)


def column_lanes(columns: int, width: int) -> tuple[int, int]:
    """Threads side by side along the columns, and how many such groups there are.

    A few columns are taken whole: then rows follow one another in memory without a gap.
    """
    packs = -(-columns // width)
    if packs <= MOST_LANES:
        return packs, 1
    return WARP, -(-packs // WARP)


def _rows(
    source: Source,
    functor: Functor,
    layout: Reduction,
    arrays: tuple[Any, Any, Any],
    scratch: tuple[Any, Any],
    shift: int,
) -> Bound:
    rows, length = layout.a, layout.r1
    packs = length / functor.width
    stream = str(_streams(sum(array.nbytes for array in arrays[:2] if array is not None))).lower()
    common = (*arrays, functor.value, np.int64(rows), np.int64(length), np.int32(shift))
    if packs <= WARP or (_SHORT_ROW.covers(ceil(packs)) and rows >= _target_blocks()):
        lanes = lanes_for(_PACKS_PER_LANE, packs + 1)
        function = source.function(f"reduce_rows<{functor.name}, {functor.width}, {stream}>")
        arguments: tuple[Any, ...] = (*common, np.int32(lanes))
        grid = (-(-rows * lanes // THREADS),)
    else:
        most = min(_most_splits(layout), int(packs) // THREADS)
        splits = max(1, min(most, _target_blocks() // rows)) if most > 1 else 1
        function = source.function(f"reduce_long<{functor.name}, {functor.width}, {stream}>")
        arguments = (*common, *scratch)
        grid = (rows, splits)  # type: ignore[assignment]
    return lambda: function(grid, (THREADS,), arguments)


def _streams(nbytes: int) -> bool:
    return nbytes >= LEAST_STREAMED and _STREAMED.covers(nbytes >> 20)


def _target_blocks() -> int:
    return _BLOCKS.value() * multiprocessors()


def lanes_for(packs_per_lane: Parameter, packs: float) -> int:
    """Threads of a warp, a power of two, that take a row of `packs`; the parameter is asked where it matters."""
    if packs > max(packs_per_lane.candidates) * WARP // 2:
        return WARP
    lanes, each = 1, packs_per_lane.value()
    while lanes < WARP and each * lanes < packs:
        lanes *= 2
    return lanes


def layout_struct(layout: Reduction, splits: int, across: int) -> Array:
    """A `Layout` of `_include/reduce.cuh`: the reduced indices shared by `splits` blocks, the columns by `across`."""
    share = -(-layout.length // splits)
    return np.array((layout.a, layout.r1, layout.b, layout.r2, layout.c, share, across, 0), _LAYOUT)
