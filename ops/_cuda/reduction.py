"""Launch the reductions of `include/reduce.cuh`: choose the kernel, its grid and its workspace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from opgauge.ops._core.axes import Reduction
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array
from opgauge.ops._core.tuning import Parameter, declare
from opgauge.ops._cuda.source import Source, divisor, flag, multiprocessors, widest_pack

THREADS = 256
WARP = 32
MOST_SPLITS, MOST_LARGE, MOST_SHARES = 1024, 9 << 10, 14 << 10
"""Blocks that may share a result; those that take all of their packs of one row at once, and of several rows."""
_REDUCTIONS = ("dot", "mean", "p_norm")
_SHORT_ROW = declare(
    "reduction.short_row_packs",
    WARP * 8,
    (WARP * 4, WARP * 8, WARP * 16, WARP * 32, WARP * 64),
    backend="cuda",
    ops=_REDUCTIONS,
    why="packs of 16 bytes up to which no more than a warp takes a row: longer ones get up to a block",
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
    64,
    (4, 8, 16, 32, 64, 128),
    backend="cuda",
    ops=_REDUCTIONS,
    why="blocks that few rows are shared among, up to MANY_BLOCKS bytes: even ends against partial results",
)
_COLUMN_BLOCKS = declare(
    "reduction.column_blocks_per_multiprocessor",
    4,
    (2, 4, 8, 16),
    backend="cuda",
    ops=_REDUCTIONS,
    why="blocks that few columns are shared among: bandwidth against partial results",
)
_LEAST_PACKS = declare(
    "reduction.least_packs",
    4,
    (1, 2, 4, 8),
    backend="cuda",
    ops=_REDUCTIONS,
    why="packs of a thread, of all tensors, below which no more blocks share a row: each sends a partial result",
)
_STREAMED = declare(
    "reduction.streamed_megabytes",
    192,
    (0, 48, 96, 192, 384),
    backend="cuda",
    ops=_REDUCTIONS,
    why="megabytes up to which rows are read past what the L2 cache holds, from LEAST_STREAMED on",
)
_STREAMED_COLUMNS = declare(
    "reduction.streamed_columns_megabytes",
    384,
    (0, 96, 192, 384, 768),
    backend="cuda",
    ops=_REDUCTIONS,
    why="likewise of columns, in packs",
)
_SMALL = declare(
    "reduction.small_elements",
    1 << 16,
    (0, 1 << 12, 1 << 14, 1 << 16, 1 << 18),
    backend="cuda",
    ops=_REDUCTIONS,
    why="elements up to which short sums are taken element by element: fewer instructions against wider loads",
)
_LARGE = declare(
    "reduction.large_blocks_megabytes",
    32,
    (0, 16, 32, 64, 128),
    backend="cuda",
    ops=("mean", "p_norm"),
    why="megabytes of rows from which on blocks take a few packs a thread at once, and are many",
)
LEAST_STREAMED = 12 << 20
"""Bytes: less is read again before it leaves the cache."""
MANY_BLOCKS = 384 << 20
"""Bytes of one tensor; longer rows are shared by as many blocks as are under way, other pairs by twice as many."""
ROW_WIDTH, HELD_PACKS = 4, range(513, 1025)
"""Whole packs, of 4-byte elements, of rows that a block of reduce_held takes at once."""
HELD_STREAMED = 4
"""How many times more of such rows, of one tensor, pass the cache by: 268 MB take 0.95 so, 786 0.98, 1 GB 1.03."""
MOST_LANES = 64
COLUMN_LANES = (2 * WARP, WARP, WARP // 2)
"""Threads side by side along many columns of 4-byte elements."""
TALL_THREADS, TALL_LENGTH = 512, 512
"""Threads of a block that has columns of 4-byte elements to itself, and how long they are at least."""
TALL_EACH = 16
"""Packs that a thread of reduce_tall takes at once, whose blocks take columns whole that are not too long for that."""
SMALL_LENGTH, SMALL_EACH, SMALL_THREADS = 256, 8, 128
"""Of reduce_small: elements a result at most, elements a lane, threads a block."""
TINY_LENGTH = 16
"""Elements of a row of whole packs that a thread takes."""
ELEMENTS_LANES, ELEMENTS = 128, range(128 * 4 + 1, 128 * 9 + 1)
"""Of reduce_elements: lanes of a row, and how many elements of 4 bytes it has."""
SLAB_BYTES, SLAB_THREADS, SLAB_PACKS = 16384, 288, 64
"""Of reduce_slabs: bytes of a slab's sums and threads of a block at most, packs of a slab at least."""
LINE_PACKS, LINE = 8, 32
"""Packs of 16 bytes in 128, and elements of 4."""
LARGE_THREADS, LARGE_EACH = 1024, 2
"""Of reduce_row: threads, and packs that each takes at once, of all tensors."""
SHARE_THREADS, SHARE_EACH, SHARE_LETTERS = 512, 2, 128
"""Of reduce_shares: threads, packs that each takes at once, and letters of a row that a warp collects, not a block."""
LONG_RESIDENT = 4
"""Blocks of reduce_long that any multiprocessor holds at once."""
_LAYOUT = np.dtype(
    [*((name, np.int64) for name in ("a", "r1", "b", "r2", "c", "share")), ("across", np.uint32), ("unused", np.uint32)]
)


