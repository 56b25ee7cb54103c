"""dot by torch and torch.compile."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel
from opgauge.ops.dot.op import DTYPES

BLAS = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16")
"""Dtypes of `torch.dot`."""


@kernel("dot", "torch", ("cpu",), DTYPES, prepare=True, arrays="torch", relaxed=2.0**16)
@kernel("dot", "torch", ("cuda",), BLAS, prepare=True, arrays="torch", relaxed=2.0**16)
def dot(*, x: Any, y: Any, out: dict[str, Any]) -> Bound:
    """`torch.dot` for vectors, a product and a sum for rows. torch may sum in 16 bits, hence the wide tolerance."""
    del out
    import torch

    if x.ndim == 1:
        return lambda: (torch.dot(x, y),)
    return lambda: ((x * y).sum(-1, dtype=x.dtype),)


@kernel(
    "dot", "torch_compile", ("cpu", "cuda"), ("float16", "bfloat16", "float32", "float64"), prepare=True, arrays="torch"
)
def dot_compiled(*, x: Any, y: Any, out: dict[str, Any]) -> Bound:
    """A product and a sum, compiled into one."""
    del out
    compiled = compile_peer(lambda first, second: (first * second).sum(-1))
    return lambda: (compiled(x, y),)
