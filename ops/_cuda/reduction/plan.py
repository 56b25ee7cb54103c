"""Choice of kernel, grid and block of a reduction, without a GPU or arrays.

`plan` returns a `ReducePlan`, which `launch` binds and `opgauge show --why` can print. The kernels are described in
`include/reduce.cuh`. Percentages beside constants were measured on an H100 or H200: the cost of the alternative.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.axes import MergedAxes, Reduction
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.op import Array
from opgauge.ops._core.tuning import Parameter, declare
from opgauge.ops._cuda.source import DIVISOR, divisor, flag

THREADS, WARP, VECTOR_BYTES = 256, 32, 16
LARGEST = (1 << 31) - (1 << 16)
"""Maximum number of elements, and of results: 32-bit indices, with room for the surplus lanes of the last block."""
LINE_VECTORS = 8
"""Vectors of 16 bytes in a cache line."""
VECTORS_PER_LANE = declare(
    "reduction.packs_per_lane",
    4,
    (1, 2, 4, 8),
    backend="cuda",
    ops=("dot", "mean", "p_norm"),
    why="vectors that a lane reads before a row gets more lanes: rows per block against loads in flight",
)
LARGEST_GRID = 65_535
MOST_SPLITS = 1024
"""Maximum blocks per result."""

ELEMENTS_EACH, ELEMENTS_LENGTH, FEW_ELEMENTS = 8, 256, 1 << 16
"""reduce_elements_lanes: loads in flight per lane, maximum length of a sum, and number of elements below which it is
the fastest for every layout: vectors cost 4 to 14 % on rows and 24 to 51 % on columns, at 4 us in all."""
ELEMENTS_THREADS, ELEMENTS_BLOCKS = 128, 8
"""Threads per block; blocks per multiprocessor below which several blocks share a result."""
SHORT_BYTES = 96
"""Maximum bytes of a row of partial vectors, or of a column, for which single elements are as fast as vectors."""
ODD_ROWS = range(513, 1153)
"""Length in 4-byte elements of unaligned rows that are read element by element: masked vectors cost 5 to 7 %."""
DIGITS = 6
"""Maximum number of merged axes, retained or reduced, of `reduce_elements_lanes`."""

SHORT_ROW = WARP * 8
"""Maximum vectors of a row for which one warp or less reduces it."""
BLOCK_VECTORS = range(513, 1025)
"""Vectors of an aligned row of 4-byte elements for reduce_rows_block: reduce_rows_lanes costs 3 to 4 %."""
BLOCK_STREAMED = 4
"""Multiple of STREAMED_ROWS up to which reduce_rows_block streams: 786 MB take 0.98 of the time, 1 GB 1.03."""
GRID_RESIDENT = 4
"""Resident blocks of reduce_rows_grid per multiprocessor on every device; rows are limited to them, as blocks wait."""
GRID_BLOCKS, MINIMUM_VECTORS = 64, 4
"""Blocks per multiprocessor that share few rows; minimum vectors per thread, over all tensors, for one block more."""
ROW_OF_BLOCK = 8
"""Maximum vectors per thread for which one block reduces a row, if there is a row for each multiprocessor."""
MANY_BYTES = 384 << 20
"""Size of a tensor above which rows are shared by the resident blocks only; pairs of tensors by twice as many."""
ONCE_BYTES, ONCE_EACH, ONCE_BLOCKS, ONE_ROW_BLOCKS = 32 << 20, 2, 14 << 10, 9 << 10
"""reduce_rows_once: minimum bytes of x, vectors per thread, and maximum blocks: reduce_rows_grid costs 3 to 9 %."""
ONCE_THREADS, ONE_ROW_THREADS, WARP_COLLECTS = 512, 1024, 128
"""Threads per block of reduce_rows_once, for several rows and for one; maximum partial results that a warp merges."""
STREAMED_FROM, STREAMED_ROWS, STREAMED_COLUMNS = 12 << 20, 192, 384
"""Bytes from which reads are L2 evict_first, and megabytes up to which they are: smaller tensors stay in cache."""

COLUMN_THREADS, COLUMN_BLOCKS, COLUMN_BUSY = 512, 4, 1024
"""reduce_columns_grid: maximum threads per block; sufficient blocks and threads per multiprocessor."""
MOST_LANES = 64
"""Maximum lanes along c per block; fewer lanes make more blocks."""
COLUMN_LANES = (MOST_LANES, WARP, WARP // 2)
WHOLE_ROWS = 1024
"""Maximum rows for which a block one cache line wide reduces whole columns (8 to 17 MB: splits cost 17 to 27 %)."""
SLAB_BYTES, SLAB_THREADS, SLAB_VECTORS = 16_384, 288, 64
"""reduce_slabs_block: maximum bytes of a slab's sums and threads per block, minimum vectors per slab."""

