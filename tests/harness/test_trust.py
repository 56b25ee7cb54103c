"""Blocks that leave the bits of outputs that were checked before need no reference of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.gate.record import BASE, HEAD, BlockOutcome, Job, JobRecord
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status, Trial
from opgauge.harness.trust.cheat_rates import CheatOutcome, cheat_rates
from opgauge.harness.worker import attempt, bits, buffers
from opgauge.harness.worker import bench as bench_module
from opgauge.harness.worker.attempt import Trusted
from opgauge.harness.worker.bench import Bench
from opgauge.ops import find_op

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
    monkeypatch.setattr(bench_module, "expect", refuse)
    again = bench().run(TRIAL, QUICK, trusted=known)
    assert (again.status, again.check) == (Status.OK, first.check)
    other = bench().run(TRIAL, QUICK, trusted=Trusted("0" * 64, first.check))
    assert (other.status, "the reference failed" in other.reason) == (Status.ERROR, True)
    assert bench().run(TRIAL, QUICK).status is Status.ERROR


def test_what_another_tree_checked_counts_on_its_grounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same outputs of the same inputs by the same code need no reference; of other inputs or code they do."""
    first = bench().run(TRIAL, QUICK, with_fingerprint=True)
    assert first.check is not None
    known = Trusted(first.extra["digest"], first.check, first.extra["fingerprint"])
    monkeypatch.setattr(bench_module, "expect", refuse)
    again = bench().run(TRIAL, QUICK, trusted=known, with_fingerprint=True)
    assert (again.status, again.extra["fingerprint"]) == (Status.OK, first.extra["fingerprint"])
    with monkeypatch.context() as patched:
        patched.setattr(attempt, "judged_by", lambda _: "another reference")
        assert bench().run(TRIAL, QUICK, trusted=known).status is Status.ERROR
    of_other_inputs = replace(known, fingerprint=first.extra["fingerprint"].replace(first.extra["fingerprint"][0], "-"))
    assert bench().run(TRIAL, QUICK, trusted=of_other_inputs).status is Status.ERROR


def test_one_side_takes_what_the_other_found() -> None:
    """A record hands a side its own checked outputs without fingerprint, else the other side's with them."""
    first = bench().run(TRIAL, QUICK, with_fingerprint=True)
    record = JobRecord(Job(Subject("p_norm", "small", CASE.id, "baseline", "cpu"), {}))
    assert record.trusted(BASE) is None
    record.outcomes[BASE][0] = BlockOutcome(Status.OK, check=first.check, extra=first.extra)
    own, others = record.trusted(BASE), record.trusted(HEAD)
    assert own is not None
    assert others == {**own, "fingerprint": first.extra["fingerprint"]}


def test_other_bits_are_checked() -> None:
    """Outputs with other bits than those trusted are compared with the reference, and found right or wrong."""
    first = bench().run(TRIAL, QUICK)
    assert first.check is not None
    assert bench().run(TRIAL, QUICK, trusted=Trusted("0" * 64, first.check)).status is Status.OK
    assert "digest" not in first.extra


def test_inputs_are_digested_only_for_another_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who trusts in the same tree is told of the outputs alone; who asks for fingerprint pays for them once."""
    told: list[set[str]] = []

    def digest(arrays: Mapping[str, Any]) -> str:
        told.append(set(arrays))
        return bits.digest(arrays)

    for module in (attempt, buffers):
        monkeypatch.setattr(module, "digest", digest)
    alone = bench().run(TRIAL, QUICK, with_digest=True)
    assert alone.check is not None
    assert (told, "fingerprint" in alone.extra) == ([{"y"}], False)
    told.clear()
    first = bench().run(TRIAL, QUICK, with_fingerprint=True)
    assert (told, first.extra["digest"]) == ([{"y"}, {"x"}], alone.extra["digest"])
    told.clear()
    known = Trusted(first.extra["digest"], alone.check, first.extra["fingerprint"])
    assert bench().run(TRIAL, QUICK, trusted=known, with_fingerprint=True).status is Status.OK
    assert told.count({"x"}) == 1


@pytest.mark.usefixtures("busy_process")
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


def test_rates_of_cheats_name_those_that_passed() -> None:
    """A cheat without a reason was not flagged: it lowers the share and is named in its family."""
    cheats = [
        CheatOutcome("lazy", "one", "late"),
        CheatOutcome("lazy", "two", ""),
        CheatOutcome("process", "three", "x"),
    ]
    found = cheat_rates(cheats, ["", "", "slow", ""])
    assert found["flagged_share"] == pytest.approx(2 / 3)
    assert found["flagged_low"] < 2 / 3 < found["flagged_high"]
    assert found["honest_flagged_share"] == pytest.approx(1 / 4)
    assert found["cases"][0] == {"family": "lazy", "kinds": 2, "flagged": 1, "not_flagged": "two"}
    assert found["cases"][1]["not_flagged"] == ""
