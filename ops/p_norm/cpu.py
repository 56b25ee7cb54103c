"""p_norm and p_norm_grad on the CPU by Numba, every porder, dtype and axis, and the design document's own plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial as bind
from math import inf
from typing import Any

import numpy as np

from opgauge.ops._core.axes import (
    Axis,
    Reduction,
    merge_axes,
    normalize_axes,
    reduced_shape,
    reduction_steps,
    to_rows,
)
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu.reduction_steps import outer_first
from opgauge.ops._cpu.threads import count, pieces_for

BLOCK = 1 << 12
"""Elements summed without widening: bounds the error of a sum, and is one task of a thread."""
TASKS = 16
"""Tasks per thread, for load balance."""
MOST_COLUMNS = 2048
"""Maximum columns of a task that takes few rows."""
FEW, LEAST_GROUPS = 128, 16
"""Maximum elements of a group of few rows and columns, and fewest groups, for which several share a loop."""
SHORT_POWERS = 128
"""Maximum elements of a row whose powers share a loop with other rows: those of a rest that is no vector take 9 ns."""
RUNS = 85
"""Elements that lie together, per row of the outer group of axes, for which it comes first: a run costs 120 ns."""
SHORT_GRADIENT = 31
"""Maximum elements of a row, or columns, for which the gradient's norms are copied, one for each element."""


def _order(porder: float | str) -> float:
    return 2.0 if porder == "fro" else float(porder)


