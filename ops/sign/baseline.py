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
        real, imaginary = x.real, x.imag
        largest = xp.maximum(xp.abs(real), xp.abs(imaginary))
        unit = xp.where((largest > 0) & xp.isfinite(largest), largest, 1)
        real, imaginary = real / unit, imaginary / unit  # the magnitude of x itself may overflow
        size = xp.sqrt(real * real + imaginary * imaginary)
        size = xp.where(size == 0, 1, size)
        out["out"].real[...] = real / size
        out["out"].imag[...] = imaginary / size
        return
    wide = x.astype(xp.float32) if x.dtype.name == "bfloat16" else x
    result = (wide > 0).astype(xp.int8) - (wide < 0).astype(xp.int8)
    if x.dtype.kind in "iu":
        out["out"][...] = result
    else:
        out["out"][...] = xp.where(xp.isnan(wide), wide, result)
