"""lerp and lerp_grad on the CPU by Numba: one pass; only a weight that broadcasts in a sum is spread out in memory."""

from __future__ import annotations

from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np
from opgauge.ops._core.axes import as_reduction
from opgauge.ops._core.broadcast import reduced_axes, walk
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.errors import AxisError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count

BLOCK = 1 << 12
"""Elements summed without widening, and the least that is worth a task."""


@kernel("lerp", "optimized", "cpu", FLOATS, prepare=True)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """Line by line, as few as broadcasting allows, and as much for each thread."""
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.lerp import jit

    result = out["out"]
    threads = count(3 * result.nbytes, 3 * result.size)
    wide = accumulator(x)
    operands = [storage(array).reshape(-1) for array in (x, y)]
    target = storage(result).reshape(-1)
    number = isinstance(weight, float | int)
    share = storage(np.empty(0, x.dtype) if number else weight).reshape(-1)
    constant = wide.type(weight if number else 0)
    steps = walk(result.shape, x.shape, y.shape, () if number else weight.shape)
    length = steps.lengths[-1]
    places = np.indices(steps.lengths[:-1]).reshape(len(steps.lengths) - 1, prod(steps.lengths[:-1]))
    starts = np.zeros((prod(steps.lengths[:-1]), 3), np.int64)
    for operand, strides in enumerate(steps.strides):
        for axis, stride in enumerate(strides[:-1]):
            starts[:, operand] += places[axis] * stride
    inner = np.array([strides[-1] for strides in steps.strides])
    blocks = min(threads // gcd(len(starts), threads), -(-length // BLOCK))
    if len(starts) == 1 and inner.tolist() == [1, 1, 0] and streaming.pays(*operands, target):
        return partial(jit.lerp_streaming.on(threads), *operands, share, constant, target, threads)
    return partial(jit.lerp_lines.on(threads), *operands, share, constant, target, starts, inner, blocks)


@kernel("lerp_grad", "optimized", "cpu", FLOATS, prepare=True)
def lerp_grad(*, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any]) -> Bound:
    """dout is read once where at most one gradient is summed, and never copied."""
    from numba import get_num_threads
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.lerp import jit

    wide, threads = accumulator(dout), get_num_threads()
    number = isinstance(weight, float | int)
    nothing = storage(np.empty(0, dout.dtype))
    flat = storage(dout).reshape(-1)
    dx = storage(out["dx"]).reshape(-1) if need_x else nothing
    dy = storage(out["dy"]).reshape(-1) if need_y else nothing
    sums_x, sums_y = (bool(reduced_axes(array.shape, dout.shape)) for array in (x, y))
    sums_x, sums_y = sums_x and need_x, sums_y and need_y
    if not (sums_x or sums_y):
        if number:
            alike = not (dx.size and dy.size) or streaming.lie_alike(dx, dy)
            function = jit.grad_streaming if alike and streaming.pays(flat, dx, dy) else jit.grad_by_number
            return lambda: function(flat, dx, dy, wide.type(weight), wide.type(1 - weight), threads)
        full = _spread(weight, dout.shape)
        return lambda: jit.grad_by_tensor(flat, dx, dy, storage(full()).reshape(-1), wide.type(1))
    steps: list[Bound] = []
    if number and sums_x != sums_y:
        summed, other = (dx, dy) if sums_x else (dy, dx)
        factors = (1 - weight, weight) if sums_x else (weight, 1 - weight)
        rows = _as_rows(x.shape if sums_x else y.shape, dout.shape)
        if rows is not None:
            shaped = flat.reshape(rows)
            beside = other.reshape(rows) if other.size else other.reshape(0, 0)
            partial = np.empty((rows[0], -(-rows[1] // BLOCK)))
            typed = [wide.type(factor) for factor in factors]
            return lambda: jit.reduce_rows(shaped, typed[0], partial, summed, beside, typed[1])
    for array, target, sign, offset, wanted in ((x, dx, -1, 1, need_x), (y, dy, 1, 0, need_y)):
        if wanted:
            shape = array.shape
            steps.append(_sum_one(jit, storage, dout, weight, shape, target, (wide.type(sign), wide.type(offset))))

    def run() -> None:
        for step in steps:
            step()

    return run


def _spread(weight: Any, shape: tuple[int, ...]) -> Any:
    """A function that gives weight as a full contiguous tensor: itself where it already is one."""
    if weight.size == prod(shape):
        return lambda: weight.reshape(shape)
    return lambda: np.ascontiguousarray(np.broadcast_to(weight, shape))


def _as_rows(shape: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, int] | None:
    """(rows, length) where what is summed is all at the end, else None."""
    try:
        layout = as_reduction(full, reduced_axes(shape, full))
    except AxisError:
        return None
    return (layout.a, layout.length) if layout.b == layout.c == 1 else None


def _sum_one(
    jit: Any, storage: Any, dout: Any, weight: Any, shape: tuple[int, ...], target: Any, factors: tuple[Any, Any]
) -> Bound:
    """One gradient, summed over the axes along which its input is repeated (perhaps none)."""
    axes = reduced_axes(shape, dout.shape)
    wide = factors[0].dtype
    try:
        layout = as_reduction(dout.shape, axes)
    except AxisError:
        return _sum_by_numpy(dout, weight, axes, target, factors)
    five, sign, offset = layout.shape, *factors
    reduced = target.reshape(layout.a * layout.b, layout.c)
    shaped = storage(dout).reshape(layout.a * layout.r1 * layout.b * layout.r2, layout.c)
    if isinstance(weight, float | int):
        none, factor = shaped[:0], wide.type(offset + sign * wide.type(weight))
        return lambda: jit.reduce_columns(shaped, none, sign, factor, reduced, five)
    full = _spread(weight, dout.shape)
    return lambda: jit.reduce_columns(shaped, storage(full()).reshape(shaped.shape), sign, offset, reduced, five)


def _sum_by_numpy(dout: Any, weight: Any, axes: tuple[int, ...], target: Any, factors: tuple[Any, Any]) -> Bound:
    """More than two groups of summed axes: as array operations."""
    sign, offset = factors
    wide = sign.dtype
    like = target.view(dout.dtype)

    def run() -> None:
        share = wide.type(weight) if isinstance(weight, float | int) else weight.astype(wide)
        full = (offset + sign * share) * dout.astype(wide)
        like[...] = full.sum(axis=axes, dtype=np.float64).reshape(-1)

    return run
