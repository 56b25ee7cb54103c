"""Planning trials, and running them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.run.execute import Ask, LocalExecutor, ask_nothing
from opgauge.harness.run.runner import plan, run
from opgauge.harness.worker import protocol
from opgauge.harness.worker.inventory import take
from opgauge.ops import BackendError, find_kernel, find_op, kernels
from opgauge.ops._core import registry

QUICK = Limits(budget_s=0.01, min_samples=2, max_samples=3, warmup_s=0.0)


def a_case(name: str = "small", dtype: str = "float32", length: int = 7) -> Case:
    """A small p_norm."""
    return Case("p_norm", name, {"x": (5, length)}, dtype, find_op("p_norm").params())


class Recorder:
    """An executor that only notes what it was asked to do."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def run(self, trials: Iterable[Trial], *, block: int = 0, ask: Ask = ask_nothing) -> Iterator[Result]:
        """Note each trial."""
        for trial in trials:
            self.events.append(f"run {trial.implementation}")
            yield Result(trial, Status.OK, block=block)

    def ceilings(self, device: str) -> Ceilings:
        """None are known."""
        return Ceilings(device)


def test_every_registered_implementation_is_planned() -> None:
    """A plan holds what the registry has for op, backend and dtype, the baseline first."""
    names = [trial.implementation for trial in plan([a_case()])]
    registered = {item.key.implementation for item in kernels(op="p_norm", backend="cpu", dtype="float32")}
    assert set(names) == registered
    assert len(names) == len(registered)
    assert names[0] == "baseline"


def test_experimental_kernels_run_only_where_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not yet proven on its device is no part of a plan, nor of what the gate compares, unless it is named."""
    proven = find_kernel("p_norm", "optimized", "cpu", "float32")
    unproven = replace(proven, key=proven.key._replace(implementation="unproven"), experimental=True)
    monkeypatch.setitem(registry._KERNELS, unproven.key, unproven)
    assert "unproven" not in [trial.implementation for trial in plan([a_case()])]
    assert [trial.implementation for trial in plan([a_case()], implementations=["unproven"])] == ["unproven"]
    assert "unproven" not in [item["implementation"] for item in take([])["kernels"]]


def test_implementations_of_a_case_follow_each_other() -> None:
    """Trials come case by case, so that a reference is computed once."""
    cases = [a_case("a"), a_case("b", length=8)]
    ids = [trial.case.id for trial in plan(cases, devices=["cpu", "cuda:1"])]
    assert [first for first, second in zip(ids, [*ids[1:], None], strict=True) if first != second] == [
        case.id for case in cases
    ] * 2


def test_a_plan_can_be_narrowed() -> None:
    """Only the implementations named are planned; one that nobody registered plans nothing."""
    assert [trial.implementation for trial in plan([a_case()], implementations=["baseline"])] == ["baseline"]
    assert plan([a_case()], implementations=["nobody"]) == []


def test_what_is_finished_is_not_planned_again() -> None:
    """Resuming skips a case's implementation on one device only."""
    done = {(a_case().id, "baseline", "cuda:0")}
    planned = plan([a_case()], implementations=["baseline"], devices=["cpu", "cuda"], finished=done)
    assert [(trial.implementation, trial.device) for trial in planned] == [("baseline", "cpu")]


def test_devices_are_spelt_out() -> None:
    """`cuda` is `cuda:0`; what is no device raises."""
    (trial,) = plan([a_case()], implementations=["baseline"], devices=["cuda"])
    assert (trial.backend, trial.device) == ("cuda", "cuda:0")
    with pytest.raises(BackendError, match="tpu"):
        plan([a_case()], devices=["tpu"])


def test_a_fallback_is_planned_only_when_asked_for() -> None:
    """An implementation that only the CPU has is planned for CUDA with the flag alone."""
    only_cpu = [
        item.key
        for item in kernels(backend="cpu")
        if item.key._replace(backend="cuda") not in {other.key for other in kernels(backend="cuda")}
    ]
    for key in only_cpu[:1]:
        case = Case(key.op, "x", {"x": (4, 4)}, key.dtype, find_op(key.op).params())
        chosen: dict[str, Any] = {"implementations": [key.implementation], "devices": ["cuda"]}
        assert plan([case], **chosen) == []
        assert len(plan([case], cpu_fallback=True, **chosen)) == 1


