"""normalization by torch, as `torch.nn.functional.batch_norm` dispatches it, and by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel

WIDE, NARROW = ("float32", "float64"), ("float16", "bfloat16")
NOTE = "torch rounds once more in 16 bits on CUDA"
"""Dtypes by whether they need `relaxed` on CUDA, and the reason."""


def _step(axis: int, epsilon: float, momentum: float, *, training: bool) -> Callable[..., Any]:
    """The function a user would write: batch norm, then the addition."""
    import torch

    def run(x: Any, gamma: Any, beta: Any, moving: tuple[Any, Any] | None, addend: Any) -> tuple[Any, ...]:
        viewed = x.movedim(axis, 1)
        if not training and moving is not None:
            y = torch.nn.functional.batch_norm(viewed, *moving, gamma, beta, training=False, eps=epsilon)
            outputs: tuple[Any, ...] = ()
        else:
            new = tuple(item.clone() for item in moving) if moving else (None, None)
            y, mean, inverse, *_ = torch._batch_norm_impl_index(  # noqa: SLF001  what batch_norm calls; gives its statistics too
                viewed, gamma, beta, *new, True, 1 - momentum, epsilon, torch.backends.cudnn.enabled
            )
            outputs = (mean, inverse, *(new if moving else ()))
        y = y.movedim(1, axis)
        return (y if addend is None else y + addend, *outputs)

    return run


def _bind(step: Callable[..., Any], tensors: dict[str, Any]) -> Bound:
    moving = None
    if tensors.get("moving_mean") is not None:
        moving = (tensors["moving_mean"], tensors["moving_variance"])
    arguments = (tensors["x"], tensors["gamma"], tensors["beta"], moving, tensors.get("add_to_output"))
    return lambda: step(*arguments)


@kernel("normalization", "torch", BACKENDS, WIDE, prepare=True, arrays="torch")
@kernel("normalization", "torch", BACKENDS, NARROW, prepare=True, arrays="torch", relaxed=2.0**10, note=NOTE)
def normalization(
    *, axis: int, epsilon: float, training: bool, momentum: float, out: dict[str, Any], **tensors: Any
) -> Bound:
    """Batch norm, then an addition."""
    del out
    return _bind(_step(axis, epsilon, momentum, training=training), tensors)


@kernel("normalization", "torch_compile", BACKENDS, WIDE, prepare=True, arrays="torch")
@kernel("normalization", "torch_compile", ("cuda",), NARROW, prepare=True, arrays="torch", relaxed=2.0**10, note=NOTE)
def normalization_compiled(
    *, axis: int, epsilon: float, training: bool, momentum: float, out: dict[str, Any], **tensors: Any
) -> Bound:
    """Batch norm and addition, compiled together. On the CPU its 16-bit statistics are not the op's: float32 only."""
    del out
    return _bind(compile_peer(_step(axis, epsilon, momentum, training=training)), tensors)
