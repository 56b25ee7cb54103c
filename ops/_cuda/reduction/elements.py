"""Plans of reduce_elements_lanes: one element per load, for few elements, short rows or columns, and any axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgauge.ops._core.axes import MergedAxes, Reduction
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.op import Array
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.reduction.problem import (
    DOUBLE_BYTES,
    HALF_BYTES,
    LARGEST,
    LARGEST_GRID,
    STREAMED_FROM,
    THREADS,
    GpuSize,
    ReducePlan,
    ReduceProblem,
    most_splits,
)
from opgauge.ops._cuda.source import flag
from opgauge.ops._cuda.struct import DIVISOR, pack

ELEMENTS_EACH, FEWEST_EACH, ELEMENTS_LENGTH = 8, 2, 256
"""Loads in flight per lane, those of the shortest sums, and maximum length of a sum. Few rows are limited by the
block's loads only, unless they are whole vectors of 4-byte elements of two tensors: masked vectors cost 15 to 35 %,
whole ones of two bytes 10 %, those of one tensor 4 to 8 %."""
ELEMENTS_THREADS, MANY_LANES, ELEMENTS_BLOCKS = 128, 1 << 16, 8
"""Threads per block of single sums, lanes from which they are `THREADS`, blocks per multiprocessor below which several
share a result. Many small blocks cost more than their work: 217600 sums of two took 1.87 us, not 1.41."""
SHORT_BYTES = 96
"""Maximum bytes of a row of partial vectors, or of a column, for which single elements are as fast as vectors."""
LONG_EACH, LONG_COLUMN, MOST_BITS = 16, 512, 8
"""Loads in flight per lane of longer columns than that, and base-2 logarithm of the most lanes of a column."""
LONGEST_COLUMN, SHORT_COLUMN = LONG_EACH << MOST_BITS, 32
"""Maximum length of columns of single loads; and of those that are faster than by masked vectors however many they are:
an H200 took 110 us, not 579, for 20000 x 8 x 1001 in float16, and 172, not 403, in float32."""
FEW_IN_COLUMNS, COLUMN_WORK = (1 << 18, 1 << 22), 1 << 29
"""Elements up to which columns are read by single loads, at least and at most; and the product of these and a column's
length. Longer columns have fewer neighbours in a block, which read parts of a sector. Up to 45 % less than by vectors
from cache on an H200, 30 % from memory; three times as many elements took up to twice as long."""
FEW_IN_ROWS = 1 << 18
"""Elements of two or eight bytes up to which rows are read by single loads: an H200 took 1.1 to 1.25 us, not 1.35 to
1.45, for 100000 halves, and 1.25 us, not 1.4, for doubles in rows of 32 or more; of four bytes, 3 % more or less."""
ODD_EACH, ODD_LENGTH = 9, 9 * THREADS
"""Loads in flight and maximum length of unaligned rows of elements of 4 bytes or more, so that 33 x 33 is 9 elements
for each of 128 lanes: masked vectors take up to 1.9 times as long from cache and 1.2 from memory. Of two tensors and of
8-byte elements, where all fit in the cache: others take 0.75 to 1.1 times as long by vectors."""
SINGLE_SUMS = ("BY_ROW", "BY_COLUMN")
"""Patterns of which a lane reads all of its elements at once."""
LANE_BITS = 8
"""Bits for the base-2 logarithm of the lanes, below the results per block, in one argument of the kernel."""
DIGITS, FEW_DIGITS = 6, 3
"""Maximum number of merged axes, retained or reduced, of `reduce_elements_lanes`; and of few ones, whose offsets have
code of their own."""
DIGITS_STRUCT = np.dtype(
    [("count", np.int32), ("unused", np.int32), ("jump", np.int64, (DIGITS,)), ("length", DIVISOR, (DIGITS,))]
)
BY_ROW_STRUCT = np.dtype([("length", np.int32), ("unused", np.int32)])
BY_COLUMN_STRUCT = np.dtype([("length", np.int32), ("columns", DIVISOR)])
TWO_GROUPS_STRUCT = np.dtype(
    [
        ("length", np.int32),
        ("innermost", np.int32),
        *((name, np.int32) for name in ("jump_a", "jump_b", "jump_r1")),
        *((name, DIVISOR) for name in ("b", "r2", "c")),
    ]
)
ANY_AXES_STRUCT = np.dtype(
    [("length", np.int32), ("innermost", np.int32), ("kept", DIGITS_STRUCT), ("reduced", DIGITS_STRUCT)]
)
STRUCTS = {
    "Digits": DIGITS_STRUCT,
    "Elements<BY_ROW>": BY_ROW_STRUCT,
    "Elements<BY_COLUMN>": BY_COLUMN_STRUCT,
    "Elements<TWO_GROUPS>": TWO_GROUPS_STRUCT,
    "Elements<ANY_AXES>": ANY_AXES_STRUCT,
}
"""Structs of `include/reduce_elements.cuh`. innermost: whether the last axis is reduced. Jumps are in elements."""


def lane_bits(length: int, most: int, each: int = ELEMENTS_EACH) -> int:
    """Base-2 logarithm of the lanes that read `length` elements with all loads in flight; at most `most`."""
    return min((-(-length // each) - 1).bit_length(), most)


def elements_templates(*patterns: str, odd: bool = False) -> list[str]:
    """Template arguments of reduce_elements_lanes after the functor; odd: with those of unaligned rows."""
    found = [
        _template(pattern, each)
        for pattern in patterns
        for each in ((FEWEST_EACH, ELEMENTS_EACH) if pattern in SINGLE_SUMS else (ELEMENTS_EACH,))
    ]
    found += [_template(pattern, LONG_EACH) for pattern in patterns if pattern == "BY_COLUMN"]
    return found + [_template("BY_ROW", ODD_EACH, streams=streams) for streams in (False, True) if odd]


def _template(pattern: str, each: int, *, streams: bool = False) -> str:
    return f"{pattern}, {each}, {flag(streams)}"


def _elements(
    problem: ReduceProblem, template: str, struct: Array, bits: int, threads: int, reason: str, share: int = 0
) -> ReducePlan:
    """2^bits of a block's threads for a result, or for each `share` elements of it."""
    count, length, groups = problem.axes.count, problem.axes.length, threads >> bits
    numbers = (struct, *map(np.int32, (count, groups << LANE_BITS | bits, share or length)))
    grid = (-(-count // groups), -(-length // share) if share else 1)
    return ReducePlan("reduce_elements_lanes", template, grid, (threads,), numbers, reason, shares=True)


def _usual_template(pattern: str, length: int) -> str:
    """Template arguments for sums of `length` of single loads, unless rows are unaligned."""
    return _template(pattern, FEWEST_EACH if length <= FEWEST_EACH else ELEMENTS_EACH)


def _most_threads(lanes: int) -> int:
    return ELEMENTS_THREADS if lanes < MANY_LANES else THREADS


def few_rows(problem: ReduceProblem, rows: int, length: int) -> ReducePlan | None:
    few = problem.few or _has_few_in_rows(problem, length)
    whole = problem.has_whole_rows(length)
    short = not whole and length * problem.itemsize <= SHORT_BYTES and problem.size <= LARGEST
    struct = pack(BY_ROW_STRUCT, {"length": length, "unused": 0})
    block = few and not (whole and problem.itemsize == 4 and problem.paired)
    if not few and not whole and _is_fastest_by_element(problem, length):
        template = _template("BY_ROW", ODD_EACH, streams=problem.read_bytes >= STREAMED_FROM)
        return _elements(problem, template, struct, lane_bits(length, 8, ODD_EACH), THREADS, "unaligned rows")
    if length > (ELEMENTS_EACH * THREADS if block else ELEMENTS_LENGTH) or not (few or short):
        return None
    bits = lane_bits(length, 8)
    threads = max(1 << bits, min(_most_threads(rows << bits), -(-(rows << bits) // WARP) * WARP))
    reason = "few elements" if few else "short unaligned rows"
    return _elements(problem, _usual_template("BY_ROW", length), struct, bits, threads, reason)


def _has_few_in_rows(problem: ReduceProblem, length: int) -> bool:
    """Whether single loads of whole rows, too, are faster than vectors, of elements of two or eight bytes."""
    return problem.size <= FEW_IN_ROWS and (
        problem.itemsize == HALF_BYTES or (problem.itemsize == DOUBLE_BYTES and length >= WARP)
    )


def _is_fastest_by_element(problem: ReduceProblem, length: int) -> bool:
    """Whether single loads of unaligned rows are faster than masked vectors."""
    if problem.itemsize < 4 or not FEWEST_EACH < length <= ODD_LENGTH or problem.size > LARGEST:
        return False
    return (problem.itemsize == 4 and not problem.paired) or problem.read_bytes < STREAMED_FROM


def few_columns(problem: ReduceProblem, layout: Reduction, longest: int = LONGEST_COLUMN) -> ReducePlan | None:
    """Columns of at most `longest` elements, of which all loads are in flight at once; None if vectors are faster."""
    length, whole = layout.length, problem.has_whole_rows(layout.c) and problem.wide_out
    few = problem.size <= max(FEW_IN_COLUMNS[0], min(FEW_IN_COLUMNS[1], COLUMN_WORK // length))
    short = layout.r1 * layout.c * problem.itemsize <= SHORT_BYTES or (length <= SHORT_COLUMN and not whole)
    if not 1 < length <= longest or problem.size > LARGEST or not (few or short):
        return None
    long = length > LONG_COLUMN
    bits = lane_bits(length, MOST_BITS, LONG_EACH if long else ELEMENTS_EACH)
    every = layout.count << bits
    threads = max(WARP, 1 << bits, 1 << (min(every, _most_threads(every)) - 1).bit_length())
    struct = pack(BY_COLUMN_STRUCT, {"length": length, "columns": layout.c})
    template = _template("BY_COLUMN", LONG_EACH) if long else _usual_template("BY_COLUMN", length)
    return _elements(problem, template, struct, bits, threads, "few elements" if few else "short columns")


def pack_digits(axes: tuple[tuple[int, int], ...]) -> Array:
    """A `Digits` of `include/reduce_elements.cuh` from (length, stride), outermost first. Raises AxisError for many."""
    if len(axes) > DIGITS:
        msg = f"axes alternate between retained and reduced {len(axes)} times; at most {DIGITS} are supported"
        raise AxisError(msg)
    absent = DIGITS - len(axes)
    lengths = [*(length for length, _ in reversed(axes)), *[1] * absent]
    jumps = [*jumps_of(axes), *[0] * absent]
    return pack(DIGITS_STRUCT, {"count": max(len(axes), 1), "unused": 0, "length": lengths, "jump": jumps})


def jumps_of(axes: Sequence[tuple[int, int]]) -> list[int]:
    """Jumps of axes (length, stride), outermost first, as offsets are found by: see `include/reduce_elements.cuh`.

    The innermost first: the stride of each axis less that of the axis within times its length.
    """
    within = (0, *(length * stride for length, stride in axes[:0:-1]))
    return [stride - before for (_, stride), before in zip(reversed(axes), within, strict=False)]


def any_axes(problem: ReduceProblem, device: GpuSize, reason: str) -> ReducePlan:
    """Reduction over any axes, one element per load."""
    axes, (count, length) = problem.axes, (problem.axes.count, problem.axes.length)
    if max(count, length) > LARGEST:
        msg = f"{count} results of {length} elements over these axes: 2^31 or more are not supported"
        raise AxisError(msg)
    innermost = axes.reduced[-1] if axes.reduced else True
    bits = lane_bits(length, 8 if innermost or count < WARP else 3)
    blocks = -(-count // (THREADS >> bits))
    wanted = ELEMENTS_BLOCKS * device.multiprocessors // blocks
    splits = max(1, min(most_splits(count, length), length // (ELEMENTS_EACH << bits), wanted, LARGEST_GRID))
    layout = axes.two_groups() if problem.size <= LARGEST else None
    struct = _any_struct(axes, innermost=innermost) if layout is None else _two_struct(layout)
    template = elements_templates("ANY_AXES" if layout is None else "TWO_GROUPS")[0]
    return _elements(problem, template, struct, bits, THREADS, reason, -(-length // splits))


def _any_struct(axes: MergedAxes, *, innermost: bool) -> Array:
    kept, reduced = (pack_digits(axes.strides(reduced=each)) for each in (False, True))
    numbers = {"length": axes.length, "innermost": innermost, "kept": kept, "reduced": reduced}
    return pack(ANY_AXES_STRUCT, numbers)


def _two_struct(layout: Reduction) -> Array:
    _, r1, b, r2, c = layout.shape
    if r2 == 1:
        b, r2, r1 = 1, r1, 1
    jumps = {"jump_a": (r1 - 1) * b * r2 * c, "jump_b": (r2 - 1) * c, "jump_r1": (b - 1) * r2 * c}
    numbers = {"length": layout.length, "innermost": c == 1, "b": b, "r2": r2, "c": c}
    return pack(TWO_GROUPS_STRUCT, {**numbers, **jumps})
