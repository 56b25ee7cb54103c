"""lerp and lerp_grad on the CPU by Numba; no temporary of the common shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.broadcast import merge_operands, reduced_axes
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shape
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count, pieces_for
from opgauge.ops.lerp.infinite import bind_infinite, sums_infinite

LONGER, LEAST_TERMS = 2, 8
"""Weights are repeated for all of a gradient's elements if its lines are then this many times longer, and each is the
sum of this many terms or more."""
SHORT_ROW, LEAST_ROW = 64, 4
"""Maximum retained line for which any repetition of weights pays, up to dout's shape, and that up to which it does not:
a row of few elements takes 20 to 40 ns however short."""
REPEATED = 256
"""Maximum line of rows that share a row of weights which is repeated for them."""
SHORT_LINE, LEAST_LINES, LEAST_OUTER = 128, 1024, 3
"""Maximum line, fewest lines, and fewest terms for which the outermost axes are summed first, in lines of all axes
inside them."""
PIECE = 4096
"""Maximum row that is summed in the accumulating dtype."""
SHARES = 4
"""Results per thread from which threads divide the results, not the summed axes."""


@kernel("lerp", "optimized", "cpu", FLOATS, prepare=True)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """Interpolate line by line: as few lines as broadcasting allows, in equal shares per thread."""
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
    steps = merge_operands(result.shape, x.shape, y.shape, () if number else weight.shape)
    places = np.indices(steps.lengths[:-1]).reshape(len(steps.lengths) - 1, prod(steps.lengths[:-1]))
    starts = np.zeros((prod(steps.lengths[:-1]), 3), np.int64)
    for operand, strides in enumerate(steps.strides):
        for axis, stride in enumerate(strides[:-1]):
            starts[:, operand] += places[axis] * stride
    inner = np.append([strides[-1] for strides in steps.strides], starts.any(axis=0))
    if len(starts) == 1 and inner.tolist()[:3] == [1, 1, 0] and streaming.pays(*operands, target):
        return partial(jit.lerp_streaming.on(threads), *operands, share, constant, target, threads)
    return partial(jit.lerp_lines.on(threads), *operands, share, constant, target, starts, inner, threads)


@kernel("lerp_grad", "optimized", "cpu", FLOATS, prepare=True)
def lerp_grad(*, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any]) -> Bound:
    """One read of dout per summed gradient, and one for gradients that are not summed."""
    if sums_infinite(x, y, dout, weight, out):
        given = {"need_x": need_x, "need_y": need_y}
        return bind_infinite(lerp_grad, x=x, y=y, dout=dout, weight=weight, out=out, **given)
    from opgauge.ops._cpu.jit import accumulator, storage

    wide, number = accumulator(dout), isinstance(weight, float | int)
    nothing = storage(np.empty(0, dout.dtype))
    flat, share = storage(dout).reshape(-1), nothing if number else storage(weight).reshape(-1)
    dx = storage(out["dx"]).reshape(-1) if need_x else nothing
    dy = storage(out["dy"]).reshape(-1) if need_y else nothing
    threads = count(2 * dout.nbytes, 4 * dout.size)
    summed = [bool(reduced_axes(array.shape, dout.shape)) and need for array, need in ((x, need_x), (y, need_y))]
    chosen = (1 - weight, 0, weight, 0) if number else (1, -1, 0, 1)
    to_x, to_y = (tuple(map(wide.type, pair)) for pair in (chosen[:2], chosen[2:]))
    shape = () if number else weight.shape
    if not any(summed):
        return _scaled((flat, share, dx, dy, to_x + to_y), dout.shape, shape, threads)
    steps: list[Bound] = []
    if not all(summed) and (dx.size if summed[1] else dy.size):
        alone = (nothing, dy) if summed[0] else (dx, nothing)
        steps.append(_scaled((flat, share, *alone, to_x + to_y), dout.shape, shape, threads))
    for target, kept_shape, factor, is_summed in ((dx, x.shape, to_x, summed[0]), (dy, y.shape, to_y, summed[1])):
        if is_summed:
            steps.append(_sum((flat, share, target, factor), kept_shape, dout.shape, shape, threads))
    return steps[0] if len(steps) == 1 else partial(_run, steps)


def _scaled(arrays: tuple[Any, ...], full: Shape, weight: Shape, threads: int) -> Bound:
    """Gradients that are not summed; arrays: dout, weights, both gradients, of which one may be empty, and factors."""
    from opgauge.ops.lerp import jit

    flat, share, dx, dy, factors = arrays
    if not share.size:
        alike = not (dx.size and dy.size) or streaming.lie_alike(dx, dy)
        function = jit.grad_streaming if alike and streaming.pays(flat, dx, dy) else jit.grad_by_number
        return partial(function.on(threads), flat, dx, dy, factors[2], factors[0], threads)
    if share.size == flat.size:
        return partial(jit.grad_by_weights.on(threads), flat, share, dx, dy, threads)
    from opgauge.ops._cpu.jit_axes import numbers_of
    from opgauge.ops.lerp.jit_sums import SHORT_16_BIT, SHORT_SCALED, scale_lines, scale_short_lines

    kept, none, line, _ = _layout(full, full, weight)
    arguments = *arrays, numbers_of(kept, none, line)
    if line.length <= (SHORT_16_BIT if flat.itemsize == 2 else SHORT_SCALED):
        return partial(scale_short_lines.on(threads), *arguments, threads)
    return partial(scale_lines.on(threads), *arguments, pieces_for(threads, SHARES))


def _run(steps: Sequence[Bound]) -> None:
    for step in steps:
        step()


def _sum(arrays: tuple[Any, ...], gradient: Shape, full: Shape, weight: Shape, threads: int) -> Bound:
    """One gradient of shape `gradient`, summed; arrays: the first arguments of `sum_lines` and `sum_columns`."""
    from opgauge.ops._cpu.jit_axes import numbers_of
    from opgauge.ops.lerp.jit_sums import TILE, sum_columns, sum_lines

    kept, summed, line, is_kept = _layout(full, gradient, weight)
    between = _without_outer_sums(full, gradient)
    if between is not None and line.length <= SHORT_LINE and prod(full) >= LEAST_LINES * line.length:
        sums, one = np.empty(prod(between)), (np.float64(1), np.float64(0))
        of_sums = sums, np.empty(0), arrays[2], one
        outer = _sum((*arrays[:2], sums, arrays[3]), between, full, weight, threads)
        return partial(_run, (outer, _sum(of_sums, gradient, between, (), 1)))
    if prod(summed.lengths.tolist()) == len(kept.lengths) == 1 and not is_kept and line.length <= PIECE:
        from opgauge.ops.lerp.jit_rows import sum_rows

        numbers = line.length, int(kept.weight[0]), line.dense
        return partial(sum_rows.on(threads), *arrays, *numbers, pieces_for(threads, SHARES))
    steps: list[Bound] = []
    layout = kept, summed, line, is_kept
    share, kept, summed, line = _with_long_lines(arrays[1], layout, gradient, full, weight, steps)
    arrays = (arrays[0], share.reshape(-1), *arrays[2:])
    results, terms = prod(gradient), prod(summed.lengths.tolist())
    if is_kept:
        units = -(-line.length // TILE) * prod(kept.lengths.tolist())
        splits = 1 if units >= SHARES * threads else min(threads, terms)
        parts = np.empty((splits, results if splits > 1 else 1))
        pieces = min(units, pieces_for(threads, SHARES)) if splits == 1 else 1
    else:
        splits = 1 if results >= SHARES * threads else min(threads, terms)
        pieces = min(threads, results) if splits == 1 else 1
        parts = np.empty((splits, results))
    function = sum_columns if is_kept else sum_lines
    total = partial(function.on(threads), *arrays, numbers_of(kept, summed, line), parts, pieces)
    return partial(_run, [*steps, total]) if steps else total


def _without_outer_sums(full: Shape, gradient: Shape) -> Shape | None:
    """The shape of sums over the outermost axes only; None if they are few, or all that is summed."""
    dense = (1,) * (len(full) - len(gradient)) + tuple(gradient)
    is_kept = [length == whole > 1 for length, whole in zip(dense, full, strict=True)]
    outer = is_kept.index(True) if True in is_kept else len(full)
    between = (1,) * outer + tuple(full[outer:])
    return between if between != dense and prod(full[:outer]) >= LEAST_OUTER else None


def _layout(full: Shape, gradient: Shape, weight: Shape) -> tuple[Any, Any, Any, bool]:
    """Merged axes of dout: retained by the gradient, summed, the line, and whether the line is retained."""
    from opgauge.ops._cpu.jit_axes import Axes, InnerAxis

    steps = merge_operands(full, full, gradient, weight)
    is_kept = [stride != 0 for stride in steps.strides[1]]
    found = []
    for wanted in (True, False):
        axes = [axis for axis, kept in enumerate(is_kept[:-1]) if kept == wanted]
        picked = ([values[axis] for axis in axes] for values in (steps.lengths, steps.strides[0], steps.strides[2]))
        columns = [np.array(values or [neutral], np.int64) for values, neutral in zip(picked, (1, 0, 0), strict=True)]
        found.append(Axes(*columns))
    length = steps.lengths[-1]
    return found[0], found[1], InnerAxis(length, steps.strides[2][-1] == 1, 1, length), is_kept[-1]


def _with_long_lines(
    share: Any, layout: tuple[Any, Any, Any, bool], gradient: Shape, full: Shape, weight: Shape, steps: list[Bound]
) -> tuple[Any, Any, Any, Any]:
    """Weights, axes and line whose line is as long as pays: rows of a short line follow one another.

    layout: by `_layout`. The weights are `share`, or a copy that an additional step of `steps` fills.
    """
    (kept, summed, line, is_kept), rank = layout, len(full)
    given, dense = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (weight, gradient))
    is_short = line.length <= SHORT_ROW
    # behind the innermost axis that is summed if the line is retained, and retained if it is summed
    inner = max((k + 1 for k in range(rank) if full[k] > 1 and (dense[k] == full[k]) != is_kept), default=0)
    per_row = given[:inner] + full[inner:]
    shapes: Sequence[tuple[Shape, Any]] = [(per_row, is_short)]
    if is_kept:
        is_within = all(length in {1, whole} for length, whole in zip(given, dense, strict=True))
        varies = not line.dense and summed.weight[-1] != 0
        shapes = [(dense, is_within), (per_row, varies), (full, is_short and line.length > LEAST_ROW)]
    least_terms = 1 if is_kept and is_short else LEAST_TERMS
    for wanted, is_apt in shapes if share.size else ():
        longer = _layout(full, gradient, wanted)
        pays = longer[2].length >= LONGER * line.length or (is_kept and wanted is per_row)
        if is_apt and pays and prod(wanted) * least_terms <= prod(full):
            share = _repeated(share.reshape(given), wanted, steps)
            kept, summed, line, _ = longer
            break
    return _in_longer_lines(share, kept, summed, line, steps) if is_kept else (share, kept, summed, line)


def _repeated(share: Any, shape: Shape, steps: list[Bound]) -> Any:
    """A copy of weights in the shape to which they broadcast, made by an additional step."""
    copy = np.empty(shape, share.dtype)
    steps.append(partial(np.copyto, copy, share))
    return copy


def _in_longer_lines(share: Any, kept: Any, summed: Any, line: Any, steps: list[Bound]) -> tuple[Any, Any, Any, Any]:
    """Merge several rows of a short retained innermost axis into one line, if the next axis is summed.

    They fit a tile, and the last line may have fewer. Weights are one number for each, as dense as dout, or one for
    all; rows that share a row of weights get it repeated.
    """
    from opgauge.ops.lerp.jit_sums import TILE

    is_shared = line.dense and summed.weight[-1] == 0
    if summed.dout[-1] != line.length or summed.weight[-1] not in {0, line.length if line.dense else 0}:
        return share, kept, summed, line
    rows = int(summed.lengths[-1])
    most = REPEATED if is_shared and share.size > line.length else TILE
    repeats = max(1, min(rows, most // line.length))
    scale = np.ones(len(summed.lengths), np.int64)
    scale[-1] = repeats
    longer = type(summed)(-(-summed.lengths // scale), summed.dout * scale, summed.weight * scale)
    if is_shared and repeats > 1:
        lines = share.reshape(-1, 1, line.length)
        share = _repeated(lines, (len(lines), repeats, line.length), steps)
        kept, longer = (axes._replace(weight=axes.weight * repeats) for axes in (kept, longer))
    last = line.length * (rows - (int(longer.lengths[-1]) - 1) * repeats)
    return share, kept, longer, line._replace(length=line.length * repeats, repeats=repeats, last=last)
