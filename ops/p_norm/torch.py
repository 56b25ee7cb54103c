"""p_norm and p_norm_grad by torch: vector_norm and autograd through it; compiled, the formula a user would write."""

from __future__ import annotations

from math import inf
from typing import Any

from opgauge.ops._core.axes import Axis, normalize_axes, reduced_shape
from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel

IN_16_BITS = "torch rounds intermediate results to 16 bits"
WIDE = ("float32", "float64")
"""Dtypes that need no `relaxed`, and the reason for the others."""


def _order(porder: float | str) -> float:
    return 2.0 if porder == "fro" else float(porder)


@kernel("p_norm", "torch", BACKENDS, FLOATS, prepare=True, arrays="torch", relaxed=8.0)
def p_norm(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """`torch.linalg.vector_norm` into the output."""
    import torch

    p, axes, y = _order(porder), list(normalize_axes(axis, x.ndim)), out["y"]
    if not x.numel():
        return lambda: (y.zero_(),)

    def run() -> None:
        torch.linalg.vector_norm(x, p, axes, keepdim, out=y)

    return run


@kernel("p_norm", "torch_compile", BACKENDS, FLOATS, prepare=True, arrays="torch", relaxed=8.0)
def p_norm_compiled(*, x: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]) -> Bound:
    """`torch.linalg.vector_norm`, compiled."""
    import torch

    p, axes, y = _order(porder), list(normalize_axes(axis, x.ndim)), out["y"]
    if not x.numel():
        return lambda: (y.zero_(),)
    compiled = compile_peer(lambda tensor: torch.linalg.vector_norm(tensor, p, axes, keepdim))
    return lambda: (compiled(x),)


@kernel("p_norm_grad", "torch", BACKENDS, WIDE, prepare=True, arrays="torch", relaxed=64.0, captures_inputs=True)
@kernel(
    "p_norm_grad",
    "torch",
    BACKENDS,
    ("float16",),
    prepare=True,
    arrays="torch",
    relaxed=2.0**15,
    note=IN_16_BITS,
    captures_inputs=True,
)
@kernel(
    "p_norm_grad",
    "torch",
    BACKENDS,
    ("bfloat16",),
    prepare=True,
    arrays="torch",
    relaxed=2.0**17,
    note=IN_16_BITS,
    captures_inputs=True,
)
def p_norm_grad(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> Bound:
    """Autograd through `vector_norm`; the forward pass runs once, beforehand."""
    del out
    import torch

    p, axes = _order(porder), list(normalize_axes(axis, x.ndim))
    if p == 0 or not x.numel():
        return lambda: (torch.zeros_like(x),)
    source = x.detach().requires_grad_()
    with torch.enable_grad():
        norm = torch.linalg.vector_norm(source, p, axes, keepdim)
    del y
    return lambda: torch.autograd.grad(norm, source, dy, retain_graph=True)


@kernel("p_norm_grad", "torch_compile", BACKENDS, FLOATS, prepare=True, arrays="torch", relaxed=64.0)
def p_norm_grad_compiled(
    *, x: Any, y: Any, dy: Any, porder: float | str, axis: Axis, keepdim: bool, out: dict[str, Any]
) -> Bound:
    """The closed form, compiled into one kernel."""
    del keepdim, out
    import torch

    p, axes = _order(porder), normalize_axes(axis, x.ndim)
    kept = reduced_shape(tuple(x.shape), axes, keepdim=True)
    if p == 0 or not x.numel():
        return lambda: (torch.zeros_like(x),)

    def gradient(source: Any, norm: Any, given: Any) -> Any:
        wide = torch.float32 if source.element_size() == 2 else source.dtype
        v, n, g = source.to(wide), norm.to(wide).reshape(kept), given.to(wide).reshape(kept)
        if abs(p) == inf:
            tied = (v.abs() == n) | v.isnan()
            result = v.sign() * tied * (g / tied.sum(list(axes), keepdim=True).clamp(min=1))
        elif p == 1:
            result = v.sign() * g
        elif p == 2:
            result = torch.where(n == 0, 0, v * (g / n))
        else:
            result = v.sign() * g * (v.abs() / n) ** (p - 1)
            result = torch.where((v == 0) if p < 1 else (n == 0), 0, result)
        return result.to(source.dtype)

    compiled = compile_peer(gradient)
    return lambda: (compiled(x, y, dy),)
