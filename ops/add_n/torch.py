"""add_n by torch and torch.compile."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel


@kernel("add_n", "torch", BACKENDS, FLOATS, prepare=True, arrays="torch")
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """`torch.add` into the output."""
    import torch

    result = out["out"]

    def run() -> None:
        torch.add(in_0, in_1, out=result)

    return run


@kernel("add_n", "torch_compile", BACKENDS, FLOATS, prepare=True, arrays="torch")
def add_n_compiled(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """A compiled addition."""
    del out
    import torch

    compiled = torch.compile(lambda first, second: first + second)
    return lambda: (compiled(in_0, in_1),)
