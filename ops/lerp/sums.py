"""Plans of sums of lerp's gradients, over any set of axes, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, isqrt, prod
from typing import NamedTuple

from opgauge.ops._core.broadcast import MergedOperands, merge_operands
from opgauge.ops._core.op import Shape
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.reduction.columns import columns_plan
from opgauge.ops._cuda.reduction.elements import (
    ELEMENTS_EACH,
    ELEMENTS_LENGTH,
    FEW_IN_COLUMNS,
    any_axes,
    few_columns,
    lane_bits,
)
from opgauge.ops._cuda.reduction.problem import (
    FEW_ELEMENTS,
    LARGEST,
    LINE_VECTORS,
    GpuSize,
    ReducePlan,
    ReduceProblem,
)
from opgauge.ops._cuda.reduction.rows import rows_beside

SUM_THREADS = 256
"""Most threads of a block."""
MOST_SPLITS = 1024
PARTIAL_RESULTS = 1 << 18
"""Maximum partial sums of one gradient: with more results, blocks share none."""
BLOCKS_PER_MULTIPROCESSOR = 4
EACH = {True: 4, False: ELEMENTS_EACH}
"""Blocks per multiprocessor that are wanted, and loads of a thread that are in flight at once, of vectors or of
elements."""
WIDTH_OF_DOUBLES = 2
"""Few elements are shared by one block, while its threads load them at once, or by blocks whose threads load one each:
an H200 took 1.7 to 2.1 us, not 2.1 to 2.5, for 8192 to 65536 with a tensor of weights. A block's threads load as many
vectors of doubles as elements."""
FEWEST_COLUMNS = 1024
"""Columns from which sums along them are of few elements up to as many as in other reductions."""
COLLECTED = 8
"""Partial sums that a thread collects at once."""


class AxisGroup(NamedTuple):
    """A group of dout's merged axes, outermost first: lengths in units, strides in elements of dout and of weight."""

    lengths: Shape
    dout: Shape
    weight: Shape

    @property
    def units(self) -> int:
        """Number of positions."""
        return prod(self.lengths)


@dataclass(frozen=True, slots=True)
class SumPlan:
    """Launch of `reduce_any`, or of a part of `reduce_two`.

    rows: the innermost axis is summed. width: elements of a vector along it. spread: one weight applies to a vector.
    lane_bits, column_bits: log2 of a block's threads for a result, and of its results. splits: blocks that share a
    result.
    """

    rows: bool
    width: int
    spread: bool
    lane_bits: int
    column_bits: int
    splits: int
    kept: AxisGroup
    summed: AxisGroup

    def __str__(self) -> str:
        along = "innermost axis summed" if self.rows else "innermost axis kept"
        grid = f"{self.blocks} × {self.splits}"
        return f"reduce_any, vectors of {self.width}, {self.splits} splits, grid {grid} block {self.threads}: {along}"

    @property
    def blocks(self) -> int:
        """Blocks of results."""
        return -(-self.kept.units >> self.column_bits)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 1 << self.lane_bits + self.column_bits


def beside_plan(problem: ReduceProblem, device: GpuSize) -> ReducePlan | None:
    """Plan one sum with a scalar weight, beside which the other gradient is written; None if `sum_plan` is better."""
    layout = problem.axes.two_groups()
    if layout is None or (layout.c == 1 and layout.b > 1):
        return any_axes(problem, device, "few elements") if problem.few else None
    if max(layout.c, layout.length, layout.a * layout.b) > LARGEST:
        return None
    if layout.c == 1:
        return rows_beside(problem, layout.a, layout.length, device)
    few = few_columns(problem, layout, ELEMENTS_LENGTH) if layout.b == 1 else None
    return few or columns_plan(problem, layout, device)


