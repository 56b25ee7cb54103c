"""mean as a composite: a sum, then a division, NumPy and CuPy alike."""

from __future__ import annotations

from math import prod
from typing import Any

from opgauge.ops._core.axes import Axis, normalize_axes, sum_array
from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.registry import kernel


@kernel("mean", "baseline", BACKENDS, FLOATS)
def mean(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any]) -> None:
    """Widen 16-bit floats, sum, divide."""
    xp = namespace(x)
    axes = normalize_axes(axis, x.ndim)
    count = prod(x.shape[item] for item in axes)
    wide = x.astype(xp.float32) if x.dtype.itemsize == 2 else x
    total = sum_array(wide, axes, keepdim=keepdim)
    out["out"][...] = total / total.dtype.type(count) if count else float("nan")
