"""Compiling before measuring."""

from __future__ import annotations

from collections import Counter

from harness.case.case import Case
from harness.result.result import Trial
from harness.run.compiling import compile_ahead
from ops import find_op


def test_every_trial_is_called_once_by_one_of_the_workers() -> None:
    """Two workers share the cases; each trial is told of once; those that are right are counted, those missing not."""
    sizes = (3, 5, 7)
    cases = [Case("p_norm", f"c{size}", {"x": (2, size)}, "float32", find_op("p_norm").params()) for size in sizes]
    trials = [Trial(case, name, "cpu", "cpu") for case in cases for name in ("baseline", "optimized")]
    trials.append(Trial(cases[0], "nobody", "cpu", "cpu"))
    told: Counter[str] = Counter()
    right = compile_ahead(trials, 2, lambda trial: told.update([f"{trial.case.name} {trial.implementation}"]))
    assert right == 6
    assert set(told.values()) == {1}
    assert len(told) == 7
