"""fill_any_like on CUDA: one launch."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.dtype import dtype_name
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops.fill_any_like.op import DTYPES, as_element


@kernel("fill_any_like", "optimized", "cuda", DTYPES, prepare=True, strided=True)
def fill_any_like(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> Bound:
    """One write."""
    return bind_fill(out["out"], as_element(value, dtype or dtype_name(x.dtype)))
