"""lerp by `torch.lerp`; lerp_grad by autograd through it, and by the compiled closed form."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.broadcast import reduced_axes
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel

WIDE = ("float32", "float64")
IN_16_BITS = "torch rounds products to 16 bits before it sums them"
"""Dtypes that need no `relaxed`, and the reason for the others."""


@kernel("lerp", "torch", BACKENDS, FLOATS, prepare=True, arrays="torch", relaxed=4.0)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """`torch.lerp` into the output."""
    import torch

    result = out["out"]

    def run() -> None:
        torch.lerp(x, y, weight, out=result)

    return run


@kernel("lerp", "torch_compile", BACKENDS, FLOATS, prepare=True, arrays="torch", relaxed=4.0)
def lerp_compiled(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """`torch.lerp`, compiled."""
    del out
    import torch

    compiled = compile_peer(torch.lerp)
    return lambda: (compiled(x, y, weight),)


@kernel("lerp_grad", "torch", BACKENDS, WIDE, prepare=True, arrays="torch", relaxed=64.0)
@kernel("lerp_grad", "torch", BACKENDS, ("float16",), prepare=True, arrays="torch", relaxed=2.0**14, note=IN_16_BITS)
@kernel("lerp_grad", "torch", BACKENDS, ("bfloat16",), prepare=True, arrays="torch", relaxed=2.0**17, note=IN_16_BITS)
def lerp_grad(*, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any]) -> Bound:
    """Autograd through `torch.lerp`; the forward pass runs once, beforehand."""
    del out
    import torch

    first, second = x.detach().requires_grad_(need_x), y.detach().requires_grad_(need_y)
    with torch.enable_grad():
        result = torch.lerp(first, second, weight)
    wanted = [tensor for tensor, need in ((first, need_x), (second, need_y)) if need]
    return lambda: torch.autograd.grad(result, wanted, dout, retain_graph=True)


@kernel("lerp_grad", "torch_compile", BACKENDS, FLOATS, prepare=True, arrays="torch", relaxed=64.0)
def lerp_grad_compiled(
    *, x: Any, y: Any, dout: Any, weight: Any, need_x: bool, need_y: bool, out: dict[str, Any]
) -> Bound:
    """The closed form, compiled."""
    del out
    import torch

    shapes = (tuple(x.shape), tuple(y.shape))
    full = tuple(dout.shape)

    def reduce(tensor: Any, shape: tuple[int, ...]) -> Any:
        axes = reduced_axes(shape, full)
        return (tensor.sum(axes, keepdim=True) if axes else tensor).reshape(shape)

    def gradient(given: Any, share: Any) -> tuple[Any, ...]:
        wide = torch.float32 if given.element_size() == 2 else given.dtype
        g = given.to(wide)
        w = share.to(wide) if isinstance(share, torch.Tensor) else share
        found = []
        if need_x:
            found.append(reduce((1 - w) * g, shapes[0]).to(given.dtype))
        if need_y:
            found.append(reduce(w * g, shapes[1]).to(given.dtype))
        return tuple(found)

    compiled = compile_peer(gradient)
    return lambda: compiled(dout, weight)
