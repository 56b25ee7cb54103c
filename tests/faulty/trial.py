"""What faulty kernels are asked for."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.ops import find_op


def trial(implementation: str, dtype: str = "float32", length: int = 7) -> Trial:
    """A small p_norm by `implementation`."""
    case = Case("p_norm", "small", {"x": (5, length)}, dtype, find_op("p_norm").params(porder=inf))
    return Trial(case, implementation, "cpu", "cpu")


def between_right_ones(executor: LocalExecutor, fault: Trial) -> Result:
    """The result of a trial of a faulty kernel, which has no time; those of right ones before and after it are ok."""
    right = replace(fault, implementation="baseline")
    before, found, after = executor.run([right, fault, right])
    assert (before.status, after.status) == (Status.OK, Status.OK), after.reason
    assert "\n" not in found.reason
    assert found.trial == fault
    assert found.measurement is None
    return found
