"""lerp and lerp_grad as Eigen-style composites, and the design document's subtraction, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.broadcast import reduced_axes
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.registry import kernel


def _widen(array: Any) -> Any:
    """16-bit floats as float32; numbers and other arrays unchanged."""
    if array is None or isinstance(array, float | int) or array.dtype.itemsize != 2:
        return array
    return array.astype(namespace(array).float32)


def _reduce(full: Any, shape: tuple[int, ...]) -> Any:
    axes = reduced_axes(shape, full.shape)
    return (full.sum(axis=axes, keepdims=True) if axes else full).reshape(shape)


@kernel("lerp", "baseline", BACKENDS, FLOATS)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> None:
    """Subtract, multiply, add: three passes."""
    x, y, weight = _widen(x), _widen(y), _widen(weight)
    out["out"][...] = x + weight * (y - x)


@kernel("lerp_grad", "baseline", BACKENDS, FLOATS)
def lerp_grad(*, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any]) -> None:
    """Two products of weight and dout as full tensors, then two sums."""
    dout, weight = _widen(dout), _widen(weight)
    if need_x:
        out["dx"][...] = _reduce((1 - weight) * dout, x.shape)
    if need_y:
        out["dy"][...] = _reduce(weight * dout, y.shape)


@kernel(
    "lerp_grad",
    "subtract",
    BACKENDS,
    FLOATS,
    relaxed=2.0**24,
    note="dX = dout - weight dout, the design document's, has no relative accuracy at weight near 1",
)
def lerp_grad_subtract(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any]
) -> None:
    """One product, one difference, two sums."""
    dout, weight = _widen(dout), _widen(weight)
    full = weight * dout
    if need_x:
        out["dx"][...] = _reduce(dout - full, x.shape)
    if need_y:
        out["dy"][...] = _reduce(full, y.shape)
