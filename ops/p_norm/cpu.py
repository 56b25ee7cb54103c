"""p_norm and p_norm_grad on the CPU by Numba, every porder, dtype and axis, and the design document's own plan."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ops._core.axes import Axis, as_reduction, normalize_axes, reduced_shape
from ops._core.dtype import FLOATS
from ops._core.kernel import Bound
from ops._core.registry import kernel

BLOCK = 1 << 12
"""Elements summed without widening: bounds the error of a sum, and is the work of one thread at a time."""


def _order(porder: float | str) -> float:
    return 2.0 if porder == "fro" else float(porder)


@kernel("p_norm", "optimized", "cpu", FLOATS, prepare=True)
def p_norm(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """One pass over x."""
    del keepdim
    y = out["y"]
    if x.size == 0:
        return lambda: y.fill(0)
    from ops._core.jit import accumulator, storage
    from ops.p_norm import jit

    p = _order(porder)
    modes = {0.0: jit.COUNT, 1.0: jit.ABS, 2.0: jit.SQUARE, 3.0: jit.CUBE, inf: jit.LARGEST, -inf: jit.SMALLEST}
    mode = modes.get(p, jit.POWER)
    wide = accumulator(x)
    order = wide.type(p if np.isfinite(p) else 1)
    layout = as_reduction(x.shape, normalize_axes(axis, x.ndim))
    source, target = storage(x), storage(y)
    if layout.b == layout.c == 1:
        rows = source.reshape(layout.a, layout.length)
        blocks = max(1, -(-layout.length // BLOCK))
        partial = np.empty((layout.a if blocks > 1 else 1, blocks))
        flat = target.reshape(-1)
        return lambda: jit.norm_rows(rows, flat, partial, mode, order)
    shaped = source.reshape(layout.a, layout.r1, layout.b, layout.r2, layout.c)
    result = target.reshape(layout.a, layout.b, layout.c)
    return lambda: jit.norm_columns(shaped, result, mode, order)


@kernel("p_norm_grad", "optimized", "cpu", FLOATS, prepare=True)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> Bound:
    """One pass over x and dx; porder +-inf reads each slice twice while it is in the cache."""
    del keepdim
    if x.size == 0:
        return lambda: None
    from ops._core.jit import accumulator, storage
    from ops.p_norm import jit

    p = _order(porder)
    layout = as_reduction(x.shape, normalize_axes(axis, x.ndim))
    full = (layout.a, layout.r1, layout.b, layout.r2, layout.c)
    reduced = (layout.a, layout.b, layout.c)
    source, target = storage(x), storage(out["dx"])
    norms, grads = storage(y), storage(dy)
    by_rows = layout.b == layout.c == 1
    if by_rows:
        source, target = source.reshape(layout.a, -1), target.reshape(layout.a, -1)
        norms, grads = norms.reshape(-1), grads.reshape(-1)
    else:
        source, target = source.reshape(full), target.reshape(full)
        norms, grads = norms.reshape(reduced), grads.reshape(reduced)
    if abs(p) == inf:
        extreme = jit.grad_extreme_rows if by_rows else jit.grad_extreme
        return lambda: extreme(source, norms, grads, target)
    slopes = {0.0: jit.FLAT, 1.0: jit.SIGN, 2.0: jit.LINEAR, 3.0: jit.QUADRATIC, 1.5: jit.ROOT, 2.5: jit.ROOT_CUBED}
    slope = slopes.get(p, jit.GENERAL if p > 1 else jit.BELOW_ONE)
    wide = accumulator(x)
    q, large, limit = wide.type(p - 1), wide.type(2.0**64), wide.type(1e30)
    if by_rows:
        blocks = max(1, -(-layout.length // BLOCK))
        return lambda: jit.grad_rows(source, norms, grads, target, blocks, slope, q, large, limit)
    return lambda: jit.grad_columns(source, norms, grads, target, slope, q, large, limit)


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
    """Part on the reduced shape, part spread over the whole, one expression: three steps, finite porder but 0."""
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
