"""flatten by torch."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel
from opgauge.ops.flatten.op import DTYPES


@kernel("flatten", "torch", BACKENDS, DTYPES, prepare=True, arrays="torch")
def flatten(*, x: Any, start_axis: int, stop_axis: int, copy: bool, out: dict[str, Any]) -> Bound:
    """`torch.flatten`, copied into the output or returned as a view."""
    import torch

    if not copy:
        return lambda: (torch.flatten(x, start_axis, stop_axis),)
    result = out["out"]

    def run() -> None:
        result.copy_(torch.flatten(x, start_axis, stop_axis))

    return run


@kernel(
    "flatten", "torch_compile", BACKENDS, ("float16", "bfloat16", "float32", "float64"), prepare=True, arrays="torch"
)
def flatten_compiled(*, x: Any, start_axis: int, stop_axis: int, copy: bool, out: dict[str, Any]) -> Bound:
    """`torch.flatten` and a clone, compiled; the view is not compiled."""
    del out
    import torch

    if not copy:
        return lambda: (torch.flatten(x, start_axis, stop_axis),)
    compiled = compile_peer(lambda tensor: torch.flatten(tensor, start_axis, stop_axis).clone())
    return lambda: (compiled(x),)