@kernel("p_norm", "optimized", "cpu", FLOATS, prepare=True)
def p_norm(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """One pass over x; several groups of axes may take steps, as a norm of norms, which are float64."""
    del keepdim
    y = out["y"]
    if x.size == 0:
        return _zeros(y)
    steps, source = [], x
    layouts = [*_steps(outer_first(reduction_steps(x.shape, normalize_axes(axis, x.ndim)), RUNS))]
    for layout in layouts:
        target = y if layout is layouts[-1] else np.empty(layout.count)
        steps.append(_step(layout, source, target, _order(porder)))
        source = target
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


def _steps(layouts: Iterable[Reduction]) -> Iterator[Reduction]:
    """The layouts, where short rows of two groups of axes come first: one loop for many is faster than a call each."""
    for layout in layouts:
        a, r1, b, r2, c = layout.shape
        if b > 1 and c == 1 and r2 <= BLOCK:
            yield Reduction(a * r1 * b, r2, 1, 1, 1)
            yield Reduction(a, r1, 1, 1, b)
        else:
            yield layout


def _step(layout: Reduction, x: Any, y: Any, p: float) -> Bound:
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.p_norm import jit

    if layout.length == 1 and x.dtype == y.dtype:
        return _of_single_elements(x, y, p)
    modes = {0.0: jit.COUNT, inf: jit.LARGEST, -inf: jit.SMALLEST}
    mode, wide = modes.get(p, jit.HALVES if _is_halves(p) else jit.POWER), accumulator(x)
    order, start = wide.type(p if np.isfinite(p) else 1), wide.type(inf if p == -inf else 0)
    source, target = storage(x), storage(y)
    threads = count(x.nbytes, x.size * _operations(p, x))
    shape = a, r1, b, r2, c = layout.shape
    few = FEW if c > 1 else SHORT_POWERS if mode == jit.POWER else 0
    if b == 1 and layout.length * c <= few and a >= LEAST_GROUPS:
        sizes, pieces = (a, layout.length, c), pieces_for(threads, TASKS)
        flat = source.reshape(-1), target.reshape(-1)
        return bind(jit.norm_of_few_rows.on(threads), *flat, sizes, pieces, mode, order)
    if c > 1:
        shape = (a, 1, 1, layout.length, c) if b == 1 else shape  # rows lie one after the other
        if c > jit.NARROW and layout.length <= jit.DEPTH:
            tile = max(jit.TILE, min(MOST_COLUMNS, target.size // (threads * TASKS)))
            short = source.reshape(-1, c), target.reshape(-1, c), start, shape
            return bind(jit.norm_short_columns.on(threads), *short, mode, order, tile)
        partial = np.empty((_parts(layout, jit.TILE), a * b, c))
        columns = source.reshape(-1, c), target.reshape(-1, c), partial, start, shape
        return bind(jit.norm_columns.on(threads), *columns, mode, order)
    pieces, length = (r1, r2) if b > 1 else (1, layout.length)
    blocks = -(-length // BLOCK)
    partial = np.empty((a, pieces, b, blocks))
    chunks = min(a * b, TASKS) if pieces * blocks == 1 else partial.size
    return bind(jit.norm_rows.on(threads), source.reshape(-1, length), target.reshape(-1), partial, chunks, mode, order)


def _zeros(array: Any) -> Bound:
    """Zeros by NumPy's fill, byte by byte: one call of `memset`, where wider elements take a loop."""
    return bind(array.reshape(-1).view(np.uint8).fill, 0)


def _of_single_elements(x: Any, y: Any, p: float) -> Bound:
    """The norms of single elements: those without their signs, or at porder 0 one for each that is not zero."""
    from opgauge.ops.p_norm import jit_single as jit

    kind = np.dtype(f"u{x.dtype.itemsize}")
    bits, out = (array.reshape(-1).view(kind) for array in (x, y))
    mask, one = kind.type(np.iinfo(kind).max >> 1), np.ones((), x.dtype).view(kind)[()]
    threads = count(2 * x.nbytes)
    if p == 0:
        return bind(jit.count_nonzero.on(threads), bits, out, mask, one, threads)
    return bind(jit.clear_signs.on(threads), bits, out, mask, threads)


def _operations(p: float, x: Any) -> int:
    """Operations per element, as `count` takes them: a power costs 16."""
    return (2 if p == 0 or abs(p) == inf or _is_halves(p) else 18) + (2 if x.dtype.itemsize == 2 else 0)


def _is_halves(p: float) -> bool:
    """Whether x^p is a product of x and roots of x."""
    from opgauge.ops._cpu.jit_powers import MOST_HALVES

    return (2 * p).is_integer() and 0 < abs(2 * p) <= MOST_HALVES


def _parts(layout: Reduction, tile: int) -> int:
    """Shares of the rows to sum separately if there are too few columns for the threads."""
    tasks = layout.a * layout.b * -(-layout.c // tile)
    return max(1, min(TASKS // tasks, layout.length // BLOCK))


@kernel("p_norm_grad", "optimized", "cpu", FLOATS, prepare=True)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> Bound:
    """One pass over x and dx; porder +-inf reads each slice twice while it is in cache."""
    del keepdim
    p, dx = _order(porder), out["dx"]
    if p == 0 or x.size == 0:
        return _zeros(dx)
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.p_norm import jit_grad as jit

    axes = normalize_axes(axis, x.ndim)
    layout = merge_axes(x.shape, axes).two_groups()
    if layout is None:
        return _grad_by_rows(x, y, dy, porder, axes, dx)
    arrays = tuple(storage(array) for array in (x, y, dy, dx))
    threads = count(2 * x.nbytes, 2 * x.size * _operations(p, x))
    if abs(p) == inf:
        return _grad_at_infinity(layout, arrays, threads)
    other = jit.GENERAL if p > 1 else jit.BELOW_ONE
    if _is_halves(p - 1):
        other = jit.INTEGER if p.is_integer() else jit.HALVES
    slope = {1.0: jit.SIGN, 2.0: jit.LINEAR, 3.0: jit.QUADRATIC}.get(p, other)
    return _grad_of_finite(layout, arrays, threads, (slope, accumulator(x).type(p - 1)))


def _grad_at_infinity(layout: Reduction, arrays: tuple[Any, ...], threads: int) -> Bound:
    """The gradient at porder inf or -inf, of x, y and dy into dx."""
    from opgauge.ops.p_norm import jit_grad as jit

    source, norms, grads, target = arrays
    if layout.length == 1:
        layout = _as_columns(source.size, threads)
    if layout.b == layout.c == 1:
        rows = source.reshape(layout.a, -1), norms.reshape(-1), grads.reshape(-1), target.reshape(layout.a, -1)
        return bind(jit.grad_inf_rows.on(threads), *rows)
    columns = (array.reshape(-1, layout.c) for array in arrays)
    return bind(jit.grad_inf.on(threads), *columns, layout.shape, pieces_for(threads, TASKS))


def _as_columns(size: int, threads: int) -> Reduction:
    """Sums of one element each as columns, in a few rows for threads."""
    rows = next(rows for rows in range(threads * TASKS, 0, -1) if size % rows == 0)
    return Reduction(rows, 1, 1, 1, size // rows)


def _grad_of_finite(layout: Reduction, arrays: tuple[Any, ...], threads: int, order: tuple[int, Any]) -> Bound:
    """The gradient at a finite porder, of x, y and dy into dx; order: the gradient mode, and porder - 1."""
    from opgauge.ops.p_norm import jit_grad as jit

    source, norms, grads, target = arrays
    a, r1, b, r2, c = layout.shape
    if layout.length == 1:
        layout = _as_columns(source.size, threads)
        columns = (array.reshape(layout.a, -1) for array in arrays)
        return bind(jit.grad_columns.on(threads), *columns, layout.shape, *order)
    width = c if c > 1 else r2 if b > 1 else layout.length
    if width <= SHORT_GRADIENT and source.size > width:
        units = (a, r1, b, r2, c) if c > 1 else (a, r1, b, 1, 1) if b > 1 else (a, 1, 1, 1, 1)
        flat = (array.reshape(-1) for array in arrays)
        return bind(jit.grad_short.on(threads), *flat, units, *order, width, threads)
    if c > 1:
        columns = (array.reshape(-1, c) for array in arrays)
        return bind(jit.grad_columns.on(threads), *columns, layout.shape, *order)
    pieces, length = (r1, r2) if b > 1 else (1, layout.length)
    rows = source.reshape(-1, length), norms.reshape(-1), grads.reshape(-1), target.reshape(-1, length)
    return bind(jit.grad_rows.on(threads), *rows, pieces, b, -(-length // BLOCK), *order)


def _grad_by_rows(x: Any, y: Any, dy: Any, porder: float | str, axes: tuple[int, ...], dx: Any) -> Bound:
    """More than two groups of axes: through copies in which they are rows."""
    source = np.empty(to_rows(x, axes).shape, x.dtype)
    target = np.empty_like(source)
    last = tuple(range(x.ndim - len(axes), x.ndim))
    run_rows = p_norm_grad(x=source, y=y, dy=dy, porder=porder, axis=last, keepdim=False, out={"dx": target})

    def run() -> None:
        source[...] = to_rows(x, axes)
        run_rows()
        to_rows(dx, axes)[...] = target

    return run


@kernel(
    "p_norm_grad",
    "three_kernel",
    "cpu",
    FLOATS,
    relaxed=64.0,
    note="the design document's plan: |x|^(p-1) and y^-(p-1) apart, which overflow where their product does not",
)
def p_norm_grad_three_kernel(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> None:
    """Part on the reduced shape, part broadcast, one expression: three steps, finite porder except 0."""
    del keepdim
    p = _order(porder)
    if abs(p) == inf or p == 0:
        msg = f"the design document has no plan for porder {porder}"
        raise NotImplementedError(msg)
    kept = reduced_shape(x.shape, normalize_axes(axis, x.ndim), keepdim=True)
    wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
    norms = y.astype(wide, copy=False).reshape(kept)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        part = np.where(norms == 0, 0, dy.astype(wide, copy=False).reshape(kept) * norms ** (1 - p))
        spread = np.ascontiguousarray(np.broadcast_to(part, x.shape))
        source = x.astype(wide, copy=False)
        out["dx"][...] = np.where(source == 0, 0, np.abs(source) ** (p - 1) * np.sign(source) * spread)