OPTIONS = tuple(
    f"-D{name}={number}"
    for name, number in {
        "ELEMENTS_EACH": ELEMENTS_EACH,
        "DIGITS": DIGITS,
        "GRID_RESIDENT": GRID_RESIDENT,
        "COLUMN_THREADS": COLUMN_THREADS,
        "SLAB_THREADS": SLAB_THREADS,
        "SLAB_BYTES": SLAB_BYTES,
    }.items()
)
"""Numbers shared with the kernels, as compiler options."""

DIGITS_STRUCT = np.dtype(
    [("count", np.int32), ("unused", np.int32), ("stride", np.int64, (DIGITS,)), ("length", DIVISOR, (DIGITS,))]
)
BY_ROW_STRUCT = np.dtype([("length", np.int32), ("unused", np.int32)])
BY_COLUMN_STRUCT = np.dtype([("length", np.int32), ("columns", DIVISOR)])
TWO_GROUPS_STRUCT = np.dtype(
    [
        ("length", np.int32),
        ("innermost", np.int32),
        ("stride_a", np.int64),
        ("stride_r1", np.int64),
        *((name, DIVISOR) for name in ("b", "r2", "c")),
        ("padding", np.int32),
    ]
)
"""`Elements` of `include/reduce_elements.cuh` by pattern, and its `Digits`."""
ANY_AXES_STRUCT = np.dtype(
    [("length", np.int32), ("innermost", np.int32), ("kept", DIGITS_STRUCT), ("reduced", DIGITS_STRUCT)]
)
"""`Elements<ANY_AXES>` of `include/reduce_elements.cuh`."""
COLUMN_STRUCT = np.dtype(
    [
        *((name, np.int64) for name in ("stride_a", "stride_r1", "stride_b")),
        *((name, np.int32) for name in ("c", "kept", "rows", "rest", "share", "width", "outer", "in_warp")),
        *((name, DIVISOR) for name in ("r2", "b", "tiles")),
        ("padding", np.int32),
    ]
)
"""`ColumnLayout` of `include/reduce_columns.cuh`."""
SLAB_STRUCT = np.dtype([(name, np.int32) for name in ("r1", "b", "r2", "c")])
"""`SlabLayout` of `include/reduce_columns.cuh`."""


class GpuSize(NamedTuple):
    """Size of a GPU, as far as a plan depends on it."""

    multiprocessors: int


