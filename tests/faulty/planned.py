"""An implementation of p_norm that announces a plan with each call, as host code of CUDA kernels does when it binds."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.plans import announce
from tests.faulty.kernels import faulty, right


@faulty
def announces(x: Any, out: dict[str, Any]) -> None:
    announce("max over rows: few rows")
    right(x, out)
