"""Sums of lerp's gradients on CUDA over any axes, by sums.cu: one launch for one gradient or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.dtype import accumulating, dtype_info
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array, Shape
from opgauge.ops._core.plans import announce
from opgauge.ops._cuda.bind import bind_launch, holding
from opgauge.ops._cuda.pointwise import AXES, LARGEST
from opgauge.ops._cuda.reduction.elements import FEW_DIGITS, jumps_of
from opgauge.ops._cuda.source import CudaSource, flag, multiprocessors
from opgauge.ops._cuda.struct import DIVISOR, address, pack, pointer
from opgauge.ops._cuda.vectors import whole_vector
from opgauge.ops.lerp.cuda import CTYPES, FLAGS, WIDTHS
from opgauge.ops.lerp.sums import COLLECTED, SUM_THREADS, AxisGroup, SumPlan, sum_plan, sum_plans_of_two

LANE_BITS, COLUMN_BITS = 4, 4
"""Bits of `layout` in a task for the base-2 logarithms of a result's lanes and a block's results, below the splits."""
SHORT, LONG = "unsigned int", "long long"
INDICES = {SHORT: np.uint32, LONG: np.int64}
"""Types of offsets in elements: of 32 bits, which wrap, unless there are 2^31 elements or more."""
STEPS = {
    index: np.dtype([("dout", kind), ("weight", kind), ("length", DIVISOR), *([("pad", "V4")] * (kind is np.int64))])
    for index, kind in INDICES.items()
}
PAIRS = {index: np.dtype([("kept", step), ("summed", step)]) for index, step in STEPS.items()}
"""`Step` of sums.cu: an axis; and `Pair`: one of the results and one of the sums; by type of offsets."""


def _task(wide: str, index: str) -> Any:
    """`Task` of sums.cu for sums of type `wide` and such offsets."""
    return np.dtype(
        [
            ("first", pointer("void")),
            ("offset", wide),
            ("sign", wide),
            ("layout", np.int32),
            *((name, np.uint32) for name in ("units", "terms")),
            *((name, np.int32) for name in ("kept_axes", "summed_axes")),
            ("pad", "V4"),
            ("other", pointer("void")),
            *((name, wide) for name in ("other_offset", "other_sign")),
            ("axes", PAIRS[index], (AXES,)),
            ("partials", pointer("unsigned long long")),
            ("second", pointer("void")),
            *((name, wide) for name in ("second_offset", "second_sign")),
        ]
    )


TASKS = {(name, index): _task(name, index) for name in ("float32", "float64") for index in INDICES}
"""`Task` of sums.cu by NumPy's type of sums and type of offsets."""


def _expressions() -> tuple[str, ...]:
    kinds = [(rows, sums) for rows in FLAGS for sums in (1, 2)]
    found = [
        f"reduce_any<{ctype}, 1, {rows}, true, {sums}, {index}>"
        for ctype in CTYPES.values()
        for rows, sums in kinds
        for index in INDICES
    ]
    for name, ctype in CTYPES.items():
        found += [
            f"reduce_any<{ctype}, {WIDTHS[name]}, {rows}, {spread}, {sums}, {SHORT}>"
            for rows, sums in kinds
            for spread in FLAGS
        ]
        found += [f"reduce_two<{ctype}, {first}, {second}>" for first in FLAGS for second in FLAGS]
    return tuple(found)


SUMS = CudaSource(
    __file__,
    "sums.cu",
    _expressions(),
    constants={
        "SUM_AXES": AXES,
        "FEW_AXES": FEW_DIGITS,
        "SUM_THREADS": SUM_THREADS,
        "COLLECTED": COLLECTED,
        "LANE_BITS": LANE_BITS,
        "COLUMN_BITS": COLUMN_BITS,
    },
    structs={
        **{f"Step<{index}>": dtype for index, dtype in STEPS.items()},
        **{f"Pair<{index}>": dtype for index, dtype in PAIRS.items()},
        **{f"Task<{dtype_info(name).ctype}, {index}>": dtype for (name, index), dtype in TASKS.items()},
    },
)
"""Declared instances of sums.cu."""


class SummedGradient(NamedTuple):
    """A gradient to write: its buffer, its input's shape, and dout's factor: offset + sign weight."""

    out: Any
    shape: Shape
    offset: Any
    sign: Any


