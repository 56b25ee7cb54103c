"""Verdicts by example."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from opgauge.harness.judge.compare import compare, compare_run
from opgauge.harness.judge.verdict import (
    Kind,
    Metrics,
    Pair,
    Reason,
    Rule,
    Side,
    Verdict,
)
from opgauge.harness.result.result import Check, Status
from tests.harness.comparisons import WIGGLE, evidence, paired, said


def test_a_slowdown_of_five_percent_is_slower() -> None:
    """Ratio, interval and p say so, with the median of the ratios as the estimate."""
    found = compare(evidence(paired(1.05)))
    assert said(found) == (Verdict.SLOWER, Reason.BEYOND)
    assert found.ratio == pytest.approx(1.05 * math.exp(-0.00025))
    assert found.interval is not None
    assert 1.045 < found.interval[0] < 1.05 < found.interval[1] < 1.055
    assert found.p_slower is not None
    assert found.p_slower < 1e-6
    assert found.pairs == 10


def test_no_change_is_a_claim_of_its_own() -> None:
    """`same` needs the interval inside the threshold; four good pairs are enough for it."""
    assert said(compare(evidence(paired(1.0, 4)))) == (Verdict.SAME, Reason.WITHIN)


def test_an_alarm_needs_more_pairs_than_a_pass() -> None:
    """Four pairs that say 20 % slower are undecided, and say why."""
    assert said(compare(evidence(paired(1.2, 4)))) == (Verdict.UNDECIDED, Reason.UNCONFIRMED)
    assert said(compare(evidence(paired(1.2, 4)), Rule(alarm_pairs=4))) == (Verdict.SLOWER, Reason.BEYOND)


def test_a_change_between_the_thresholds_is_no_pass_while_suspect() -> None:
    """A likely change of 2 % is not called the same only because it is within 5 %."""
    wide = [(1.0, 1.02 * math.exp(6 * step)) for step in WIGGLE]
    assert said(compare(evidence(wide))) == (Verdict.UNDECIDED, Reason.BORDERLINE)


def test_noise_is_undecided() -> None:
    """Pairs that scatter by 30 % decide nothing."""
    wild = [(100.0, 70.0), (100.0, 90.0), (100.0, 115.0), (100.0, 130.0)]
    assert said(compare(evidence(wild))) == (Verdict.UNDECIDED, Reason.TOO_WIDE)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_pairs_decide_nothing(count: int) -> None:
    """Below four pairs there is at most a ratio."""
    found = compare(evidence(paired(2.0, count)))
    assert said(found) == (Verdict.UNDECIDED, Reason.TOO_FEW)
    assert found.ratio is not None
    assert 1.9 < found.ratio < 2.1


def test_the_noise_floor_raises_the_threshold() -> None:
    """A series that moves by 8 % on its own cannot be 5 % slower."""
    assert compare(replace(evidence(paired(1.05)), noise_floor=0.08)).verdict is Verdict.UNDECIDED


def test_a_threshold_of_its_own_counts_both_ways() -> None:
    """3 % slower is no alarm at 5 %, and the same within 5 %."""
    assert compare(evidence(paired(1.03)), Rule(0.05, 0.05)).verdict is Verdict.SAME
    assert compare(evidence(paired(1.03)), Rule(0.02, 0.02)).verdict is Verdict.SLOWER


@pytest.mark.parametrize("pairs", [(), ((0.0, 0.0),) * 10, ((100.0, 0.0),) * 10, ((math.nan, 1.0),) * 4])
def test_measuring_nothing_is_no_pass(pairs: tuple[Pair, ...]) -> None:
    """No pairs, times of zero and NaN are "unmeasured", and have no verdict."""
    found = compare(evidence(pairs))
    assert (found.kind, found.verdict, found.reason) == (Kind.UNMEASURED, None, Reason.NO_DATA)
    assert not found.is_measured
    assert found.ratio is None


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.WRONG, Reason.WRONG),
        (Status.ERROR, Reason.ERROR),
        (Status.TIMEOUT, Reason.TIMEOUT),
        (Status.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
        (Status.UNSUPPORTED, Reason.GONE),
    ],
)
def test_a_head_that_fails_is_broken_however_fast(status: Status, reason: Reason) -> None:
    """What is wrong, crashed, late, too large or gone is broken."""
    found = compare(evidence(paired(0.5), head=Side(status, reason="why")))
    assert said(found) == (Verdict.BROKEN, reason)
    assert found.detail == "why"


def test_a_head_that_fails_as_the_base_does_is_broken() -> None:
    """It passes no gate, and the reason says that the change need not be the cause."""
    found = compare(evidence(base=Side(Status.ERROR), head=Side(Status.WRONG, reason="why")))
    assert (found.verdict, found.detail) == (Verdict.BROKEN, "the base fails too; why")


def test_a_failed_check_is_broken() -> None:
    """A check that is not ok counts, whatever the status says."""
    failed = Check(ok=False, max_abs_error=1.0, max_rel_error=1.0, worst=9.0, reason="zeros")
    assert said(compare(evidence(paired(1.0), head=Side(check=failed)))) == (Verdict.BROKEN, Reason.WRONG)


def test_faster_than_the_device_allows_is_broken() -> None:
    """3530 GB/s on a device that copies 864 GB/s is a fault of measuring; so is a time below the floor."""
    swift = Side(ceiling_share=3530 / 864)
    assert said(compare(evidence(paired(0.2), head=swift))) == (Verdict.BROKEN, Reason.IMPLAUSIBLE)
    below = replace(evidence(paired(0.2)), floor_ns=40_000.0)
    assert said(compare(below)) == (Verdict.BROKEN, Reason.IMPLAUSIBLE)
    assert compare(replace(below, floor_ns=12_000.0)).verdict is Verdict.FASTER


@pytest.mark.parametrize(
    ("base", "head", "kind"),
    [
        (None, Side(), Kind.NEW),
        (Side(Status.UNSUPPORTED), Side(), Kind.NEW),
        (Side(), None, Kind.REMOVED),
        (Side(Status.WRONG), Side(), Kind.FIXED),
        (Side(Status.UNSUPPORTED), Side(Status.UNSUPPORTED), Kind.UNSUPPORTED),
        (None, None, Kind.UNMEASURED),
    ],
)
def test_one_side_alone_has_a_kind_and_no_verdict(base: Side | None, head: Side | None, kind: Kind) -> None:
    """New, removed and repaired cases are told as such."""
    found = compare(evidence(base=base, head=head))
    assert (found.kind, found.verdict) == (kind, None)


def test_a_new_case_that_fails_is_broken() -> None:
    """Having no base excuses nothing."""
    assert compare(evidence(base=None, head=Side(Status.WRONG))).verdict is Verdict.BROKEN


def test_one_launch_becoming_two_is_caught_in_one_run() -> None:
    """Metrics without noise need no pairs, and are told."""
    base, head = Side(metrics=Metrics(launches=1)), Side(metrics=Metrics(launches=2))
    for pairs in ((), paired(1.0, 1), paired(1.0, 4), paired(1.0)):
        found = compare(evidence(pairs, base=base, head=head))
        assert said(found) == (Verdict.SLOWER, Reason.LAUNCHES)
        assert [(one.metric, one.before, one.after) for one in found.changes] == [("launches", 1, 2)]
    assert compare(evidence(paired(0.5), base=base, head=head)).verdict is Verdict.FASTER
    assert compare(evidence(paired(1.0), base=head, head=base)).verdict is Verdict.SAME


def test_kernel_names_and_registers_are_told_and_gated_on_request() -> None:
    """Another kernel at the same speed is news; it fails only where the rule asks."""
    base = Side(metrics=Metrics(kernels=("f",), registers=32, spills=0))
    head = Side(metrics=Metrics(kernels=("g",), registers=40, spills=0))
    found = compare(evidence(paired(1.0), base=base, head=head))
    assert found.verdict is Verdict.SAME
    assert [one.metric for one in found.changes] == ["kernels", "registers"]
    strict = compare(evidence(paired(1.0), base=base, head=head), Rule(exact=("registers",)))
    assert said(strict) == (Verdict.SLOWER, Reason.REGISTERS)
    unknown = Side(metrics=Metrics())
    assert compare(evidence(paired(1.0), base=unknown, head=head)).changes == ()


def test_two_modes_are_the_reason_and_are_named() -> None:
    """A side that takes 22.5 or 25.5 ms by process is undecided for that."""
    head = (22.5, 25.5, 22.5, 25.5, 25.5, 22.5, 22.5, 25.5, 22.5, 25.5)
    found = compare(evidence([(22.5, time) for time in head]))
    assert said(found) == (Verdict.UNDECIDED, Reason.BIMODAL)
    assert found.head_modes_ns == (22.5, 25.5)
    assert found.base_modes_ns == (22.5,)
    assert found.is_bimodal


def test_a_calibration_that_moved_takes_back_the_alarm() -> None:
    """Where the fixed kernels are 5 % slower too, the host changed, not the case."""
    found = compare(replace(evidence(paired(1.05)), calibration=paired(1.05)))
    assert said(found) == (Verdict.UNDECIDED, Reason.HOST_MOVED)
    assert found.host_moved
    assert compare(replace(evidence(paired(1.05)), calibration=paired(1.0))).verdict is Verdict.SLOWER


def test_a_calibration_that_moved_a_little_does_not_excuse_much() -> None:
    """A host that is 5 % slower, or faster, does not make a case 2 times slower or faster: the verdict stands."""
    for ratio, verdict in ((2.0, Verdict.SLOWER), (0.5, Verdict.FASTER)):
        for shift in (1.05, 0.95):
            found = compare(replace(evidence(paired(ratio)), calibration=paired(shift)))
            assert said(found) == (verdict, Reason.BEYOND)
            assert found.host_moved
        assert compare(replace(evidence(paired(ratio)), calibration=paired(1.3))).reason is Reason.HOST_MOVED


def test_the_detectable_change_shrinks_with_pairs() -> None:
    """With a noise of 0.2 % ten pairs see a slowdown between 1 and 2 %; six pairs see less well."""
    few, many = compare(evidence(paired(1.0, 6))), compare(evidence(paired(1.0)))
    assert few.detectable_change is not None
    assert many.detectable_change is not None
    assert 0.01 < many.detectable_change < 0.02
    assert few.detectable_change > many.detectable_change


def test_order_and_number_of_cases_stay() -> None:
    """A comparison per case, in order, whatever their kinds and numbers of pairs."""
    many = [
        evidence(paired(1.0, 4), name="a"),
        evidence(name="b"),
        evidence(paired(1.3), name="c"),
        evidence(paired(1.0, 6), name="d"),
    ]
    assert [one.subject.case for one in compare_run(many)] == ["a", "b", "c", "d"]
    assert compare_run([]) == ()
    with pytest.raises(ValueError, match="shorter"):
        compare_run(many, [Rule()])


# --- by simulation of whole runs
