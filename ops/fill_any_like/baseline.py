"""fill_any_like as one array operation, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.dtype import dtype_name
from opgauge.ops._core.registry import kernel
from opgauge.ops.fill_any_like.op import DTYPES, as_element


@kernel("fill_any_like", "baseline", BACKENDS, DTYPES, strided=True)
def fill_any_like(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> None:
    """`full_like` into a new tensor, then into the output."""
    target = dtype or dtype_name(x.dtype)
    result = out["out"]
    result[...] = namespace(x).full(x.shape, as_element(value, target), dtype=result.dtype)
