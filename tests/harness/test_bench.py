"""A bench: what it shares between trials, and whose failure is whose."""

from __future__ import annotations

from typing import Any

import pytest

import opgauge
from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits, timer_for
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.worker import bench as bench_module
from opgauge.harness.worker.bench import Bench
from opgauge.ops import find_op
from opgauge.ops._core import registry

QUICK = Limits(budget_s=0.01, min_samples=1, max_samples=1, warmup_s=0.0)


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
    assert [result.status for result in results] == [Status.OK] * 4
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
