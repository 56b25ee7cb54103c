"""dot as a composite: a product, then a sum, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.registry import kernel
from opgauge.ops.dot.op import DTYPES


@kernel("dot", "baseline", BACKENDS, DTYPES)
def dot(*, x: Any, y: Any, out: dict[str, Any]) -> None:
    """Multiply, sum; 16-bit floats in float32."""
    if x.dtype.kind not in "iuc" and x.dtype.itemsize == 2:
        wide = namespace(x).float32
        x, y = x.astype(wide), y.astype(wide)
    out["out"][...] = (x * y).sum(axis=-1, dtype=x.dtype)
