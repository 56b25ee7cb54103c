"""Plans of kernels for rows: contiguous elements, or long contiguous segments, are reduced in vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.axes import Reduction
from opgauge.ops._core.tuning import Parameter, declare
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.reduction.elements import few_rows
from opgauge.ops._cuda.reduction.problem import (
    DOUBLE_BYTES,
    GRID_RESIDENT,
    HALF_BYTES,
    LARGEST,
    LARGEST_GRID,
    LINE_VECTORS,
    STREAMED_ROWS,
    THREADS,
    GpuSize,
    ReducePlan,
    ReduceProblem,
    most_splits,
    touched_vectors,
)
from opgauge.ops._cuda.source import flag
from opgauge.ops._cuda.struct import divisor

VECTORS_PER_LANE = declare(
    "reduction.packs_per_lane",
    4,
    (1, 2, 4, 8),
    backend="cuda",
    ops=("dot", "mean", "p_norm"),
    why="vectors that a lane reads before a row gets more lanes: rows per block against loads in flight",
)
SHORT_ROW = WARP * 8
"""Maximum vectors of a row for which one warp or less reduces it."""
FEWEST_VECTORS = 4
"""Vectors per lane down to which a row gets more lanes while multiprocessors are idle; half as many within a warp, of
doubles, and of elements that are expensive: fewer lanes cost 6 to 31 %. One of pairs of 16-bit tensors: 10 to 22 %."""
BLOCK_VECTORS = range(513, 1025)
"""Vectors of an aligned row of 4-byte elements for reduce_rows_block: reduce_rows_lanes costs 3 to 4 %."""
BLOCK_STREAMED = 4
"""Multiple of STREAMED_ROWS up to which reduce_rows_block streams: 786 MB take 0.98 of the time, 1 GB 1.03."""
GRID_BLOCKS, MINIMUM_VECTORS = 64, 4
"""Blocks per multiprocessor that share few rows; minimum vectors per thread, over all tensors, for one block more."""
LANES_VECTORS = 16
"""Maximum vectors per thread, over all tensors, for which one block reduces a row however few rows there are: partial
results of two blocks cost as much as 8 to 16 vectors."""
ROW_OF_BLOCK = 8
"""Maximum vectors per thread for which one block reduces a row, if there is one for three of four multiprocessors."""
MANY_BYTES = 384 << 20
"""Size of a tensor above which rows are shared by the resident blocks only; pairs of tensors by twice as many."""
ONCE_BYTES, ONCE_EACH, ONCE_BLOCKS, ONE_ROW_BLOCKS = 32 << 20, 2, 14 << 10, 9 << 10
"""reduce_rows_once: minimum bytes of x, vectors per thread, and maximum blocks: reduce_rows_grid costs 3 to 9 %."""
ALONE_EACH = 4
"""Vectors per thread of reduce_rows_block for few rows, for each tensor; one of unaligned rows of 16 bits that then
fill one to two blocks of the usual size: lanes cost 6 to 17 %."""
ONCE_THREADS, ONE_ROW_THREADS, WARP_COLLECTS = 512, 1024, 128
"""Threads per block of reduce_rows_once, for several rows and for one; maximum partial results that a warp merges."""


def rows_plan(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan:
    few = few_rows(problem, rows, length) or _once(problem, rows, length, device)
    found = few or _block(problem, rows, length) or _alone(problem, rows, length, device)
    return found or _grid(problem, rows, length, device) or _lanes(problem, rows, length, device)


def rows_beside(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan:
    """The same by kernels whose functor may write beside what it reads."""
    few = few_rows(problem, rows, length) or _once(problem, rows, length, device)
    return few or _grid(problem, rows, length, device) or _lanes(problem, rows, length, device)


def beside_templates(width: int) -> list[tuple[str, str]]:
    """Kernels that `rows_beside` plans, other than `few_rows`, each with its template arguments after the functor."""
    wholes = (True,) if width == 1 else (False, True)
    found = [
        (f"reduce_rows_{scope}", f"{width}, false, {flag(whole)}") for scope in ("lanes", "grid") for whole in wholes
    ]
    if has_once(width, light=True, paired=False):
        found += [
            ("reduce_rows_once", once_template(width, threads, paired=False))
            for threads in (ONCE_THREADS, ONE_ROW_THREADS)
        ]
    return found


def _template(problem: ReduceProblem, *, whole: bool, streams: bool) -> str:
    return f"{problem.width}, {flag(streams)}, {flag(whole)}"


def _lanes(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan:
    vectors = touched_vectors(rows, length, problem.width, problem.shift)
    lanes = lanes_for(VECTORS_PER_LANE, vectors, WARP if vectors <= SHORT_ROW else THREADS)
    cheap = problem.light and problem.itemsize < DOUBLE_BYTES
    is_pair_of_halves = problem.paired and problem.itemsize == HALF_BYTES
    while lanes < THREADS and rows * lanes < device.multiprocessors * THREADS:
        least = 1 if is_pair_of_halves else FEWEST_VECTORS if cheap and lanes >= WARP else FEWEST_VECTORS // 2
        if least * lanes >= vectors:
            break
        lanes *= 2
    numbers = (np.int64(rows), np.int64(length), np.int32(problem.shift), np.int32(lanes))
    template = _template(problem, whole=problem.has_whole_rows(length), streams=problem.streams(STREAMED_ROWS))
    grid = (-(-rows * lanes // THREADS),)
    return ReducePlan("reduce_rows_lanes", template, grid, (THREADS,), numbers, f"{lanes} lanes a row")


def block_template(width: int, *, paired: bool, streams: bool) -> str:
    """Template arguments of reduce_rows_block."""
    each = _each(paired=paired)
    return f"{width}, {flag(streams)}, {BLOCK_VECTORS[-1] // each}, {each}, true"


def _each(*, paired: bool) -> int:
    """Vectors per thread in flight, for each tensor."""
    return ONCE_EACH // 2 if paired else ONCE_EACH


def _block(problem: ReduceProblem, rows: int, length: int) -> ReducePlan | None:
    vectors = length // problem.width
    fits = problem.has_whole_rows(length) and vectors in BLOCK_VECTORS
    if not fits or problem.itemsize != 4 or problem.width != 4:
        return None
    times = 1 if problem.paired else BLOCK_STREAMED
    template = block_template(problem.width, paired=problem.paired, streams=problem.streams(STREAMED_ROWS * times))
    threads = BLOCK_VECTORS[-1] // _each(paired=problem.paired)
    numbers = np.int32(length), np.int32(0)
    return ReducePlan("reduce_rows_block", template, (rows,), (threads,), numbers, "one block holds a row in flight")


def alone_template(width: int, itemsize: int, *, paired: bool, whole: bool) -> str:
    """Template arguments of reduce_rows_block for few rows."""
    return f"{width}, false, {_alone_threads(itemsize, paired=paired)}, {ALONE_EACH}, {flag(whole)}"


def _alone_threads(itemsize: int, *, paired: bool) -> int:
    """Maximum threads of a block, limited by registers."""
    return ONE_ROW_THREADS // 2 if paired or itemsize >= DOUBLE_BYTES else ONE_ROW_THREADS


def _alone(problem: ReduceProblem, rows: int, length: int, device: GpuSize) -> ReducePlan | None:
    """Rows, at most one per multiprocessor, that one block reads at once: partial results would cost more."""
    vectors = touched_vectors(rows, length, problem.width, problem.shift)
    most = _alone_threads(problem.itemsize, paired=problem.paired)
    whole = problem.has_whole_rows(length)
    if vectors > 2 * THREADS:
        threads = max(ONE_ROW_THREADS // 2, -(-vectors // (ALONE_EACH * WARP)) * WARP)
    elif vectors > THREADS and problem.itemsize == HALF_BYTES and not (whole or problem.paired):
        threads = -(-vectors // WARP) * WARP
    else:
        return None
    if rows > device.multiprocessors or threads > most or not problem.light:
        return None
    template = alone_template(problem.width, problem.itemsize, paired=problem.paired, whole=whole)
    numbers = np.int32(length), np.int32(problem.shift)
    return ReducePlan(
        "reduce_rows_block", template, (rows,), (threads,), numbers, "few rows, each in flight in a block"
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
        "reduce_rows_once", template, grid, (threads,), numbers, "few large rows, read in one wave", shares=True
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
    one_block = rows >= 3 * device.multiprocessors // 4 and length <= ROW_OF_BLOCK * width * THREADS
    one_block |= problem.light and length * (1 + paired) <= LANES_VECTORS * width * THREADS
    if most < 2 or rows >= resident * device.multiprocessors or one_block:
        return None
    each = 2 * GRID_RESIDENT if paired else GRID_BLOCKS
    each = GRID_RESIDENT if problem.nbytes > MANY_BYTES else each
    line = LINE_VECTORS * width
    share = -(-length // (max(1, min(most, each * device.multiprocessors // rows)) * line)) * line
    splits = -(-length // share)
    if splits < 2:
        return None
    numbers = _grid_numbers(length, problem.shift, 1, share, 1, 1)
    template = _template(problem, whole=problem.has_whole_rows(length), streams=problem.streams(STREAMED_ROWS))
    reason = "long rows, fewer than resident blocks"
    return ReducePlan("reduce_rows_grid", template, (rows, splits), (THREADS,), numbers, reason, shares=True)


def _grid_numbers(length: int, shift: int, segments: int, share: int, *counts: int) -> tuple[Any, ...]:
    """Kernel arguments; counts: inner rows, segments per split."""
    return (np.int64(length), *map(np.int32, (shift, segments)), np.int64(share), *map(np.int32, counts))


def lanes_for(vectors_per_lane: Parameter, vectors: float, most: int = WARP) -> int:
    """Threads, a power of two up to `most`, for a row of `vectors`; the parameter is queried only if it matters."""
    if vectors > max(vectors_per_lane.candidates) * most // 2:
        return most
    lanes, each = 1, vectors_per_lane.value()
    while lanes < most and each * lanes < vectors:
        lanes *= 2
    return lanes


def segments_plan(problem: ReduceProblem, layout: Reduction, device: GpuSize) -> ReducePlan:
    """Results that consist of long contiguous segments."""
    rows = layout.a * layout.b
    most = min(most_splits(rows, layout.length), layout.r1, LARGEST_GRID)
    if rows >= (GRID_RESIDENT - 1) * device.multiprocessors:
        most = 1
    splits = max(1, min(most, 2 * GRID_RESIDENT * device.multiprocessors // rows))
    each = -(-layout.r1 // splits)
    splits = -(-layout.r1 // each)
    numbers = _grid_numbers(layout.r2, problem.shift, layout.r1, layout.r2, layout.b, each)
    template = _template(problem, whole=problem.has_whole_rows(layout.r2), streams=problem.streams(STREAMED_ROWS))
    reason = "long segments of each result"
    return ReducePlan("reduce_rows_grid", template, (rows, splits), (THREADS,), numbers, reason, shares=True)
