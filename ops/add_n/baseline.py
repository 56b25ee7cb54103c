"""add_n as one array operation, NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.backend import BACKENDS, namespace
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.registry import kernel


@kernel("add_n", "baseline", BACKENDS, FLOATS)
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> None:
    """One addition."""
    namespace(in_0).add(in_0, in_1, out=out["out"])
