"""Gate runs made by hand, from verdicts that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opgauge.harness.gate.gate import GateOutcome, judge
from opgauge.harness.gate.record import BASE, HEAD, BlockOutcome, Job, JobRecord
from opgauge.harness.gate.run import Conditions, GateRun
from opgauge.harness.judge.verdict import Comparison, Kind, Reason, Subject, Verdict
from opgauge.harness.result.result import Calibration, Footprint, Measurement, Status
from opgauge.harness.run.tree import Tree


def compared(name: str, ratio: float, *, op: str = "sign", verdict: Verdict | None = None) -> Comparison:
    """A comparison that found `ratio`: slower above 1.1, else the same, unless it is told otherwise."""
    found = verdict or (Verdict.SLOWER if ratio > 1.1 else Verdict.SAME)
    reason = Reason.WITHIN if found is Verdict.SAME else Reason.BEYOND
    subject = Subject(op, name, "0123456789abcdef", "optimized", "cuda:0")
    interval = (ratio - 0.01, ratio + 0.01)
    return Comparison(
        subject, Kind.COMPARED, found, reason, pairs=10, ratio=ratio, interval=interval, detectable_change=0.02
    )


def a_run(found: Sequence[Comparison], *, notes: tuple[str, ...] = ()) -> GateRun:
    """A run that found these."""
    conditions = Conditions()
    return GateRun(
        base=Tree(Path("/base"), "a" * 40, "main"),
        head=Tree(Path("/head"), "b" * 40, "this tree"),
        found=tuple(found),
        outcome=_judged(found, conditions),
        records={one.subject: _record(one) for one in found},
        conditions=conditions,
        seconds=10.0,
        notes=notes,
    )


def _judged(found: Sequence[Comparison], conditions: Conditions) -> GateOutcome:
    return judge(found, conditions.policy, today=conditions.today)


def _record(found: Comparison) -> JobRecord:
    case = {"op": found.subject.op, "name": found.subject.case, "file": "/head/cases/sign.yaml", "line": 7}
    record = JobRecord(Job(found.subject, {"case": case}))
    for side, time_ns in ((BASE, 1000.0), (HEAD, 1000.0 * (found.ratio or 1.0))):
        for pair in range(4):
            footprint = Footprint(launches=2, kernels=("fill<float>", "sign_rows<float>"))
            measurement = Measurement((time_ns + pair,), "test", 1, clock_mhz=(1980.0,), footprint=footprint)
            outcome = BlockOutcome(Status.OK, measurement=measurement, ruler=Calibration(100.0, 100.0, 10.0))
            record.outcomes[side][pair] = replace(outcome, extra={"phases_s": {"measure": 0.2}})
    return record