def test_a_result_is_taken_before_the_next_trial_begins() -> None:
    """Whatever kills the program, results handed out so far are the caller's."""
    recorder = Recorder()
    trials = [Trial(a_case(), name, "cpu", "cpu") for name in ("a", "b")]
    for result in run(trials, recorder, block=3):
        recorder.events.append(f"keep {result.trial.implementation}")
        assert result.block == 3
    assert recorder.events == ["run a", "keep a", "run b", "keep b"]


def test_a_fallback_is_said_in_the_result() -> None:
    """The CPU's kernel stands in where a device has none, and the result says so; without the flag it does not."""
    case = a_case()
    trial = Trial(case, "only_here", "cuda", "cuda:0")
    with LocalExecutor(limits=QUICK, preload=["tests.faulty.lonely"], cpu_fallback=True) as executor:
        (stood_in,) = executor.run([trial])
    with LocalExecutor(limits=QUICK, preload=["tests.faulty.lonely"]) as executor:
        (refused,) = executor.run([trial])
    assert (stood_in.status, stood_in.fell_back) == (Status.OK, True)
    assert (refused.status, refused.fell_back) == (Status.UNSUPPORTED, False)


def test_a_run_measures_checks_and_says_how() -> None:
    """A result has samples, a check, the op's least work, CPU time, threads and seconds by phase."""
    with LocalExecutor(limits=QUICK, preload=()) as executor:
        (result,) = run(plan([a_case()], implementations=["baseline"]), executor)
    assert result.status is Status.OK
    assert result.check is not None
    assert result.check.ok
    assert result.measurement is not None
    assert 2 <= len(result.measurement.samples_ns) <= 3
    assert len(result.measurement.cpu_ns) == len(result.measurement.samples_ns)
    assert result.measurement.threads
    assert result.measurement.timer == "cpu-wall/1"
    assert (result.bytes, result.flops) == (4 * (35 + 5), 70)
    assert {"reference", "first call", "call on read-only inputs", "measure"} <= result.extra["phases_s"].keys()


def test_a_transposed_input_needs_a_strided_kernel() -> None:
    """A kernel that takes contiguous inputs only is unsupported for a case in another layout."""
    from opgauge.harness.case.case import InputSpec

    case = Case(
        "p_norm", "t", {"x": (5, 7)}, "float32", find_op("p_norm").params(), {"x": InputSpec(layout="transposed")}
    )
    with LocalExecutor(limits=QUICK, preload=["tests.faulty.lonely"]) as executor:
        (result,) = executor.run([Trial(case, "only_here", "cpu", "cpu")])
    assert result.status is Status.UNSUPPORTED
    assert "contiguous inputs only" in result.reason


def test_ceilings_are_measured_in_the_worker() -> None:
    """The CPU's ceilings come back as positive numbers, from the process that runs trials."""
    with LocalExecutor(limits=QUICK, preload=["tests.faulty.brief"]) as executor:
        found = executor.ceilings("cpu")
    assert (found.device, found.sizes[-1]) == ("cpu", 1 << 18)
    assert found.copy_gbps is not None
    assert found.copy_gbps > 0
    assert found.write_gbps is not None
    assert found.matrix_gflops["float32"] > 0
    assert found.launch_ns is not None


@pytest.mark.parametrize(("wrong", "attempts", "status"), [(1, 2, "ok"), (2, 3, "ok"), (3, 3, "wrong")])
def test_times_alone_call_a_trial_wrong_only_in_every_repeat(wrong: int, attempts: int, status: str) -> None:
    """A trial is repeated where times alone were suspicious; a difference of values counts at once."""
    by_time: dict[str, Any] = {"status": "wrong", "check": None, "extra": {"phase": "single calls"}}
    replies: list[dict[str, Any]] = [by_time] * wrong + [{"status": "ok", "extra": {}}]
    asked: list[dict[str, Any]] = []

    class Scripted(LocalExecutor):
        def __init__(self) -> None:
            self.limits, self.cpu_fallback = Limits(), False

        def _measured(self, request: protocol.RunTrial) -> dict[str, Any]:
            asked.append(dict(request.trial))
            return replies[len(asked) - 1]

    assert Scripted().run_plain({"backend": "cpu"})["status"] == status
    assert len(asked) == attempts
    asked.clear()
    replies[0] = {**by_time, "check": {"ok": False}}
    assert Scripted().run_plain({"backend": "cpu"})["status"] == "wrong"
    assert len(asked) == 1
