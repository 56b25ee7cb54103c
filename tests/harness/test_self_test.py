"""Self-tests of the gate: what they count, and what they leave out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.harness.gate.clock import Clock
from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.judge.verdict import Comparison, Kind, Reason, Subject, Verdict
from opgauge.harness.trust.self_test import always_broken, caught, false_alarms

BROKEN, SLOWER, SAME = Verdict.BROKEN, Verdict.SLOWER, Verdict.SAME


def gate_run(**verdicts: Verdict) -> Any:
    """A run of the gate with a verdict on each kernel."""
    subjects = {name: Subject("op", "case", "id", name, "cpu") for name in verdicts}
    found = [Comparison(subjects[name], Kind.COMPARED, one, Reason.ERROR, ratio=1.0) for name, one in verdicts.items()]
    words = set(verdicts.values())
    code = ExitCode.BROKEN if BROKEN in words else ExitCode.SLOWER if SLOWER in words else ExitCode.PASSED
    records = {one: SimpleNamespace(sampling_s=1.0) for one in subjects.values()}
    outcome, conditions = SimpleNamespace(code=code), SimpleNamespace(among=1)
    return SimpleNamespace(
        found=found, outcome=outcome, seconds=1.0, clock=Clock(), records=records, conditions=conditions
    )


@pytest.mark.parametrize(
    ("runs", "broken", "red"),
    [
        ([{"bad": BROKEN, "good": SAME}] * 2, ["bad"], 0),
        ([{"bad": BROKEN, "good": SLOWER}, {"bad": BROKEN, "good": SAME}], ["bad"], 1),
        ([{"bad": BROKEN, "good": SAME}, {"bad": SAME, "good": SAME}], [], 1),
    ],
)
def test_a_kernel_that_is_always_broken_is_no_false_alarm(
    runs: list[dict[str, Verdict]], broken: list[str], red: int
) -> None:
    """It is left out of all figures; one that was broken once is an alarm."""
    done = [gate_run(**verdicts) for verdicts in runs]
    assert [one.implementation for one in always_broken(done)] == broken
    data = false_alarms(done)
    assert (data["red"], data["decisions"]) == (red, 4 - 2 * len(broken))


def test_a_kernel_that_is_always_broken_is_no_missed_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detected share is of kernels that run."""
    monkeypatch.setattr("opgauge.harness.trust.self_test.median_of", lambda *_: 2e4)
    data = caught([gate_run(bad=BROKEN, good=SLOWER)], 0.05)
    assert (data["decisions"], data["caught_share"]) == (1, 1.0)
    assert not caught([gate_run(bad=BROKEN)], 0.05)["decisions"]