def bind_sum(
    dout: Any, tensor: Any, summed: Sequence[SummedGradient], other: SummedGradient | None, workspace: Any
) -> Bound:
    """One launch for one or two gradients summed over the same axes, and optionally one that is not.

    workspace: zeros, for flagged partial sums. It and the gradients are held: arguments have their addresses alone.
    """
    beside = None if other is None else other.out
    index = SHORT if dout.size < LARGEST else LONG
    widest = whole_vector(dout, dout.size, tensor, beside) if index == SHORT else 1
    plan = sum_plan(dout.shape, summed[0].shape, _shape(tensor), widest, multiprocessors())
    announce(plan)
    flags = f"{plan.width}, {flag(plan.rows)}, {flag(plan.spread)}, {len(summed)}, {index}"
    arguments = (dout, tensor, _pack_task(plan, accumulating(dout), index, summed, other, workspace))
    held = (workspace, beside, *(one.out for one in summed))

    expression = f"reduce_any<{CTYPES[dout.dtype.name]}, {flags}>"
    return holding(held, bind_launch(SUMS, expression, (plan.blocks, plan.splits), (plan.threads,), arguments))


def bind_two(dout: Any, tensor: Any, gradients: tuple[SummedGradient, SummedGradient]) -> Bound | None:
    """One launch for two gradients summed over different axes; None if there are too many elements."""
    shapes = gradients[0].shape, gradients[1].shape
    plans = sum_plans_of_two(dout.shape, shapes, _shape(tensor), multiprocessors())
    if plans is None:
        return None
    for plan in plans:
        announce(plan)
    expression = f"reduce_two<{CTYPES[dout.dtype.name]}, {', '.join(flag(plan.rows) for plan in plans)}>"
    wide = accumulating(dout)
    tasks = (_pack_task(plan, wide, SHORT, [one], None, None) for plan, one in zip(plans, gradients, strict=True))
    first, second = plans
    arguments = (dout, tensor, np.int32(first.blocks), *tasks)
    grid, block = (first.blocks + second.blocks,), (first.threads,)
    return holding(gradients, bind_launch(SUMS, expression, grid, block, arguments))


def _shape(tensor: Any) -> Shape:
    return () if tensor is None else tuple(tensor.shape)


def _pack_task(
    plan: SumPlan,
    wide: Any,
    index: str,
    summed: Sequence[SummedGradient],
    other: SummedGradient | None,
    workspace: Any,
) -> Array:
    """A `Task` of sums.cu with offsets of C++ type `index`."""
    first, second = summed[0], summed[-1]
    values = {
        "first": address(first.out),
        "offset": first.offset,
        "sign": first.sign,
        "layout": plan.splits << LANE_BITS + COLUMN_BITS | plan.column_bits << LANE_BITS | plan.lane_bits,
        "units": plan.kept.units,
        "terms": plan.summed.units,
        "kept_axes": len(plan.kept.lengths),
        "summed_axes": len(plan.summed.lengths),
        "axes": _pairs(plan, index),
        "second_offset": second.offset,
        "second_sign": second.sign,
        "other_offset": 0 if other is None else other.offset,
        "other_sign": 0 if other is None else other.sign,
        "second": address(second.out),
        "other": address(None if other is None else other.out),
        "partials": address(workspace),
    }
    return pack(TASKS[np.dtype(wide).name, index], values)


def _pairs(plan: SumPlan, index: str) -> list[Array]:
    """A `Pair` of sums.cu for each axis of the results and of the sums."""
    steps = zip(_steps(plan.kept, index), _steps(plan.summed, index), strict=True)
    return [pack(PAIRS[index], {"kept": kept, "summed": summed}) for kept, summed in steps]


def _steps(part: AxisGroup, index: str) -> list[Array]:
    """A `Step` of sums.cu for each axis, innermost first. Raises ShapeError for 2^31 positions or more."""
    if part.units >= LARGEST:
        msg = f"{part.units} positions: a broadcast of 2^31 or more is not supported"
        raise ShapeError(msg)

    def wrapped(jump: int) -> int:
        return jump % (1 << 32) if index == SHORT else jump

    jumps = (jumps_of([*zip(part.lengths, strides, strict=True)]) for strides in (part.dout, part.weight))
    found = [
        pack(STEPS[index], {"dout": wrapped(dout), "weight": wrapped(weight), "length": length})
        for length, dout, weight in zip(reversed(part.lengths), *jumps, strict=True)
    ]
    nothing = pack(STEPS[index], {"dout": 0, "weight": 0, "length": 1})
    return found + [nothing] * (AXES - len(found))
