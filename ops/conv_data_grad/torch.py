"""conv_data_grad by torch (cuDNN on CUDA), then an addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.peer import compile_peer
from opgauge.ops._core.registry import kernel
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, geometry

WIDE = ("float32", "float64")
NOTE = "torch rounds each partial sum to 16 bits on the CPU"
"""Dtypes that need no `relaxed`, and the reason for the others."""


def _step(shape: tuple[int, ...], filter_shape: tuple[int, ...], params: ConvDataGradParams) -> Callable[..., Any]:
    """The function a user would write: the convolution's own backward, then the addition."""
    import torch

    torch.backends.cudnn.allow_tf32 = False  # TF32 exceeds the allowed error of float32 60 times
    found = geometry(shape, filter_shape, params)
    rank = len(found.size)
    options = (
        None,
        list(found.strides),
        list(found.padding),
        list(found.dilation),
        False,
        [0] * rank,
        found.groups,
        [True, False, False],
    )

    def run(dy: Any, weight: Any, x_like: Any, addend: Any) -> tuple[Any]:
        if found.channels_last:
            dy, weight, x_like = (tensor.movedim(-1, 1) for tensor in (dy, weight, x_like))
        dx = torch.ops.aten.convolution_backward(dy, x_like, weight, *options)[0]
        if found.channels_last:
            dx = dx.movedim(1, -1)
        return (dx if addend is None else dx + addend,)

    return run


def _params(options: dict[str, Any]) -> ConvDataGradParams:
    return ConvDataGradParams(**options)


@kernel("conv_data_grad", "torch", BACKENDS, WIDE, prepare=True, arrays="torch")
@kernel(
    "conv_data_grad",
    "torch",
    BACKENDS,
    ("float16",),
    prepare=True,
    arrays="torch",
    relaxed=2.0**13,
    note=NOTE,
)
@kernel(
    "conv_data_grad",
    "torch",
    BACKENDS,
    ("bfloat16",),
    prepare=True,
    arrays="torch",
    relaxed=2.0**16,
    note=NOTE,
)
def conv_data_grad(
    *,
    dy: Any,
    filter: Any,
    x_like: Any,
    out: dict[str, Any],
    add_to_output: Any = None,
    **options: Any,
) -> Bound:
    """The convolution's backward, then an addition."""
    del out
    step = _step(tuple(x_like.shape), tuple(filter.shape), _params(options))
    return lambda: step(dy, filter, x_like, add_to_output)


@kernel("conv_data_grad", "torch_compile", BACKENDS, WIDE, prepare=True, arrays="torch")
@kernel(
    "conv_data_grad",
    "torch_compile",
    BACKENDS,
    ("float16",),
    prepare=True,
    arrays="torch",
    relaxed=2.0**13,
    note=NOTE,
)
@kernel(
    "conv_data_grad",
    "torch_compile",
    BACKENDS,
    ("bfloat16",),
    prepare=True,
    arrays="torch",
    relaxed=2.0**16,
    note=NOTE,
)
def conv_data_grad_compiled(
    *,
    dy: Any,
    filter: Any,
    x_like: Any,
    out: dict[str, Any],
    add_to_output: Any = None,
    **options: Any,
) -> Bound:
    """The convolution's backward and an addition, compiled."""
    del out
    step = compile_peer(_step(tuple(x_like.shape), tuple(filter.shape), _params(options)))
    return lambda: step(dy, filter, x_like, add_to_output)
