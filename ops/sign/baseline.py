"""sign as one array operation, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.registry import kernel
from opgauge.ops.sign.op import DTYPES


@kernel("sign", "baseline", BACKENDS, DTYPES, strided=True)
def sign(*, x: Any, out: dict[str, Any]) -> None:
    """Compare with zero twice, subtract; x / |x| for complex x."""
    xp = namespace(x)
    if x.dtype.kind == "c":
        size = xp.abs(x)
        out["out"][...] = xp.where(size == 0, 0, x / xp.where(size == 0, 1, size))
        return
    wide = x.astype(xp.float32) if x.dtype.name == "bfloat16" else x
    result = (wide > 0).astype(xp.int8) - (wide < 0).astype(xp.int8)
    if x.dtype.kind in "iu":
        out["out"][...] = result
    else:
        out["out"][...] = xp.where(xp.isnan(wide), wide, result)
