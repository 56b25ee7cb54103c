"""Plans of sums of lerp's gradients, over any set of axes, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from opgauge.ops._core.broadcast import MergedOperands, merge_operands
from opgauge.ops._core.op import Shape
from opgauge.ops._cuda.reduction.columns import columns_plan
from opgauge.ops._cuda.reduction.elements import ELEMENTS_LENGTH, any_axes, few_columns, few_rows
from opgauge.ops._cuda.reduction.problem import LARGEST, GpuSize, ReducePlan, ReduceProblem

SUM_THREADS = 256
FIX_UP = 32
"""Splits per group: their partial sums are added up by one block."""
MOST_SPLITS = 1024
PARTIAL_RESULTS = 1 << 18
"""Maximum partial sums of one gradient: with more results, blocks share none."""
BLOCKS_PER_MULTIPROCESSOR = 4
WARP = 32
ALIGNMENT = 16
"""Blocks per multiprocessor that are wanted, lanes of a warp, and alignment of partial sums in bytes."""


class AxisGroup(NamedTuple):
    """A group of dout's merged axes, outermost first: lengths in units, strides in elements of dout and of weight."""

    lengths: Shape
    dout: Shape
    weight: Shape

    @property
    def units(self) -> int:
        """Number of positions."""
        return prod(self.lengths)

    @property
    def axes(self) -> MergedOperands:
        """The lengths as `axes_struct` takes them."""
        return MergedOperands(self.lengths, ())


@dataclass(frozen=True, slots=True)
class SumPlan:
    """Launch of `reduce_any`.

    rows: the innermost axis is summed. width: elements of a vector along it. spread: one weight applies to a vector.
    bits: log2 of a block's threads along the innermost axis. blocks: of results. splits: blocks that share a result.
    """

    rows: bool
    width: int
    spread: bool
    bits: int
    blocks: int
    splits: int
    kept: AxisGroup
    summed: AxisGroup

    def __str__(self) -> str:
        along = "innermost axis summed" if self.rows else "innermost axis kept"
        grid = f"{self.blocks} × {self.splits}"
        return f"reduce_any, vectors of {self.width}, {self.splits} splits, grid {grid} block {SUM_THREADS}: {along}"

    @property
    def groups(self) -> int:
        """Groups of splits; their partial sums are added up first, those of the groups last."""
        return -(-self.splits // FIX_UP)


def beside_plan(problem: ReduceProblem, device: GpuSize) -> ReducePlan | None:
    """Plan one sum with a scalar weight, beside which the other gradient is written; None if `sum_plan` is better."""
    layout = problem.axes.two_groups()
    if layout is None or (layout.c == 1 and layout.b > 1):
        return any_axes(problem, device, "few elements") if problem.few else None
    if max(layout.c, layout.length, layout.a * layout.b) > LARGEST:
        return None
    if layout.c == 1:
        return few_rows(problem, layout.a, layout.length) if problem.few else None
    few = few_columns(problem, layout, ELEMENTS_LENGTH) if layout.b == 1 else None
    return few or columns_plan(problem, layout, device)


def sum_plan(full: Shape, gradient: Shape, weight: Shape, widest: int, multiprocessors: int) -> SumPlan:
    """Plan sums over the axes along which `gradient` is repeated in `full`.

    weight: its shape, () for a number. widest: elements of a vector that the addresses of all operands allow.
    """
    steps = merge_operands(full, full, gradient, weight)
    kept, summed = _parts(steps)
    rows = steps.strides[1][-1] == 0
    width = _vector(steps, widest)
    spread = width == 1 or steps.strides[2][-1] == 0
    if rows:
        summed = _in_vectors(summed, width)
    else:
        kept = _in_vectors(kept, width)
    bits = _bits(rows, kept, summed, multiprocessors)
    lanes = 1 << bits if rows else SUM_THREADS >> bits
    blocks = -(-kept.units // (SUM_THREADS // lanes))
    in_flight = lanes * (4 if width > 1 else 8)
    room = max(1, BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks)
    splits = min(room, -(-summed.units // in_flight), most_splits(prod(gradient)))
    return SumPlan(rows, width, spread, bits, blocks, splits, kept, summed)


def most_splits(results: int) -> int:
    """Maximum blocks that share one result, as partial sums have to fit the workspace."""
    return max(1, min(MOST_SPLITS, PARTIAL_RESULTS // max(results, 1)))


class PartialPlaces(NamedTuple):
    """Byte offsets in the workspace of counters, of the splits' and of the groups' partial sums, and its size."""

    arrivals: int
    splits: int
    groups: int
    nbytes: int


def partial_places(results: int, sums: int, itemsize: int) -> PartialPlaces:
    """Bytes for every plan of `sums` gradients of `results` elements each, `itemsize` bytes per partial sum."""
    splits = most_splits(results)
    if splits == 1:
        return PartialPlaces(0, 0, 0, 0)
    groups = -(-splits // FIX_UP)
    first = _align(4 * results * (groups + 1))
    second = first + _align(splits * sums * results * itemsize)
    return PartialPlaces(0, first, second, second + _align(groups * sums * results * itemsize))


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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


def _bits(rows: bool, kept: AxisGroup, summed: AxisGroup, multiprocessors: int) -> int:  # noqa: FBT001
    """Threads along the innermost axis: enough to cover contiguous memory, more if the other axes leave threads idle.

    Neighbouring threads read neighbouring memory, and no thread of a small problem is idle. Rows are divided among
    the multiprocessors first: a row gets the threads that those of one multiprocessor leave.
    """
    inner, outer = (summed, -(-kept.units // multiprocessors)) if rows else (kept, summed.units)
    bits = (min(inner.lengths[-1], WARP) - 1).bit_length()
    most = SUM_THREADS.bit_length() - 1
    spare = most - bits - (outer - 1).bit_length()
    wanted = (inner.units - 1).bit_length() - bits
    return bits + max(0, min(spare, wanted))
