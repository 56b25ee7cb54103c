"""scale as a product and a sum, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.registry import kernel
from opgauge.ops.scale.op import DTYPES, as_integer


@kernel("scale", "baseline", BACKENDS, DTYPES, strided=True)
def scale(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> None:
    """Multiply, add; 16-bit floats in float32."""
    xp = namespace(x)
    factor: Any = scale
    if x.dtype.name in {"float16", "bfloat16"}:
        x = x.astype(xp.float32)
    if not isinstance(factor, float | int):
        factor = factor.reshape(-1)[0].astype(x.dtype)
    elif x.dtype.kind in "iu":
        factor = x.dtype.type(as_integer(factor, x.dtype))
    else:
        factor = x.dtype.type(factor)
    shift = x.dtype.type(as_integer(bias, x.dtype) if x.dtype.kind in "iu" else bias)
    out["out"][...] = x * factor + shift if bias_after_scale else (x + shift) * factor
