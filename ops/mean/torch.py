"""mean by torch and torch.compile."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.axes import Axis, normalize_axes
from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel


@kernel("mean", "torch", BACKENDS, FLOATS, prepare=True, arrays="torch")
def mean(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """`torch.mean` into the output."""
    import torch

    axes, result = list(normalize_axes(axis, x.ndim)), out["out"]

    def run() -> None:
        torch.mean(x, axes, keepdim, out=result)

    return run if axes else lambda: (x.clone(),)


@kernel("mean", "torch_compile", BACKENDS, FLOATS, prepare=True, arrays="torch")
def mean_compiled(*, x: Any, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """`torch.mean`, compiled."""
    del out
    axes = list(normalize_axes(axis, x.ndim))
    if not axes:
        return lambda: (x.clone(),)
    compiled = compile_peer(lambda tensor: tensor.mean(axes, keepdim))
    return lambda: (compiled(x),)
