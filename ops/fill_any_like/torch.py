"""fill_any_like by torch and torch.compile."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel
from opgauge.ops.fill_any_like.op import DTYPES


def _python_value(value: float, tensor: Any) -> Any:
    name = str(tensor.dtype).removeprefix("torch.")
    kind = dtype_info(name).kind
    return value if kind == "float" else bool(value) if kind == "bool" else int(value)


@kernel("fill_any_like", "torch", BACKENDS, DTYPES, prepare=True, arrays="torch")
def fill_any_like(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> Bound:
    """`Tensor.fill_` of the output."""
    del x, dtype
    result = out["out"]
    element = _python_value(value, result)

    def run() -> None:
        result.fill_(element)

    return run


@kernel("fill_any_like", "torch_compile", BACKENDS, DTYPES, prepare=True, arrays="torch")
def fill_any_like_compiled(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> Bound:
    """`torch.full_like`, compiled."""
    del dtype
    import torch

    kind, element = out["out"].dtype, _python_value(value, out["out"])
    compiled = compile_peer(lambda tensor: torch.full_like(tensor, element, dtype=kind))
    return lambda: (compiled(x),)