@dataclass(frozen=True, slots=True)
class ReduceProblem:
    """The properties of a reduction that its plan depends on.

    axes: the merged axes of x. width: elements per vector. accumulator_bytes: per partial result. light: an element
    costs two or three instructions and a single tensor is accumulated in 32 bits. past: elements from the start of a
    cache line to x. paired: a second tensor is read with x; aligned_pair: both have the same offset within a vector.
    wide_out: out is aligned to a vector. streamed_from: bytes from which rows are read with L2 evict_first.
    """

    axes: MergedAxes
    itemsize: int
    width: int
    accumulator_bytes: int
    light: bool = True
    past: int = 0
    paired: bool = False
    aligned_pair: bool = True
    wide_out: bool = True
    streamed_from: int = STREAMED_FROM

    @property
    def size(self) -> int:
        """Elements of x."""
        return self.axes.length * self.axes.count

    @property
    def nbytes(self) -> int:
        """Bytes of x."""
        return self.size * self.itemsize

    @property
    def shift(self) -> int:
        """Elements from an aligned address to x."""
        return self.past % self.width

    def streams(self, megabytes: int) -> bool:
        """Whether reads are L2 evict_first, as for sizes up to `megabytes`."""
        nbytes = self.nbytes * (2 if self.paired else 1)
        return nbytes >= self.streamed_from and nbytes >> 20 <= megabytes


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """Launch of a reduction.

    template: template arguments after the functor. numbers: kernel arguments after the functor's value. scratch: the
    part of the workspace after them: "flagged" (flagged partials), "counters" (arrival counters and partials), or none.
    reason: why this kernel was chosen.
    """

    kernel: str
    template: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    numbers: tuple[Any, ...]
    reason: str
    scratch: str = ""

    def expression(self, functor: str) -> str:
        """C++ name of the kernel instance."""
        return f"{self.kernel}<{functor}, {self.template}>"

    def __str__(self) -> str:
        grid, block = ("x".join(map(str, size)) for size in (self.grid, self.block))
        return f"{self.kernel}<{self.template}> grid {grid} block {block}: {self.reason}"


def plan(problem: ReduceProblem, device: GpuSize) -> ReducePlan:
    """Kernel and launch of `problem` on `device`. Raises AxisError for axes that alternate too often."""
    layout = problem.axes.two_groups()
    if problem.axes.length == 1 and FEW_ELEMENTS < problem.axes.count <= LARGEST:  # one row of columns
        layout = Reduction(1, 1, 1, 1, problem.axes.count)
    elif problem.axes.length == 1:
        layout = Reduction(problem.axes.count, 1, 1, 1, 1)
    if layout is None or (problem.paired and not problem.aligned_pair):
        return _any_axes(problem, device, "more than two groups of axes" if layout is None else "unequal alignment")
    if max(layout.c, layout.length, layout.a * layout.b) > LARGEST and layout.c * layout.r2 > 1:
        return _any_axes(problem, device, "more than 2^31 rows or columns")
    if layout.c == 1 and layout.r2 == 1:
        return _rows(problem, layout.a, layout.r1, device)
    if problem.paired:
        return _any_axes(problem, device, "two tensors along columns")
    if layout.r2 == 1:
        return _few_columns(problem, layout) or _columns(problem, layout, device)
    return _two_groups(problem, layout, device)


