"""p_norm and p_norm_grad as an Eigen-style composite of array operations, NumPy and CuPy alike."""

from __future__ import annotations

from math import inf
from typing import Any

from opgauge.ops._core.axes import Axis, normalize_axes, reduced_shape, sum_array
from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.registry import kernel


@kernel("p_norm", "baseline", BACKENDS, FLOATS)
def p_norm(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]) -> None:
    """Passes abs, pow, sum, pow, each over memory."""
    xp = namespace(x)
    p = 2.0 if porder == "fro" else float(porder)
    axes = normalize_axes(axis, x.ndim)
    y = out["y"]
    if x.size == 0:
        y[...] = 0
        return
    wide = x.astype(xp.float32) if x.dtype.itemsize == 2 else x
    if p == 0:
        y[...] = (wide != 0).sum(axis=axes, keepdims=keepdim)
    elif p == inf:
        y[...] = xp.abs(wide).max(axis=axes, keepdims=keepdim)
    elif p == -inf:
        y[...] = xp.abs(wide).min(axis=axes, keepdims=keepdim)
    elif p == 2:
        y[...] = xp.sqrt(sum_array(xp.square(wide), axes, keepdim=keepdim))
    else:
        y[...] = sum_array(xp.abs(wide) ** p, axes, keepdim=keepdim) ** (1 / p)


@kernel("p_norm_grad", "baseline", BACKENDS, FLOATS)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> None:
    """Up to eight passes over memory: abs, pow, sign, mul, broadcast mul, pow, mul, mask."""
    del keepdim
    xp = namespace(x)
    p = 2.0 if porder == "fro" else float(porder)
    axes = normalize_axes(axis, x.ndim)
    kept = reduced_shape(x.shape, axes, keepdim=True)
    dx = out["dx"]
    if x.size == 0:
        return
    if x.dtype.itemsize == 2:
        x, y, dy = x.astype(xp.float32), y.astype(xp.float32), dy.astype(xp.float32)
    y, dy = y.reshape(kept), dy.reshape(kept)
    if p == 0:
        dx[...] = 0
    elif abs(p) == inf:
        tied = (xp.abs(x) == y) | xp.isnan(x)
        count = xp.maximum(tied.sum(axis=axes, keepdims=True), 1).astype(dy.dtype)
        dx[...] = xp.sign(x) * tied * (dy / count)
    elif p == 1:
        dx[...] = xp.sign(x) * dy
    elif p < 1:
        # a power of the ratio: that of a small x alone overflows, as does that of a ratio of 0, and 0 times that is NaN
        ratio = xp.abs(x) / y
        lost = (x == 0) | (y == 0) | ((ratio == 0) & (dy == 0) & (y < inf))
        dx[...] = xp.where(lost, 0, ratio ** (p - 1) * xp.sign(x) * dy)
    else:
        scale = xp.where(y == 0, 0, dy * y ** (1 - p))
        dx[...] = xp.abs(x) ** (p - 1) * xp.sign(x) * scale