def sum_plan(full: Shape, gradient: Shape, weight: Shape, widest: int, multiprocessors: int) -> SumPlan:
    """Plan sums over the axes along which `gradient` is repeated in `full`.

    weight: its shape, () for a number. widest: elements of a vector that the addresses of all operands allow.
    """
    steps = merge_operands(full, full, gradient, weight)
    kept, summed = _parts(steps)
    rows = steps.strides[1][-1] == 0
    few = steps.size <= (FEW_ELEMENTS if rows or kept.units < FEWEST_COLUMNS else FEW_IN_COLUMNS[0])
    width = 1 if few and not rows else _vector(steps, widest)
    spread = width == 1 or steps.strides[2][-1] == 0
    if rows:
        summed = _in_vectors(summed, width)
    else:
        kept = _in_vectors(kept, width)
    if few:
        lanes, columns = _shape_of_few(kept.units, summed.units, multiprocessors)
    else:
        bits, most = _bits(rows, kept, summed, width, multiprocessors), SUM_THREADS.bit_length() - 1
        lanes, columns = (bits, most - bits) if rows else (most - bits, bits)
    each = -(-summed.units >> lanes)
    rounds = -(-each // EACH[width > 1])
    numbers = (1 if rows else width) << columns
    collectors = max(SUM_THREADS // numbers, 1) * COLLECTED
    room = max(1, BLOCKS_PER_MULTIPROCESSOR * multiprocessors // -(-kept.units >> columns))
    wanted = min(rounds, isqrt(rounds * collectors))
    if few:
        wanted = each if each > EACH[width > WIDTH_OF_DOUBLES] else 1
    splits = max(1, min(room, wanted, most_splits(prod(gradient))))
    return SumPlan(rows, width, spread, lanes, columns, splits, kept, summed)


def _shape_of_few(results: int, terms: int, multiprocessors: int) -> tuple[int, int]:
    """Base-2 logarithms of the lanes of a result and of a block's results, for few elements.

    A lane takes one element if the device has that many threads, else as many as it loads at once, or more.
    """
    most = SUM_THREADS.bit_length() - 1
    fewest, widest = lane_bits(terms, most), min((terms - 1).bit_length(), most)
    room = SUM_THREADS * multiprocessors // results
    lanes = max(fewest, min(widest, room.bit_length() - 1))
    threads = max(WARP, min(SUM_THREADS, results << lanes))
    return lanes, (threads - 1).bit_length() - lanes


def sum_plans_of_two(
    full: Shape, gradients: tuple[Shape, Shape], weight: Shape, multiprocessors: int
) -> tuple[SumPlan, SumPlan] | None:
    """Plans of two gradients of few elements in one launch; None if a launch for each is better."""
    if prod(full) > FEW_ELEMENTS:
        return None
    plans = [sum_plan(full, gradient, weight, 1, multiprocessors) for gradient in gradients]
    threads = max(plan.threads for plan in plans)
    first, second = (replace(plan, column_bits=threads.bit_length() - 1 - plan.lane_bits) for plan in plans)
    return None if max(first.splits, second.splits) > 1 else (first, second)


def most_splits(results: int) -> int:
    """Maximum blocks that share one result, as partial sums have to fit the workspace."""
    return max(1, min(MOST_SPLITS, PARTIAL_RESULTS // max(results, 1)))


def _parts(steps: MergedOperands) -> tuple[AxisGroup, AxisGroup]:
    """The axes that a gradient retains and those that it is summed over; one axis of length 1 if there is none."""
    found = []
    for is_kept in (True, False):
        axes = [axis for axis, stride in enumerate(steps.strides[1]) if (stride != 0) == is_kept]
        picked = [
            tuple(values[axis] for axis in axes) for values in (steps.lengths, steps.strides[0], steps.strides[2])
        ]
        found.append(AxisGroup(*picked) if axes else AxisGroup((1,), (0,), (0,)))
    return found[0], found[1]


def _vector(steps: MergedOperands, widest: int) -> int:
    """`widest` if the innermost axis consists of whole vectors and weight can be read in them, else 1."""
    dense = steps.strides[2][-1] == 1
    aligned = gcd(steps.lengths[-1], *(steps.strides[2][:-1] if dense else ()))
    return widest if aligned % widest == 0 else 1


def _in_vectors(part: AxisGroup, width: int) -> AxisGroup:
    """The group with the innermost axis in vectors."""
    ends = [(*values[:-1], values[-1] * width) for values in (part.dout, part.weight)]
    return AxisGroup((*part.lengths[:-1], part.lengths[-1] // width), ends[0], ends[1])


def _bits(rows: bool, kept: AxisGroup, summed: AxisGroup, width: int, multiprocessors: int) -> int:  # noqa: FBT001
    """Threads along the innermost axis: enough to cover contiguous memory, more if the other axes leave threads idle.

    Neighbouring threads read neighbouring memory, and no thread of a small problem is idle. Rows are divided among
    the multiprocessors first: a row gets the threads that those of one multiprocessor leave.
    """
    inner, outer = (summed, -(-kept.units // multiprocessors)) if rows else (kept, summed.units)
    together = WARP if rows or width == 1 else LINE_VECTORS
    bits = (min(inner.lengths[-1], together) - 1).bit_length()
    most = SUM_THREADS.bit_length() - 1
    spare = most - bits - (outer - 1).bit_length()
    wanted = (inner.units - 1).bit_length() - bits
    return bits + max(0, min(spare, wanted))
