"""Implementations of a case take their samples in turns, on a CPU that others use too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.measure import Limits
from harness.result.result import Measurement, Result, Status
from harness.run.execute import LocalExecutor
from harness.run.turns import HELD_BYTES, WARM_AGAIN_S, joined, next_turn, takes_turns
from tests.faulty.trial import trial

LIMITS = Limits(budget_s=60.0, min_samples=3, max_samples=6, warmup_s=0.0, turns=3)
"""Three turns of two samples, however long a sample takes."""


def run(*implementations: str) -> list[Result]:
    """Results of small trials in turns."""
    with LocalExecutor(limits=LIMITS, timeout_s=60, preload=("tests.faulty.kernels",)) as executor:
        return list(executor.run([trial(name) for name in implementations]))


def samples(result: Result) -> int:
    """How many there are."""
    return len(result.measurement.samples_ns) if result.measurement else 0


def test_turns_go_there_and_back_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is called twice and measured; then the last first, then the first first; every sample is kept."""
    monkeypatch.setenv("FAULTY_FOLDER", str(tmp_path))
    results = run("diary_a", "diary_b")
    assert [(result.status, samples(result)) for result in results] == [(Status.OK, 6)] * 2
    assert (tmp_path / "diary").read_text() == "aaabbbbaab"
    assert [len(result.measurement.cpu_ns) for result in results if result.measurement] == [6, 6]
    assert all(result.check and result.check.ok for result in results)


def test_one_alone_takes_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sampled in one go, with nothing asked of the worker in between."""
    monkeypatch.delattr(LocalExecutor, "_run_more")
    (result,) = run("baseline")
    assert (result.status, samples(result)) == (Status.OK, 6)


def test_what_goes_wrong_in_a_later_turn_is_wrong() -> None:
    """It loses its samples, and the others go on."""
    before, wrong, after = run("baseline", "wrong_in_a_later_turn", "optimized")
    assert (wrong.status, wrong.measurement) == (Status.WRONG, None)
    assert "after measuring" in wrong.reason
    assert [(one.status, samples(one)) for one in (before, after)] == [(Status.OK, 6)] * 2


def test_a_death_in_a_later_turn_costs_the_others_no_sample() -> None:
    """What they have by then is theirs; the dead one says in which phase it died."""
    before, dead, after = run("baseline", "die_in_a_later_turn", "optimized")
    assert dead.status is Status.ERROR
    assert dead.reason.endswith("(measure)")
    assert [(one.status, samples(one)) for one in (before, after)] == [(Status.OK, 2), (Status.OK, 4)]


@pytest.mark.parametrize(
    ("length", "device", "turns", "expected"),
    [(7, "cpu", 3, True), (7, "cpu", 1, False), (7, "cuda:0", 3, False), (HELD_BYTES // 20, "cpu", 3, False)],
)
def test_who_takes_turns(length: int, device: str, turns: int, expected: bool) -> None:
    """On the CPU, where turns are asked for, unless all buffers side by side would take too much memory."""
    assert takes_turns(trial("baseline", length=length).case, device, replace(LIMITS, turns=turns)) is expected


def measured(count: int, sample_ns: float, calls: int = 1) -> Result:
    """A result of `count` samples."""
    return Result(trial("baseline"), Status.OK, measurement=Measurement((sample_ns,) * count, "t", 1, calls))


def test_a_turn_takes_its_share() -> None:
    """A third of the budget and of the samples, with calls as before, warmed up again where a sample is short."""
    limits = Limits(budget_s=0.6, min_samples=5, max_samples=60, warmup_s=0.05, turns=3)
    turn = next_turn(measured(20, 1000.0, 100), limits)
    assert turn == replace(limits, budget_s=0.6 / 3, min_samples=2, max_samples=20, warmup_s=WARM_AGAIN_S, calls=100)
    slow = next_turn(measured(2, 1e8), limits)
    assert slow is not None
    assert slow.warmup_s == 0
    assert next_turn(measured(60, 1000.0), limits) is None
    assert next_turn(measured(1, 6.1e9), limits) is None
    assert next_turn(Result(trial("baseline"), Status.WRONG), limits) is None


def test_joined_results_keep_what_was_found_first() -> None:
    """Samples and seconds add up; a fault replaces them."""
    first = replace(measured(2, 1.0), extra={"phases_s": {"prepare": 1.0, "measure": 0.5}})
    second = replace(measured(3, 2.0), extra={"phases_s": {"measure": 0.25}, "repeatable": False})
    both = joined(first, second)
    assert both.measurement is not None
    assert both.measurement.samples_ns == (1.0, 1.0, 2.0, 2.0, 2.0)
    assert both.measurement.warmup == 2
    assert both.extra == {"phases_s": {"prepare": 1.0, "measure": 0.75}, "repeatable": False}
    lost = joined(first, Result(first.trial, Status.TIMEOUT, reason="no answer"))
    assert (lost.status, lost.reason, lost.measurement) == (Status.TIMEOUT, "no answer", None)
