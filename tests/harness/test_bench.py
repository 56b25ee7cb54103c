"""A bench: what it shares between trials, and whose failure is whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import opgauge
from opgauge.harness.case.case import Case
from opgauge.harness.gate.interleaved import ONE_CALL
from opgauge.harness.measure import Limits, timer_for
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.worker import bench as bench_module
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.trial_kernel import find_trial_kernel
from opgauge.ops import find_op
from opgauge.ops._core import registry

QUICK = Limits(budget_s=0.01, min_samples=1, max_samples=1, warmup_s=0.0)
HUGE = 1e30
"""Magnitude below that of garbage."""


def a_trial(length: int = 7, implementation: str = "baseline", device: str = "cpu") -> Trial:
    """A small p_norm."""
    case = Case("p_norm", "small", {"x": (5, length)}, "float32", find_op("p_norm").params())
    return Trial(case, implementation, device.partition(":")[0], device)


def run(*trials: Trial) -> tuple[list[Result], list[str]]:
    """Results of trials on one bench, and the phases that it went through."""
    phases: list[str] = []
    bench = Bench(phases.append)
    return [bench.run(trial, QUICK) for trial in trials], phases


def test_the_reference_is_computed_once_a_case() -> None:
    """Trials of one case in a row share inputs and reference; the next case has its own."""
    results, phases = run(a_trial(), a_trial(), a_trial(8), a_trial())
    assert [result.status for result in results] == [Status.OK] * 4, [result.reason for result in results]
    assert phases.count("reference") == 3


def test_the_first_block_says_where_buffers_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's timer is made for the block of the first trial."""
    made: list[tuple[Any, ...]] = []

    def noted(*given: Any) -> Any:
        made.append(given)
        return timer_for(*given)

    monkeypatch.setattr(bench_module, "timer_for", noted)
    bench = Bench(lambda phase: None)
    for number in (2, 3):
        assert bench.run(a_trial(), QUICK, block=number).block == number
    assert made == [("cpu", 0, 2)]


@pytest.mark.parametrize("hold", [False, True])
def test_no_kernel_knows_before_its_last_sample_whether_it_is_checked(
    hold: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could work in checked processes alone: until then all calls find inputs and outputs in the same state."""
    monkeypatch.setattr("opgauge.harness.measure.cpu.switches_of_process", lambda: 0)  # no sample is repeated
    found, seen, samples = find_trial_kernel(a_trial()), dict[bool, list[tuple[bool, bool]]](), dict[bool, int]()
    for checked in (False, True):
        calls = seen[checked] = list[tuple[bool, bool]]()
        values = make_inputs(a_trial().case).values

        def noting(*, x: Any, out: Any, calls: Any = calls, values: Any = values, **given: Any) -> None:
            calls.append((bool(np.abs(out["y"][-1]) < HUGE), bool((x == values["x"]).all())))
            found.kernel.function(x=x, out=out, **given)

        noted = found._replace(kernel=replace(found.kernel, function=noting))
        monkeypatch.setattr(bench_module, "find_trial_kernel", lambda *_, noted=noted, **__: noted)
        bench = Bench(lambda _: None)
        assert bench.run(a_trial(), ONE_CALL, hold=hold, extra_checks=checked, late_checks=True).status is Status.OK
        samples[checked] = len(calls) - (not hold)  # a last call follows where nothing is held
        if hold:
            assert bench.sample("baseline", ONE_CALL, is_last=True).status is Status.OK
    assert seen[False][: samples[False]] == seen[True][: samples[False]]
    assert len(seen[False]) < len(seen[True])
    assert not hold or samples[False] == samples[True]


def test_a_failing_reference_is_no_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the op's reference raises, the result is an error that says so."""

    def fail(*_: Any, **__: Any) -> None:
        msg = "no such thing"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr(bench_module, "expect", fail)
    ((result,), _) = run(a_trial())
    assert result.status is Status.ERROR
    assert result.reason == "the reference failed: ZeroDivisionError('no such thing')"
    assert result.extra["phase"] == "reference"


def test_a_reference_that_does_not_fit_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of memory before any kernel runs is a result too."""

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(bench_module, "expect", fail)
    ((result,), _) = run(a_trial())
    assert result.status is Status.OUT_OF_MEMORY
    assert "inputs and reference" in result.reason


def test_a_fault_of_the_harness_is_not_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the checker is raised, never blamed on a kernel."""

    def fail(*_: Any, **__: Any) -> None:
        raise LookupError

    monkeypatch.setattr("opgauge.harness.worker.attempt.check", fail)
    with pytest.raises(LookupError):
        run(a_trial())


def test_a_device_that_is_not_there_is_unsupported() -> None:
    """A trial on a CUDA device that this machine lacks is unsupported, with the reason."""
    ((result,), _) = run(a_trial(device="cuda:99"))
    assert result.status is Status.UNSUPPORTED
    assert "no device cuda:99 here" in result.reason


@pytest.mark.parametrize(("declared", "status"), [(False, Status.WRONG), (True, Status.OK)])
def test_a_kernel_that_reads_inputs_early_is_told_to_declare_it(
    monkeypatch: pytest.MonkeyPatch, declared: bool, status: Status
) -> None:
    """Inputs have other values while a kernel is prepared; the reason says what would make it right."""
    for name in ("_OPS", "_KERNELS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))

    def prepared(x: Any) -> Any:
        found = x.sum(-1)
        return lambda: found

    made = opgauge.op(name="early")(lambda x: x.sum(-1))
    made.implementation("prepared", device="cpu", prepare=True, captures_inputs=declared)(prepared)
    case = Case("early", "small", {"x": (5, 7)}, "float32", find_op("early").params())
    (result,), _ = run(Trial(case, "prepared", "cpu", "cpu"))
    assert (result.status, "declare captures_inputs=True" in result.reason) == (status, not declared)


def test_none_in_place_of_one_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation that returns arrays returns one for each output: the buffer that nobody filled is none."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    made = opgauge.op(name="half_empty", outputs=("low", "high"))(lambda x: (x.min(-1), x.max(-1)))
    made.implementation("forgets", device="cpu")(lambda x: (x.min(-1), None))
    case = Case("half_empty", "small", {"x": (5, 7)}, "float32", find_op("half_empty").params())
    (result,), _ = run(Trial(case, "forgets", "cpu", "cpu"))
    assert (result.status, "returned None for high" in result.reason) == (Status.WRONG, True)
