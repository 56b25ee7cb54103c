"""What faulty kernels are asked for."""

from __future__ import annotations

from math import inf

from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Trial
from opgauge.ops import find_op


def trial(implementation: str, dtype: str = "float32", length: int = 7) -> Trial:
    """A small p_norm by `implementation`."""
    case = Case("p_norm", "small", {"x": (5, length)}, dtype, find_op("p_norm").params(porder=inf))
    return Trial(case, implementation, "cpu", "cpu")
