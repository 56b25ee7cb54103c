"""deformable_conv by torchvision's `deform_conv2d`, registered only where torchvision is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

WIDE = ("float32", "float64")
"""Dtypes that need no `relaxed`."""


def _options(found: SamplingGeometry) -> dict[str, Any]:
    return {"stride": found.strides, "padding": found.paddings, "dilation": found.dilations}


def _forward(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out: dict[str, Any],
    mask: Any = None,
    **options: Any,
) -> Bound:
    """`torchvision.ops.deform_conv2d`."""
    del out
    from torchvision.ops import deform_conv2d

    found = geometry(tuple(x.shape), tuple(filter.shape), DeformableConvParams(**options))
    keywords = _options(found)
    return lambda: (deform_conv2d(x, offset, filter, None, mask=mask, **keywords),)


def _backward(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out_grad: Any,
    out: dict[str, Any],
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Autograd through `deform_conv2d`; the forward pass runs once, beforehand."""
    import torch
    from torchvision.ops import deform_conv2d

    options = {name: value for name, value in options.items() if not name.startswith("need_")}
    found = geometry(tuple(x.shape), tuple(filter.shape), DeformableConvParams(**options))
    tensors = {"x": x, "offset": offset, "filter": filter, "mask": mask}
    for name in out:
        tensors[name.removesuffix("_grad")].requires_grad_()
    with torch.enable_grad():
        result = deform_conv2d(x, offset, filter, None, mask=mask, **_options(found))
    wanted = [tensors[name.removesuffix("_grad")] for name in out]
    return lambda: torch.autograd.grad(result, wanted, out_grad, retain_graph=True)


if find_spec("torchvision") is not None:
    for _op, _function in (("deformable_conv", _forward), ("deformable_conv_grad", _backward)):
        kernel(_op, "torchvision", BACKENDS, WIDE, prepare=True, arrays="torch")(_function)
    # its gradient is not registered in 16 bits: rounded coordinates move samples by whole pixels
    kernel(
        "deformable_conv",
        "torchvision",
        "cuda",
        ("float16",),
        prepare=True,
        arrays="torch",
        relaxed=2.0**8,
        note="samples and sums in 16 bits",
    )(_forward)