def most_splits(count: int, length: int) -> int:
    """Maximum blocks per result, for `count` results of `length` elements: more blocks for fewer results."""
    return max(1, min(MOST_SPLITS, (1 << 16) // max(count, 1), length // THREADS))


def most_partials(count: int, length: int) -> int:
    """Maximum partial results of any plan for `count` results of `length` elements each."""
    once = min(ONCE_BLOCKS, count * length // ONCE_THREADS)
    return max(count * most_splits(count, length), once)


# ---- element by element ----------------------------------------------------------------------------------------------


def _lane_bits(length: int, most: int) -> int:
    """Base-2 logarithm of the lanes that read `length` elements with all loads in flight; at most `most`."""
    return min((-(-length // ELEMENTS_EACH) - 1).bit_length(), most)


def _elements(problem: ReduceProblem, pattern: str, struct: Array, bits: int, threads: int, reason: str) -> ReducePlan:
    count, length = problem.axes.count, problem.axes.length
    numbers = (struct, np.int32(count), np.int32(bits), np.int32(length))
    grid = (-(-count // (threads >> bits)), 1)
    return ReducePlan("reduce_elements_lanes", pattern, grid, (threads,), numbers, reason, "counters")


def _few_rows(problem: ReduceProblem, rows: int, length: int) -> ReducePlan | None:
    few = problem.size <= FEW_ELEMENTS
    whole = problem.shift == length % problem.width == 0
    short = not whole and length * problem.itemsize <= SHORT_BYTES and problem.size <= LARGEST
    struct = np.array((length, 0), BY_ROW_STRUCT)
    odd = not whole and problem.itemsize == 4 and length in ODD_ROWS and not problem.paired
    if odd and not problem.streams(STREAMED_ROWS):
        return _elements(problem, "BY_ROW", struct, _lane_bits(length, 8), THREADS, "unaligned rows")
    if length > ELEMENTS_LENGTH or not (few or short):
        return None
    bits = _lane_bits(length, 5)
    threads = min(ELEMENTS_THREADS, -(-(rows << bits) // WARP) * WARP)
    return _elements(problem, "BY_ROW", struct, bits, threads, "few elements" if few else "short unaligned rows")


def _few_columns(problem: ReduceProblem, layout: Reduction) -> ReducePlan | None:
    few = problem.size <= FEW_ELEMENTS
    short = layout.r1 * layout.c * problem.itemsize <= SHORT_BYTES and problem.size <= LARGEST
    if layout.length > ELEMENTS_LENGTH or layout.length == 1 or not (few or short):
        return None
    bits = _lane_bits(layout.length, 5)
    lanes = max(WARP, 1 << (min(layout.count << bits, ELEMENTS_THREADS) - 1).bit_length())
    struct = np.array((layout.length, divisor(layout.c)), BY_COLUMN_STRUCT)
    return _elements(problem, "BY_COLUMN", struct, bits, lanes, "few elements" if few else "short columns")


def _digits(axes: tuple[tuple[int, int], ...]) -> Array:
    """A `Digits` of `include/reduce_elements.cuh` from (length, stride), outermost first."""
    if len(axes) > DIGITS:
        msg = f"axes alternate between retained and reduced {len(axes)} times; at most {DIGITS} are supported"
        raise AxisError(msg)
    found = np.zeros((), DIGITS_STRUCT)
    found["length"][:] = divisor(1)
    found["count"] = max(len(axes), 1)
    for at, (length, stride) in enumerate(reversed(axes)):
        found["length"][at], found["stride"][at] = divisor(length), stride
    return found


def _any_axes(problem: ReduceProblem, device: GpuSize, reason: str) -> ReducePlan:
    """Reduction over any axes, one element per load."""
    axes, (count, length) = problem.axes, (problem.axes.count, problem.axes.length)
    if max(count, length) > LARGEST:
        msg = f"{count} results of {length} elements over these axes: 2^31 or more are not supported"
        raise AxisError(msg)
    innermost = axes.reduced[-1] if axes.reduced else True
    bits = _lane_bits(length, 8 if innermost or count < WARP else 3)
    blocks = -(-count // (THREADS >> bits))
    wanted = ELEMENTS_BLOCKS * device.multiprocessors // blocks
    splits = max(1, min(most_splits(count, length), length // (ELEMENTS_EACH << bits), wanted, LARGEST_GRID))
    share = -(-length // splits)
    layout = axes.two_groups()
    struct = _any_struct(axes, innermost=innermost) if layout is None else _two_struct(layout)
    numbers = (struct, np.int32(count), np.int32(bits), np.int32(share))
    grid = (blocks, -(-length // share))
    pattern = "ANY_AXES" if layout is None else "TWO_GROUPS"
    return ReducePlan("reduce_elements_lanes", pattern, grid, (THREADS,), numbers, reason, "counters")


def _any_struct(axes: MergedAxes, *, innermost: bool) -> Array:
    struct = np.zeros((), ANY_AXES_STRUCT)
    struct["length"], struct["innermost"] = axes.length, innermost
    struct["kept"], struct["reduced"] = _digits(axes.strides(reduced=False)), _digits(axes.strides(reduced=True))
    return struct


def _two_struct(layout: Reduction) -> Array:
    a, r1, b, r2, c = layout.shape
    if r2 == 1:
        b, r2, r1 = 1, r1, 1
    struct = np.zeros((), TWO_GROUPS_STRUCT)
    struct["length"], struct["innermost"] = layout.length, c == 1
    struct["stride_r1"], struct["stride_a"] = b * r2 * c, r1 * b * r2 * c
    struct["b"], struct["r2"], struct["c"] = divisor(b), divisor(r2), divisor(c)
    del a
    return struct


# ---- rows ------------------------------------------------------------------------------------------------------------


def _rows(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan:
    choices = (_few_rows, partial(_once, device=device), _block, partial(_grid, device=device))
    return next((found for choice in choices if (found := choice(problem, rows, length))), None) or _lanes(
        problem, rows, length
    )


def _template(problem: ReduceProblem, *, whole: bool, streams: bool) -> str:
    return f"{problem.width}, {flag(streams)}, {flag(whole)}"


def _is_whole(problem: ReduceProblem, length: int) -> bool:
    return problem.shift == length % problem.width == 0


def _lanes(problem: ReduceProblem, rows: int, length: int) -> ReducePlan:
    vectors = touched_vectors(rows, length, problem.width, problem.shift)
    lanes = lanes_for(VECTORS_PER_LANE, vectors, WARP if vectors <= SHORT_ROW else THREADS)
    numbers = (np.int64(rows), np.int64(length), np.int32(problem.shift), np.int32(lanes))
    template = _template(problem, whole=_is_whole(problem, length), streams=problem.streams(STREAMED_ROWS))
    grid = (-(-rows * lanes // THREADS),)
    return ReducePlan("reduce_rows_lanes", template, grid, (THREADS,), numbers, f"{lanes} lanes a row")


def block_template(width: int, *, paired: bool, streams: bool) -> str:
    """Template arguments of reduce_rows_block."""
    each = _each(paired=paired)
    return f"{width}, {flag(streams)}, {BLOCK_VECTORS[-1] // each}, {each}"


def _each(*, paired: bool) -> int:
    """Vectors per thread in flight, for each tensor."""
    return ONCE_EACH // 2 if paired else ONCE_EACH


def _block(problem: ReduceProblem, rows: int, length: int) -> ReducePlan | None:
    vectors = length // problem.width
    if not _is_whole(problem, length) or problem.itemsize != 4 or problem.width != 4 or vectors not in BLOCK_VECTORS:
        return None
    times = 1 if problem.paired else BLOCK_STREAMED
    template = block_template(problem.width, paired=problem.paired, streams=problem.streams(STREAMED_ROWS * times))
    threads = BLOCK_VECTORS[-1] // _each(paired=problem.paired)
    return ReducePlan(
        "reduce_rows_block", template, (rows,), (threads,), (np.int32(vectors),), "one block holds a row in flight"
    )


def once_template(width: int, threads: int, *, paired: bool) -> str:
    """Template arguments of reduce_rows_once."""
    return f"{width}, {threads}, {_each(paired=paired)}"


def has_once(width: int, *, light: bool, paired: bool) -> bool:
    """Whether the functor leaves enough registers to have all vectors in flight."""
    return light and width >= (2 if paired else 4)


def _once(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan | None:
    """Large rows, fewer than resident blocks; pairs of tensors only as one row."""
    if not has_once(problem.width, light=problem.light, paired=problem.paired) or problem.nbytes < ONCE_BYTES:
        return None
    if rows >= GRID_RESIDENT * device.multiprocessors or (problem.paired and rows > 1):
        return None
    threads, most = (ONE_ROW_THREADS, ONE_ROW_BLOCKS) if rows == 1 else (ONCE_THREADS, ONCE_BLOCKS)
    vectors = touched_vectors(rows, length, problem.width, problem.past, LINE_VECTORS * problem.width)
    splits = -(-vectors // (threads * _each(paired=problem.paired)))
    lanes, collecting = collectors(rows, splits, threads)
    if splits < 2 or rows * splits > most or collecting >= device.multiprocessors or length > LARGEST:
        return None
    share = -(-vectors // (splits * LINE_VECTORS)) * LINE_VECTORS
    sizes = (np.int32(number) for number in (problem.past, share, lanes))
    numbers = (np.int32(rows), np.int64(length), *sizes, divisor(splits))
    template = once_template(problem.width, threads, paired=problem.paired)
    grid = (rows * splits + collecting,)
    return ReducePlan(
        "reduce_rows_once", template, grid, (threads,), numbers, "few large rows, read in one wave", "flagged"
    )


def collectors(rows: int, splits: int, threads: int) -> tuple[int, int]:
    """Threads that merge the `splits` partial results of a row; blocks of `threads` that all rows need."""
    lanes = WARP if splits <= WARP_COLLECTS else threads
    return lanes, -(-rows * lanes // threads)


def _grid(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan | None:
    """Rows longer than one block reads at once, fewer than resident blocks."""
    width, paired = problem.width, problem.paired
    most = min(most_splits(rows, length), length * (1 + paired) // (width * THREADS * MINIMUM_VECTORS))
    most = min(most, length // (width * THREADS), LARGEST_GRID)
    resident = GRID_RESIDENT - (problem.itemsize == 8)  # power of a double
    one_block = rows >= device.multiprocessors and length <= ROW_OF_BLOCK * width * THREADS
    if most < 2 or rows >= resident * device.multiprocessors or one_block:
        return None
    each = 2 * GRID_RESIDENT if paired else GRID_BLOCKS
    each = GRID_RESIDENT if problem.nbytes > MANY_BYTES else each
    line = LINE_VECTORS * width
    share = -(-length // (max(1, min(most, each * device.multiprocessors // rows)) * line)) * line
    splits = -(-length // share)
    if splits < 2:
        return None
    numbers = _grid_numbers(length, problem.shift, share, 1, 1, 1)
    template = _template(problem, whole=_is_whole(problem, length), streams=problem.streams(STREAMED_ROWS))
    reason = "long rows, fewer than resident blocks"
    return ReducePlan("reduce_rows_grid", template, (rows, splits), (THREADS,), numbers, reason, "flagged")


def _grid_numbers(length: int, shift: int, share: int, *counts: int) -> tuple[Any, ...]:
    """Kernel arguments; counts: segments, inner rows, segments per split."""
    return (np.int64(length), np.int32(shift), np.int64(share), *(np.int32(number) for number in counts))


def touched_vectors(rows: int, length: int, width: int, shift: int, unit: int = 0) -> int:
    """Maximum vectors from the start of a unit of `unit` elements (default: a vector) to the end of a row.

    The first row begins `shift` elements into a unit.
    """
    unit = unit or width
    if rows == 1:
        return -(-(shift + length) // width)
    step = gcd(length, unit)  # offsets of rows within a unit are multiples of it
    return -(-(unit - step + shift % step + length) // width)


def lanes_for(vectors_per_lane: Parameter, vectors: float, most: int = WARP) -> int:
    """Threads, a power of two up to `most`, for a row of `vectors`; the parameter is queried only if it matters."""
    if vectors > max(vectors_per_lane.candidates) * most // 2:
        return most
    lanes, each = 1, vectors_per_lane.value()
    while lanes < most and each * lanes < vectors:
        lanes *= 2
    return lanes


# ---- columns ---------------------------------------------------------------------------------------------------------


class _Fold(NamedTuple):
    """Rows of a column layout: elements per row, elements after the whole rows, whether rows are whole vectors."""

    columns: int
    rows: int
    rest: int
    whole: bool


def _fold(problem: ReduceProblem, layout: Reduction) -> _Fold:
    """Rows unchanged if they are whole vectors; narrow ones in groups that are whole vectors."""
    width, c = problem.width, layout.c
    if c % width == 0 and problem.shift == 0 and problem.wide_out:
        return _Fold(c, layout.length, 0, whole=True)
    group = width // gcd(c, width)
    if c * group <= (MOST_LANES - 1) * width and layout.r1 >= group:
        return _Fold(c * group, layout.r1 // group, layout.r1 % group * c, whole=False)
    return _Fold(c, layout.r1, 0, whole=False)


def _columns(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan:
    """Sums along outer axes; over two groups of axes only if rows are whole vectors."""
    width, fold = problem.width, _fold(problem, layout)
    further = 0 if fold.whole else 1  # one lane more for the vector that ends a row
    vectors = -(-fold.columns // width) + further
    rows = fold.rows + (fold.rest > 0)
    folded = fold.columns > layout.c
    step = 1 if fold.whole or folded else width // gcd(layout.c, width)  # distance of rows of equal alignment
    all_vectors = layout.a * layout.b * rows * vectors
    each = max(1, min(8 if problem.itemsize == 4 else 4, -(-all_vectors // (COLUMN_BUSY * device.multiprocessors))))
    lanes, splits, threads = _column_block(vectors, rows, each, layout, device, step)
    tile = fold.columns if lanes == vectors else (lanes - further) * width
    tiles = -(-fold.columns // tile)
    share = -(-rows // (splits * step)) * step
    splits = -(-rows // share)
    down = _rows_of_block(min(share, rows), lanes, threads, step, each)
    in_warp = WARP // lanes if lanes < WARP and lanes & (lanes - 1) == 0 and step == 1 else 1
    if down % in_warp:
        in_warp = 1
    outer = layout.a * layout.b * tiles
    depth = 1 if splits > 1 else max(1, min(threads // (lanes * down), outer // device.multiprocessors, 64))
    struct = np.zeros((), COLUMN_STRUCT)
    struct["stride_b"] = layout.r2 * layout.c
    struct["stride_r1"] = fold.columns if layout.r2 == layout.b == 1 else layout.b * layout.r2 * layout.c
    struct["stride_a"] = layout.length * layout.b * layout.c
    struct["c"], struct["kept"], struct["rows"], struct["rest"] = fold.columns, layout.c, fold.rows, fold.rest
    struct["share"], struct["width"], struct["outer"] = share, tile, outer
    struct["r2"], struct["b"], struct["tiles"] = divisor(layout.r2), divisor(layout.b), divisor(tiles)
    struct["in_warp"] = in_warp
    streams = fold.whole and problem.streams(STREAMED_COLUMNS)
    template = f"{width}, {flag(streams)}, {flag(fold.whole)}"
    numbers = (struct, np.int32(problem.shift))
    grid, block = (-(-outer // depth), splits), (lanes, down, depth)
    reason = f"columns, {'folded ' * folded}{'whole' if fold.whole else 'unaligned'} vectors"
    return ReducePlan("reduce_columns_grid", template, grid, block, numbers, reason, "counters")


def _rows_of_block(rows: int, lanes: int, threads: int, step: int, in_flight: int) -> int:
    """Threads along the rows: enough to have all rows in flight, within the limit; whole steps, or whole warps."""
    most = max(1, threads // lanes)
    wanted = min(most, -(-rows // in_flight))
    if lanes < WARP and lanes & (lanes - 1) == 0 and step == 1 and wanted > WARP // lanes:
        wanted -= wanted % (WARP // lanes)
    return rows if rows <= min(step, most) else max(step, wanted // step * step)


def _column_block(
    vectors: int, rows: int, in_flight: int, layout: Reduction, device: GpuSize, step: int
) -> tuple[int, int, int]:
    """Lanes along the columns, splits per column, threads per block.

    One block covers all of a few columns, so that consecutive rows are read without a gap.
    """
    outer = layout.a * layout.b
    target = (COLUMN_BLOCKS if rows > WHOLE_ROWS else 1.5) * device.multiprocessors
    choice = tuple(min(lanes, vectors) for lanes in COLUMN_LANES) if vectors > MOST_LANES else (vectors,)
    for lanes in choice:
        if outer * -(-vectors // lanes) >= target:
            return lanes, 1, THREADS
    line = min(LINE_VECTORS, vectors) if vectors > MOST_LANES else vectors
    if rows <= WHOLE_ROWS and outer * -(-vectors // line) >= 3 * device.multiprocessors // 4:
        return line, 1, COLUMN_THREADS
    for lanes in choice:
        blocks = outer * -(-vectors // lanes)
        each = max(step, THREADS // lanes)
        most = max(1, min(most_splits(layout.count, layout.length), rows // (min(4, in_flight) * each)))
        if blocks * most >= target:
            break
    splits = max(1, min(most, COLUMN_BLOCKS * device.multiprocessors // blocks))
    return lanes, splits, THREADS if blocks * splits >= device.multiprocessors else COLUMN_THREADS


# ---- two groups of axes ----------------------------------------------------------------------------------------------


def _two_groups(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan:
    if problem.size <= FEW_ELEMENTS:
        return _any_axes(problem, device, "few elements of two groups of axes")
    if threads := _slab_threads(problem, layout, device):
        struct = np.array((layout.r1, layout.b, layout.r2, layout.c), SLAB_STRUCT)
        template = f"{problem.width}, {flag(problem.streams(STREAMED_ROWS))}"
        numbers = (struct, np.int32(problem.past))
        grid = (layout.a * layout.b,)
        return ReducePlan("reduce_slabs_block", template, grid, (threads,), numbers, "slab sums fit one block")
    if layout.c == 1 and layout.r2 >= 2 * problem.width * THREADS and layout.r1 > 1:
        return _segments(problem, layout, device)
    if layout.c % problem.width == 0 and problem.shift == 0 and problem.wide_out:
        return _columns(problem, layout, device)
    return _any_axes(problem, device, "two groups of axes, unaligned rows")


def _segments(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan:
    """Results that consist of long contiguous segments."""
    rows = layout.a * layout.b
    most = min(most_splits(rows, layout.length), layout.r1, LARGEST_GRID)
    if rows >= (GRID_RESIDENT - 1) * device.multiprocessors:
        most = 1
    splits = max(1, min(most, 2 * GRID_RESIDENT * device.multiprocessors // rows))
    each = -(-layout.r1 // splits)
    splits = -(-layout.r1 // each)
    numbers = _grid_numbers(layout.r2, problem.shift, layout.r2, layout.r1, layout.b, each)
    template = _template(problem, whole=_is_whole(problem, layout.r2), streams=problem.streams(STREAMED_ROWS))
    reason = "long segments of each result"
    return ReducePlan("reduce_rows_grid", template, (rows, splits), (THREADS,), numbers, reason, "flagged")


def _slab_threads(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> int:
    """Threads per block of reduce_slabs_block; 0 if another kernel is better or slabs are not equally aligned."""
    slab, width = layout.r2 * layout.c, problem.width
    if slab < SLAB_VECTORS * width or slab * problem.accumulator_bytes > SLAB_BYTES:
        return 0
    if layout.b * slab % width or layout.a * layout.b < device.multiprocessors or layout.r1 > LARGEST:
        return 0
    vectors = -(-(LINE_VECTORS * width - 1 + slab) // width)
    rounds = -(-vectors // SLAB_THREADS)
    threads = -(-vectors // (rounds * WARP)) * WARP
    return threads if layout.c <= threads else 0
