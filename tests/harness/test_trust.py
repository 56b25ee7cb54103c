"""Blocks that leave the bits of outputs that were checked before need no reference of their own."""

from __future__ import annotations

from typing import Any

import pytest

from harness.case.case import Case
from harness.measure import Limits
from harness.result.result import Status, Trial
from harness.worker import block
from harness.worker.attempt import Trusted
from harness.worker.block import Bench
from ops import find_op

QUICK = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)
CASE = Case("p_norm", "small", {"x": (5, 7)}, "float32", find_op("p_norm").params())
TRIAL = Trial(CASE, "baseline", "cpu", "cpu")


def bench() -> Bench:
    """As in a fresh process."""
    return Bench(lambda _: None)


def refuse(*_: Any) -> None:
    """A reference that must not be asked for."""
    raise ArithmeticError


def test_checked_bits_need_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the digest of checked outputs a block needs no reference; without it, or with another's, it does."""
    first = bench().run(TRIAL, QUICK, with_digest=True)
    assert first.check is not None
    known = Trusted(first.extra["digest"], first.check)
    monkeypatch.setattr(block, "expect", refuse)
    again = bench().run(TRIAL, QUICK, trusted=known)
    assert (again.status, again.check) == (Status.OK, first.check)
    other = bench().run(TRIAL, QUICK, trusted=Trusted("0" * 64, first.check))
    assert (other.status, "the reference failed" in other.reason) == (Status.ERROR, True)
    assert bench().run(TRIAL, QUICK).status is Status.ERROR


def test_other_bits_are_checked() -> None:
    """Outputs with other bits than those trusted are compared with the reference, and found right or wrong."""
    first = bench().run(TRIAL, QUICK)
    assert first.check is not None
    assert bench().run(TRIAL, QUICK, trusted=Trusted("0" * 64, first.check)).status is Status.OK
    assert "digest" not in first.extra


def test_a_bench_computes_the_reference_when_the_next_trial_wants_it() -> None:
    """A trial that trusts leaves the inputs at hand without a reference; one that does not trust gets it."""
    shared = bench()
    known = shared.run(TRIAL, QUICK, with_digest=True)
    assert known.check is not None
    fresh = bench()
    assert fresh.run(TRIAL, QUICK, trusted=Trusted(known.extra["digest"], known.check)).status is Status.OK
    assert fresh.expected is None
    assert fresh.run(Trial(CASE, "optimized", "cpu", "cpu"), QUICK).status is Status.OK
    assert fresh.expected is not None
