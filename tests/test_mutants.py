"""The checker kills wrong kernels, every one, for every op; and spares right ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.ops import all_ops
from tests.mutants import MUTANTS, Subject, applies, judge, subject_of

CASES = Path(__file__).parents[1] / "cases"
ENOUGH = 10
"""Mutants that must be tried, at least, for each op."""
PER_OP = 6
SMALLEST = 20
"""Elements of an output on which skipped tails and swapped strides show; fewer where an op has no such case."""


@cache
def smoke_cases() -> tuple[Case, ...]:
    """All small cases."""
    return tuple(load_cases([CASES], tags=["smoke"]))


def ops_with_cases() -> list[str]:
    """Ops that have small cases."""
    return sorted({case.op for case in smoke_cases()} & {op.name for op in all_ops()})


def _elements(case: Case) -> int:
    """Elements of the largest output that has a buffer of its own."""
    return max((spec.size for spec in case.resolved.outputs.values() if spec.view_of is None), default=0)


@cache
def subjects(op: str) -> tuple[Subject, ...]:
    """A few small cases of `op`, of all dtypes there are, each as generated and with zeros and NaN strewn in."""
    by_dtype: dict[str, list[Case]] = {}
    for case in smoke_cases():
        if case.op == op and _elements(case):
            by_dtype.setdefault(case.dtype, []).append(case)
    chosen = []
    for cases in by_dtype.values():
        large = [case for case in cases if _elements(case) >= SMALLEST] or cases
        chosen += large[:: max(len(large) // PER_OP, 1)][:PER_OP]
    return tuple(subject_of(case, special=special) for case in chosen for special in (False, True))


@pytest.mark.parametrize("op", ops_with_cases())
def test_right_outputs_pass(op: str) -> None:
    """The reference rounded to the dtype is right, zeros and NaN among the inputs or not."""
    for subject in subjects(op):
        check = judge(subject, None)
        assert check.ok, f"{subject.case.name} {subject.case.dtype}: {check.reason}"


@pytest.mark.parametrize("op", ops_with_cases())
def test_mutants_are_killed(op: str) -> None:
    """At least ten mutants change something in a case of the op, and not one of them passes."""
    tried, survivors = set(), []
    for subject in subjects(op):
        for name, mutant in MUTANTS.items():
            if applies(subject, mutant):
                tried.add(name)
                if judge(subject, mutant).ok:
                    survivors.append(f"{name}: {subject.case.name} {subject.case.dtype} {subject.case.params}")
    assert not survivors, "\n".join(survivors)
    assert len(tried) >= ENOUGH, tried
