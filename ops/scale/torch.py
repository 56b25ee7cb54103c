"""scale by torch and torch.compile: the product and the sum that a user would write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import INTS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel
from opgauge.ops.scale.op import as_integer

WIDE = ("float32", "float64", *INTS)
IN_16_BITS = "torch rounds the product to 16 bits before it adds"
"""Dtypes that need no `relaxed`, and the reason for the others."""


def _step(x: Any, scale: Any, bias: float, *, bias_after_scale: bool) -> tuple[Callable[..., Any], Any]:
    if not isinstance(scale, float | int):
        scale = scale.reshape(())  # with more dimensions than x it would add some
    if not x.is_floating_point():
        integer = np.dtype(str(x.dtype).removeprefix("torch."))
        scale = as_integer(scale, integer) if isinstance(scale, float | int) else scale
        bias = as_integer(bias, integer)
    if bias_after_scale:
        return (lambda tensor, factor: tensor * factor + bias), scale
    return (lambda tensor, factor: (tensor + bias) * factor), scale


@kernel("scale", "torch", BACKENDS, WIDE, prepare=True, arrays="torch")
@kernel("scale", "torch", BACKENDS, ("float16",), prepare=True, arrays="torch", relaxed=2.0**14, note=IN_16_BITS)
@kernel("scale", "torch", BACKENDS, ("bfloat16",), prepare=True, arrays="torch", relaxed=2.0**17, note=IN_16_BITS)
def scale(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> Bound:
    """A product and a sum."""
    del out
    step, factor = _step(x, scale, bias, bias_after_scale=bias_after_scale)
    return lambda: (step(x, factor),)


@kernel("scale", "torch_compile", BACKENDS, WIDE, prepare=True, arrays="torch")
@kernel("scale", "torch_compile", BACKENDS, ("float16",), prepare=True, arrays="torch", relaxed=2.0**14)
@kernel("scale", "torch_compile", BACKENDS, ("bfloat16",), prepare=True, arrays="torch", relaxed=2.0**17)
def scale_compiled(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> Bound:
    """A product and a sum, compiled."""
    del out
    step, factor = _step(x, scale, bias, bias_after_scale=bias_after_scale)
    compiled = compile_peer(step)
    return lambda: (compiled(x, factor),)
