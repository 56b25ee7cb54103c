"""What a kernel leaves on a device, compared where it lies; and buffers that one kernel after the other works on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import Limits, timer_for
from opgauge.harness.result.result import Status, Trial
from opgauge.harness.worker.attempt import Attempt, KernelFailedError, WrongError
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel

CASES = Path(__file__).parent.parent.parent / "cases"


BACKENDS = pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@BACKENDS
@pytest.mark.parametrize("what", ["input", "output"])
def test_what_changes_later_is_found(backend: str, what: str) -> None:
    """After outputs were accepted, one changed bit of an input or of an output is as wrong as before."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    inputs = make_inputs(case)
    expected = expect(case, inputs)
    timer = timer_for(backend, 0)
    with timer.session("numpy"):
        attempt = Attempt(case, find_kernel("scale", "optimized", backend, case.dtype), inputs.values, timer)
        call = attempt.bind()
        accepted = attempt.check(attempt.call(call, 0), expected, "in the first call")
        assert attempt.check(attempt.call(call, 1), expected, "in the second call") is accepted
        returned = attempt.call(call, 1)
        changed = attempt.buffers.inputs["x"] if what == "input" else attempt.buffers.out["out"]
        changed.view("u4")[1] ^= 1 << 22
        with pytest.raises(WrongError, match="changed its input x" if what == "input" else "later"):
            attempt.check(returned, expected, "later")


LIMITS = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.0)


def run(bench: Bench, implementation: str, backend: str, name: str = "offset") -> Status:
    """How a case of scale ended."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == name)
    return bench.run(Trial(case, implementation, backend, "cpu" if backend == "cpu" else f"{backend}:0"), LIMITS).status


@BACKENDS
def test_implementations_of_a_case_share_their_buffers(backend: str) -> None:
    """Of what lies where, their ratio would tell otherwise; the next case has its own."""
    bench = Bench(lambda _: None)
    assert run(bench, "baseline", backend) is Status.OK
    (shared,) = bench.buffers.values()
    assert run(bench, "optimized", backend) is Status.OK
    assert list(bench.buffers.values()) == [shared]
    assert run(bench, "optimized", backend, "overflow") is Status.OK
    assert shared not in bench.buffers.values()


@BACKENDS
def test_what_a_kernel_that_raised_may_have_spoilt_harms_nobody(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it is put back; on a GPU nothing more is asked of what it worked on."""
    bench = Bench(lambda _: None)
    assert run(bench, "baseline", backend) is Status.OK
    (shared,) = bench.buffers.values()

    def spoil(attempt: Attempt) -> None:
        attempt.buffers.inputs["x"][...] = 0
        raise KernelFailedError(Status.ERROR, "it raised")

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "bind", spoil)
        assert run(bench, "optimized", backend) is Status.ERROR
    assert list(bench.buffers.values()) == ([shared] if backend == "cpu" else [])
    assert run(bench, "optimized", backend) is Status.OK


def test_a_kernel_may_change_its_arrays() -> None:
    """Shape, dtype and flags of the arrays that it gets are its own: others find theirs as they were."""
    case = next(one for one in load_cases([CASES / "scale.yaml"]) if one.name == "offset")
    kernel = find_kernel("scale", "optimized", "cpu", case.dtype)

    def bind(*, x: Any, out: dict[str, Any], **_: Any) -> Any:
        x.flags.writeable = False
        x.shape, out["out"].shape = (x.size, 1), (1, x.size)
        del out["out"]
        return lambda: None

    attempt = Attempt(case, replace(kernel, function=bind, prepare=True), make_inputs(case).values, timer_for("cpu", 0))
    attempt.bind()
    assert attempt.buffers.inputs["x"].flags.writeable
    assert attempt.buffers.inputs["x"].shape == attempt.buffers.out["out"].shape == case.resolved.inputs["x"].shape
