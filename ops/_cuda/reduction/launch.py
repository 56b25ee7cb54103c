"""Bind a reduction's plan to arrays and workspace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from opgauge.ops._core.axes import MergedAxes, Reduction
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array
from opgauge.ops._core.plans import announce
from opgauge.ops._cuda.bind import bind_launch, holding
from opgauge.ops._cuda.reduction.elements import elements_templates
from opgauge.ops._cuda.reduction.plan import most_partials, plan
from opgauge.ops._cuda.reduction.problem import (
    LINE_VECTORS,
    VECTOR_BYTES,
    GpuSize,
    ReducePlan,
    ReduceProblem,
)
from opgauge.ops._cuda.reduction.rows import (
    ONCE_THREADS,
    ONE_ROW_THREADS,
    alone_template,
    block_template,
    has_once,
    once_template,
)
from opgauge.ops._cuda.source import CudaSource, multiprocessors
from opgauge.ops._cuda.struct import Argument, pack

COLUMNS_LAYOUT = np.dtype(
    [*((name, np.int64) for name in ("a", "r1", "b", "r2", "c", "share")), ("across", np.uint32), ("unused", np.uint32)]
)
"""`Layout` of `include/columns.cuh`: (a, r1, b, r2, c), divided into parts of `share` reduced indices and `across`
column blocks."""


@dataclass(frozen=True, slots=True)
class Functor:
    """Reduction functor of a source: C++ name, elements per vector, accumulator size, and its fields by value.

    light: an element costs two or three instructions, and a single tensor is accumulated in 32 bits.
    """

    name: str
    width: int
    accumulator_bytes: int
    value: Array
    light: bool = True


def workspace_bytes(axes: MergedAxes, accumulator_bytes: int) -> int:
    """Bytes for flagged partial results of any launch over `axes`."""
    return 2 * accumulator_bytes * most_partials(axes.count, axes.length)


def expressions(functor: str, width: int, *, only_rows: bool = False, light: bool = True) -> tuple[str, ...]:
    """Kernel instances that `launch` may need for this functor."""
    flags, paired = ("false", "true"), only_rows
    both = tuple(f"{width}, {streams}, {whole}" for streams, whole in product(flags, flags))
    elements = elements_templates("BY_ROW", "TWO_GROUPS", "ANY_AXES", odd=width <= 4)
    found = [("reduce_elements_lanes", one) for one in elements]
    found += [(f"reduce_rows_{scope}", these) for scope in ("lanes", "grid") for these in both]
    if width == 4:
        found += [("reduce_rows_block", block_template(width, paired=paired, streams=bool(at))) for at in (0, 1)]
    if light:
        found += [
            ("reduce_rows_block", alone_template(width, VECTOR_BYTES // width, paired=paired, whole=whole))
            for whole in (False, True)
        ]
    if has_once(width, light=light, paired=paired):
        threads = (ONE_ROW_THREADS,) if paired else (ONCE_THREADS, ONE_ROW_THREADS)
        found += [("reduce_rows_once", once_template(width, these, paired=paired)) for these in threads]
    if not only_rows:
        found += [("reduce_elements_lanes", one) for one in elements_templates("BY_COLUMN")]
        found += [("reduce_columns_grid", these) for these in both if these != f"{width}, true, false"]
        found += [("reduce_slabs_block", f"{width}, {streams}") for streams in flags]
    return tuple(f"{kernel}<{functor}, {template}>" for kernel, template in found)


def planned(functor: Functor, axes: MergedAxes, x: Any, second: Any, out: Any) -> ReducePlan:
    """The plan for these arrays on the current device."""
    itemsize = x.dtype.itemsize
    line, vector = LINE_VECTORS * VECTOR_BYTES, functor.width * itemsize
    problem = ReduceProblem(
        axes,
        itemsize,
        functor.width,
        functor.accumulator_bytes,
        functor.light,
        past=x.data.ptr % line // itemsize,
        paired=second is not None,
        aligned_pair=second is None or (x.data.ptr - second.data.ptr) % vector == 0,
        wide_out=out.data.ptr % (functor.width * out.dtype.itemsize) == 0,
    )
    return plan(problem, GpuSize(multiprocessors()))


def launch(
    source: CudaSource,
    functor: Functor,
    axes: MergedAxes,
    x: Any,
    second: Any,
    out: Any,
    workspace: Any,
) -> Bound:
    """A callable that reduces `x` (and `second`, read beside it) over `axes` into `out`, in one launch."""
    if out.size == 0:
        return lambda: None
    found = planned(functor, axes, x, second, out)
    return bind_plan(source, found, functor.name, functor.value.view(Argument), (x, second, out), workspace)


def bind_plan(
    source: CudaSource,
    found: ReducePlan,
    functor: str,
    value: Array,
    arrays: tuple[Any, Any, Any],
    workspace: Any,
    held: Any = None,
) -> Bound:
    """A callable that launches a plan for x, a second tensor or None, and the output.

    functor: its C++ name. workspace: zeros, for flagged partials. held: lives as long as the callable.
    """
    announce(found)
    x, second, out = arrays
    arguments = (x, out, value, *found.numbers)
    if found.kernel not in {"reduce_columns_grid", "reduce_slabs_block"}:
        arguments += (second,)
    if found.shares:
        arguments += (workspace,)

    run = bind_launch(source, found.expression(functor), found.grid, found.block, arguments)
    return run if held is None else holding(held, run)


def layout_struct(layout: Reduction, splits: int, across: int) -> Array:
    """A `Layout` of `include/columns.cuh`: the reduced indices shared by `splits` blocks, the columns by `across`."""
    share = -(-layout.length // splits)
    return pack(COLUMNS_LAYOUT, {**asdict(layout), "share": share, "across": across, "unused": 0})


def column_lanes(columns: int, width: int, lanes: int = 32) -> tuple[int, int]:
    """Threads along the columns, and the number of such groups.

    A narrow matrix is one group: consecutive rows are then read without a gap.
    """
    vectors = -(-columns // width)
    return (vectors, 1) if vectors <= 64 else (lanes, -(-vectors // lanes))