def workspace_bytes(layout: Reduction, accumulator_bytes: int) -> int:
    """Room for tickets and partial results, as they lie or with their flags, of any launch over `layout`."""
    large = min(MOST_SHARES, layout.count * layout.length // (SHARE_THREADS * SHARE_EACH))
    return _tickets_bytes(layout) + 2 * accumulator_bytes * max(layout.count * _most_splits(layout), large)


def _most_splits(layout: Reduction) -> int:
    """Blocks that may share one result: few results, many blocks."""
    return max(1, min(MOST_SPLITS, (1 << 16) // max(layout.count, 1), layout.length // THREADS))


def _tickets_bytes(layout: Reduction) -> int:
    return -(-4 * max(layout.count, 1) // 256) * 256


@dataclass(frozen=True, slots=True)
class Functor:
    """A functor of a source: its C++ name, widest pack, accumulator size, and its fields by value.

    light: it takes an element in two or three instructions, and adds up one tensor in 32 bits.
    """

    name: str
    width: int
    accumulator_bytes: int
    value: Array
    light: bool = True


def expressions(functor: str, width: int, *, only_rows: bool = False, light: bool = True) -> tuple[str, ...]:
    """What `launch` may ask of a source for this functor."""
    flags = ("false", "true")
    both = tuple(f"{functor}, {width}, {stream}, {whole}" for stream, whole in product(flags, flags))
    rows = (f"reduce_{kind}<{these}>" for these in both for kind in ("rows", "long"))
    at_once = light and width >= ROW_WIDTH
    row = (_row_name(f"{functor}, {width}", paired=only_rows),) if _takes_rows(width, light, only_rows) else ()
    held = (_held_name(f"{functor}, {width}, {stream}", paired=only_rows) for stream in flags if width == ROW_WIDTH)
    shares = (_shares_name(functor, width),) if at_once and not only_rows else ()
    packs = dict.fromkeys(("1, false", *(f"{width}, {stream}" for stream in flags)))
    columns = (f"reduce_columns<{functor}, {these}, {THREADS}>" for these in packs)
    more = (f"reduce_columns<{functor}, {width}, {stream}, {TALL_THREADS}>" for stream in flags if width == ROW_WIDTH)
    tall = (_tall_name(functor, width, stream) for stream in flags if light and width == ROW_WIDTH and not only_rows)
    slabs = (f"reduce_slabs<{functor}, {width}, {stream}>" for stream in flags if not only_rows)
    small = (f"reduce_small<{functor}, {of_rows}>" for of_rows in (flags[1:] if only_rows else flags))
    tiny = f"reduce_tiny<{functor}, {width}>"
    elements = (f"reduce_elements<{functor}, {stream}>" for stream in flags if width == ROW_WIDTH and not only_rows)
    return (*small, tiny, *rows, *row, *held, *shares, *elements, *columns, *more, *tall, *slabs)


def launch(
    source: Source,
    functor: Functor,
    layout: Reduction,
    x: Any,
    second: Any,
    out: Any,
    workspace: Any,
    least_streamed: int = LEAST_STREAMED,
) -> Bound:
    """A callable that reduces `x` (and `second`, read beside it) over `layout` into `out`, in one launch.

    least_streamed: bytes from which on rows are read past what the cache holds, in LEAST_STREAMED's place.
    """
    if out.size == 0:
        return lambda: None
    tickets, partials = workspace, workspace[_tickets_bytes(layout) :]
    itemsize = x.dtype.itemsize
    width = functor.width
    if layout.r2 == 1 and layout.length <= SMALL_LENGTH and _SMALL.covers(layout.count * layout.length):
        return _small(source, functor, layout, (x, second, out))
    past = _past_line(x)
    if layout.c == 1 and layout.b == 1:
        aligned = second is None or (x.data.ptr - second.data.ptr) % (width * itemsize) == 0
        if aligned:
            return _rows(source, functor, layout, (x, second, out), workspace, past, least_streamed)
        layout = Reduction(layout.a, layout.r1, 1, layout.r2, 1)
    fits = all(array is None or array.data.ptr % (width * itemsize) == 0 for array in (x, second))
    wide = width if fits and layout.c % width == 0 else 1
    if second is None and (threads := _slab_threads(functor, layout)):
        streams = _streams((x,), least_streamed)
        function = source.function(f"reduce_slabs<{functor.name}, {width}, {streams}>")
        numbers = (functor.value, layout_struct(layout, 1, 1), np.int32(past))
        return lambda: function((layout.a * layout.b,), (threads,), (x, out, *numbers))
    streams = _streams((x, second), least_streamed, _STREAMED_COLUMNS) if wide == width else "false"
    if second is None and functor.light and wide == ROW_WIDTH and _is_tall(layout):
        return _tall(source, functor, layout, (x, out), streams)
    lanes, across, splits = _column_shares(layout, wide, COLUMN_LANES if itemsize == 4 else (WARP,))
    threads = TALL_THREADS if splits == 1 and wide == ROW_WIDTH and layout.length >= TALL_LENGTH else THREADS
    function = source.function(f"reduce_columns<{functor.name}, {wide}, {streams}, {threads}>")
    arguments = (x, second, out, functor.value, layout_struct(layout, splits, across), tickets, partials)
    grid, block = (layout.a * layout.b * across, splits), (lanes, threads // lanes)
    return lambda: function(grid, block, arguments)


def _small(source: Source, functor: Functor, layout: Reduction, arrays: tuple[Any, Any, Any]) -> Bound:
    width = widest_pack(arrays[0].dtype.itemsize, layout.length, *arrays[:2])
    if layout.c == 1 and layout.length <= TINY_LENGTH and width == functor.width:
        function = source.function(f"reduce_tiny<{functor.name}, {width}>")
        threads = min(SMALL_THREADS, layout.count)
        packs = np.int32(layout.count), np.int32(layout.length // width)
        return lambda: function((-(-layout.count // threads),), (threads,), (*arrays, functor.value, *packs))
    bits = (-(-layout.length // SMALL_EACH) - 1).bit_length()
    numbers = (np.int32(layout.count), np.int32(layout.length), divisor(layout.c), np.int32(bits))
    threads = min(SMALL_THREADS, -(-(layout.count << bits) // WARP) * WARP)
    of_rows = flag(layout.c == 1)
    function = source.function(f"reduce_small<{functor.name}, {of_rows}>")
    grid = (-(-(layout.count << bits) // threads),)
    return lambda: function(grid, (threads,), (*arrays, functor.value, *numbers))


def _slab_threads(functor: Functor, layout: Reduction) -> int:
    """Threads of a block of reduce_slabs, 0 where another kernel is better or slabs do not begin alike."""
    slab, width = layout.r2 * layout.c, functor.width
    if layout.r2 == 1 or slab < SLAB_PACKS * width or slab * functor.accumulator_bytes > SLAB_BYTES:
        return 0
    if layout.b * slab % width or layout.a * layout.b < multiprocessors():
        return 0
    packs = -(-(LINE_PACKS * width - 1 + slab) // width)
    turns = -(-packs // SLAB_THREADS)
    threads = -(-packs // (turns * WARP)) * WARP
    return threads if layout.c <= threads else 0


def _tall(source: Source, functor: Functor, layout: Reduction, arrays: tuple[Any, Any], streams: str) -> Bound:
    function = source.function(_tall_name(functor.name, functor.width, streams))
    across, rows = -(-layout.c // LINE), WARP // LINE_PACKS  # of a warp
    warps = -(-layout.r1 // (TALL_EACH * rows))
    grid, block = (layout.a * layout.b * across,), (LINE_PACKS, warps * rows)
    arguments = (*arrays, functor.value, layout_struct(layout, 1, across))
    return lambda: function(grid, block, arguments)


def _is_tall(layout: Reduction) -> bool:
    """Whether blocks can take whole columns at once, a line of 128 bytes of them."""
    longest = TALL_EACH * TALL_THREADS // LINE_PACKS
    return layout.r2 == 1 and TALL_LENGTH <= layout.r1 <= longest and layout.c >= LINE


def _tall_name(functor: str, width: int, streams: str) -> str:
    return f"reduce_tall<{functor}, {width}, {streams}, {TALL_THREADS}, {TALL_EACH}>"


def _column_shares(layout: Reduction, wide: int, choice: tuple[int, ...]) -> tuple[int, int, int]:
    """As `column_lanes` of the first of `choice` that leaves enough blocks; how many of them share a column.

    None do where columns alone are enough.
    """
    target = _COLUMN_BLOCKS.value() * multiprocessors()
    for most_lanes in choice:
        lanes, across = column_lanes(layout.c, wide, most_lanes)
        if layout.a * layout.b * across >= target:
            return lanes, across, 1
    for most_lanes in choice:
        lanes, across = column_lanes(layout.c, wide, most_lanes)
        outer, rows = layout.a * layout.b * across, THREADS // lanes
        most = max(1, min(_most_splits(layout), layout.length // (4 * rows)))
        if outer * most >= target:
            break
    return lanes, across, max(1, min(most, target // outer))


def column_lanes(columns: int, width: int, lanes: int = WARP) -> tuple[int, int]:
    """Threads side by side along the columns, and how many such groups there are.

    A few columns are taken whole: then rows follow one another in memory without a gap.
    """
    packs = -(-columns // width)
    if packs <= MOST_LANES:
        return packs, 1
    return lanes, -(-packs // lanes)


def _rows(
    source: Source,
    functor: Functor,
    layout: Reduction,
    arrays: tuple[Any, Any, Any],
    mail: Any,
    past: int,
    least_streamed: int,
) -> Bound:
    rows, length, width = layout.a, layout.r1, functor.width
    shift, paired = past % width, arrays[1] is not None
    name = f"{functor.name}, {width}"
    is_whole, packs = shift == 0 and length % width == 0, touched_packs(rows, length, width, shift)
    is_held = is_whole and width == ROW_WIDTH and packs in HELD_PACKS
    streams = _streams(arrays[:2], least_streamed, times=HELD_STREAMED if is_held and not paired else 1)
    kind, threads = f"{name}, {streams}", THREADS
    kind_of_ends = f"{kind}, {flag(is_whole)}"
    numbers: tuple[Any, ...]
    grid: tuple[int, ...]
    if blocks := _blocks_of_row(functor, layout, arrays, whole=is_whole):
        function, threads = source.function(_row_name(name, paired=paired)), LARGE_THREADS
        numbers = (np.int32(packs), mail)
        grid = (blocks,)
    elif (several := _blocks_of_rows(functor, layout, arrays, past))[0]:
        blocks, each = several
        function, threads = source.function(_shares_name(functor.name, width)), SHARE_THREADS
        lanes, collecting = collectors(rows, blocks, SHARE_THREADS)
        further = -(-collecting // blocks)
        numbers = (np.int32(rows), np.int64(length), *(np.int32(number) for number in (past, each, lanes)), mail)
        grid = (blocks, rows + further)
    elif is_held:
        function, threads = source.function(_held_name(kind, paired=paired)), HELD_PACKS[-1] // _each(paired=paired)
        numbers = (np.int32(packs),)
        grid = (rows,)
    elif (shares := _shares(layout, width, arrays))[0] > 1:
        splits, share = shares
        function = source.function(f"reduce_long<{kind_of_ends}>")
        numbers = (np.int64(length), np.int32(shift), np.int64(share), mail)
        grid = (rows, splits)
    elif not is_whole and width == ROW_WIDTH and not paired and length in ELEMENTS:
        function = source.function(f"reduce_elements<{functor.name}, {streams}>")
        numbers = (np.int64(rows), np.int32(length))
        grid = (-(-rows * ELEMENTS_LANES // threads),)
    else:
        lanes = _lanes(packs)
        function = source.function(f"reduce_rows<{kind_of_ends}>")
        numbers = (np.int64(rows), np.int64(length), np.int32(shift), np.int32(lanes))
        grid = (-(-rows * lanes // threads),)
    arguments = (*arrays, functor.value, *numbers)
    return lambda: function(grid, (threads,), arguments)


def _streams(arrays: tuple[Any, ...], least: int, most: Parameter = _STREAMED, *, times: int = 1) -> str:
    """Whether `arrays`, those that there are, are read past what the cache holds, in C++; up to `times` as many."""
    nbytes = sum(array.nbytes for array in arrays if array is not None)
    return flag(nbytes >= least and most.covers((nbytes >> 20) // times))


def _row_name(kind: str, *, paired: bool) -> str:
    return f"reduce_row<{kind}, {LARGE_THREADS}, {_each(paired=paired)}>"


def _each(*, paired: bool) -> int:
    """Packs that a thread takes at once, of each tensor."""
    return LARGE_EACH // 2 if paired else LARGE_EACH


def _shares_name(functor: str, width: int) -> str:
    return f"reduce_shares<{functor}, {width}, {SHARE_THREADS}, {SHARE_EACH}>"


def _held_name(kind: str, *, paired: bool) -> str:
    each = _each(paired=paired)
    return f"reduce_held<{kind}, {HELD_PACKS[-1] // each}, {each}>"


def _takes_rows(width: int, light: bool, paired: bool) -> bool:  # noqa: FBT001
    """Whether blocks that take all of their packs of a row at once have the registers."""
    return light and width >= (ROW_WIDTH // 2 if paired else ROW_WIDTH)


def _is_large(functor: Functor, arrays: tuple[Any, Any, Any]) -> bool:
    """Whether blocks that take their packs at once pay, and have the registers."""
    takes = _takes_rows(functor.width, functor.light, arrays[1] is not None)
    return takes and arrays[0].nbytes >= _LARGE.value() << 20


def _blocks_of_row(functor: Functor, layout: Reduction, arrays: tuple[Any, Any, Any], *, whole: bool) -> int:
    """Blocks of reduce_row; 0 where others take the row."""
    taken = LARGE_THREADS * _each(paired=arrays[1] is not None)
    blocks = -(-layout.r1 // (functor.width * taken))
    return blocks if whole and layout.a == 1 and blocks <= MOST_LARGE and _is_large(functor, arrays) else 0


def _blocks_of_rows(functor: Functor, layout: Reduction, arrays: tuple[Any, Any, Any], past: int) -> tuple[int, int]:
    """Blocks of reduce_shares for each row, and how many packs each takes, whole lines; 0 where others take the rows.

    The device has room for more blocks than those that collect, and wait.
    """
    line = LINE_PACKS * functor.width
    packs = touched_packs(layout.a, layout.r1, functor.width, past, line)
    splits = -(-packs // (SHARE_THREADS * SHARE_EACH))
    many = splits > 1 and layout.a * splits <= MOST_SHARES and layout.a < LONG_RESIDENT * multiprocessors()
    if arrays[1] is not None or not many or not _is_large(functor, arrays):
        return 0, 0
    _, collecting = collectors(layout.a, splits, SHARE_THREADS)
    return splits if collecting < multiprocessors() else 0, -(-packs // (splits * LINE_PACKS)) * LINE_PACKS


def collectors(rows: int, splits: int, threads: int) -> tuple[int, int]:
    """Threads that collect what the `splits` blocks of a row sent; how many blocks of `threads` all rows need."""
    lanes = WARP if splits <= SHARE_LETTERS else threads
    return lanes, -(-rows * lanes // threads)


def _shares(layout: Reduction, width: int, arrays: tuple[Any, Any, Any]) -> tuple[int, int]:
    """Blocks that share a row, and how many elements each takes: whole lines, so that no two read the same one.

    One of the blocks of a row waits for the others, so as many rows as fill the device are not shared.
    """
    rows, length = layout.a, layout.r1
    splits, most = 1, min(_most_splits(layout), length // (width * THREADS))
    if most > 1 and rows < LONG_RESIDENT * multiprocessors():
        paired = arrays[1] is not None
        most = min(most, length * (1 + paired) // (width * THREADS * _LEAST_PACKS.value()))
        each = 2 * LONG_RESIDENT if paired else _BLOCKS.value()
        each = LONG_RESIDENT if arrays[0].nbytes > MANY_BLOCKS else each
        splits = max(1, min(most, each * multiprocessors() // rows))
    line = LINE_PACKS * width
    share = -(-length // (splits * line)) * line
    return -(-length // share), share


def touched_packs(rows: int, length: int, width: int, shift: int, unit: int = 0) -> int:
    """Packs from the beginning of a unit of `unit` elements, a pack unless given, to the end of a row at most.

    The first row begins `shift` elements into one.
    """
    unit = unit or width
    if rows == 1:
        return -(-(shift + length) // width)
    step = gcd(length, unit)  # rows begin so many elements apart, seen from their unit
    return -(-(unit - step + shift % step + length) // width)


def _past_line(array: Any) -> int:
    """Elements that `array` begins past a line of LINE_PACKS packs of 16 bytes."""
    return int(array.data.ptr % (LINE_PACKS * 16) // array.dtype.itemsize)


def _lanes(packs: int) -> int:
    return lanes_for(_PACKS_PER_LANE, packs, WARP if _SHORT_ROW.covers(packs) else THREADS)


def lanes_for(packs_per_lane: Parameter, packs: float, most: int = WARP) -> int:
    """Threads, a power of two up to `most`, that take a row of `packs`; the parameter is asked where it matters."""
    if packs > max(packs_per_lane.candidates) * most // 2:
        return most
    lanes, each = 1, packs_per_lane.value()
    while lanes < most and each * lanes < packs:
        lanes *= 2
    return lanes


def layout_struct(layout: Reduction, splits: int, across: int) -> Array:
    """A `Layout` of `include/reduce.cuh`: the reduced indices shared by `splits` blocks, the columns by `across`."""
    share = -(-layout.length // splits)
    return np.array((layout.a, layout.r1, layout.b, layout.r2, layout.c, share, across, 0), _LAYOUT)
