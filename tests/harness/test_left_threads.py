"""Threads that a kernel leaves behind are judged by their CPU time: those that wait may stay."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Result, Status
from opgauge.harness.result.summary import remarks
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.worker.left_threads import LeftThreads, others_wait_for_cpu
from tests.faulty.trial import trial

LIMITS = Limits(budget_s=0.02, min_samples=3, max_samples=6, warmup_s=0.0)
TURNS = Limits(budget_s=60.0, min_samples=3, max_samples=6, warmup_s=0.0, turns=3, scattered_samples=6)
ENOUGH_S = 0.05
"""CPU time that is work."""


def burn() -> None:
    """Use the processor for a while."""
    end = time.thread_time() + ENOUGH_S
    while time.thread_time() < end:
        pass


def run(
    *implementations: str,
    limits: Limits = LIMITS,
    module: str = "threads",
    environment: Mapping[str, str] | None = None,
) -> list[Result]:
    """Results of small trials."""
    preload = (f"tests.faulty.{module}",)
    with LocalExecutor(limits=limits, timeout_s=120, preload=preload, environment=environment) as executor:
        return list(executor.run([trial(name) for name in implementations]))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
def test_a_thread_that_could_run_is_seen() -> None:
    """One that waits for an event is at rest; one that works is not, whether it has a CPU or not."""
    go, stop = threading.Event(), threading.Event()

    def task() -> None:
        go.wait(60)
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=task)
    thread.start()
    try:
        assert seen_within(5.0, lambda: not others_wait_for_cpu())
        go.set()
        assert seen_within(5.0, others_wait_for_cpu)
    finally:
        go.set()
        stop.set()
        thread.join()


def seen_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.001)
    return False


@pytest.mark.parametrize("begin", [lambda task: threading.Thread(target=task).start(), _thread.start_new_thread])
def test_work_between_calls_counts(begin: Callable[..., object]) -> None:
    """Work in the first call or in later ones does not; work between them does, also of a thread without a name."""
    threads, steps = LeftThreads(), [threading.Event() for _ in range(6)]

    def task() -> None:
        for go, done in (steps[:2], steps[2:4], steps[4:]):
            go.wait(60)
            burn()
            done.set()
        stop.wait(60)

    stop = threading.Event()
    begin(*((task,) if begin is not _thread.start_new_thread else (task, ())))
    steps[0].set()
    steps[1].wait(60)
    threads.begin()
    assert threads.working() == ""
    assert len(threads.names()) == 1
    steps[2].set()
    steps[3].wait(60)
    assert threads.working() == ""
    threads.rest()
    steps[4].set()
    steps[5].wait(60)
    threads.resume()
    assert "1 thread working" in threads.working()
    assert threads.working(threads.snapshot()) == ""
    stop.set()


def test_a_thread_that_waits_is_told_and_no_fault() -> None:
    """As those that compilers leave behind: the result is ok, and the process goes on."""
    (result,) = run("compiles_in_a_thread")
    assert result.status is Status.OK, result.reason
    assert result.extra["waiting_threads"] == ["compiler_0"]
    assert "unfit" not in result.extra
    assert "left threads that wait (compiler_0)" in remarks(result.extra, result.measurement)


def test_a_pool_that_works_within_calls_is_no_fault() -> None:
    """It shares the work of each call, and rests between them; also where samples are interleaved."""
    for limits in (LIMITS, TURNS):
        for found in run("sound_a", "shares_its_work", "sound_b", limits=limits):
            assert found.status is Status.OK, found.reason


def test_a_trial_that_an_earlier_thread_disturbs_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new process, in which that thread does not exist."""
    names = ("compiles_in_a_thread", "wakes_every_thread")
    assert [result.extra.get("disturbed") for result in run(*names)] == [None, None]
    monkeypatch.setattr("opgauge.harness.run.execute.DOUBTS", 0)
    assert [result.extra.get("disturbed") for result in run(*names)] == [None, True]


def test_a_thread_that_works_in_later_turns_is_a_fault() -> None:
    """It may wait until the first samples are taken; the other implementation is valid."""
    late, sound = run("works_in_later_turns", "sound_a", limits=TURNS)
    assert late.status is Status.WRONG
    assert "working between its calls (later_0" in late.reason
    assert sound.status is Status.OK, sound.reason


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_torch_compile_is_no_fault(tmp_path: Path) -> None:
    """Inductor's threads wait, and so does the process that it starts for later compilations."""
    # an empty cache, so that threads compile; without trying which instructions the CPU has
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    (result,) = run("user_compiled", module="compiled", environment=variables)
    assert result.status is Status.OK, result.reason
    assert "InductorSubproc" in result.extra["waiting_threads"]
    assert any(name.startswith("ThreadPoolExecutor") for name in result.extra["waiting_threads"])
