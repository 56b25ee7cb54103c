"""Compiling before measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.cli.compile import compile_all
from opgauge.harness.cli.options import open_progress
from opgauge.harness.result.record_json import from_json
from opgauge.harness.result.result import Check, Result, Status, Trial
from opgauge.harness.run import compiling
from opgauge.harness.run.compiling import Ahead, Waiting, compile_ahead, stopping
from opgauge.harness.run.execute import Ask, LocalExecutor, ask_nothing
from opgauge.harness.worker import protocol
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.kept import keep_values
from opgauge.ops import find_op

CASES = [Case("p_norm", f"c{size}", {"x": (2, size)}, "float32", find_op("p_norm").params()) for size in (3, 5, 7)]


def test_every_trial_is_called_once_by_one_of_the_workers() -> None:
    """Two workers share the cases; each trial is told of once; those that are right are counted, those missing not."""
    trials = [Trial(case, name, "cpu", "cpu") for case in CASES for name in ("baseline", "optimized")]
    trials.append(Trial(CASES[0], "nobody", "cpu", "cpu"))
    told: Counter[str] = Counter()
    ahead = compile_ahead(trials, 2, lambda trial: told.update([f"{trial.case.name} {trial.implementation}"]))
    assert ahead.right == 6
    assert [fault.trial.implementation for fault in ahead.faults] == ["nobody"]
    assert set(told.values()) == {1}
    assert len(told) == 7


def test_times_are_not_compared_where_others_use_the_device() -> None:
    """Beside other workers an honest kernel would take longer in one call than in another, and be called wrong."""
    ahead = compile_ahead([Trial(CASES[0], "optimized", "cpu", "cpu")], 1, lambda _: None)
    assert ahead.seconds["first call"] > 0
    assert not {protocol.SUCCESSION, protocol.IDLE, protocol.SINGLE_CALLS} & ahead.seconds.keys()


def test_a_trial_that_is_not_valid_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the summary, with its status and reason."""
    trials = [Trial(CASES[0], name, "cpu", "cpu") for name in ("baseline", "nobody")]
    compile_all(trials, 1, open_progress("plain", quiet=True)(2))
    told = capsys.readouterr().err
    assert "1 of 2 trials compiled and valid" in told
    assert "p_norm · c3, nobody: unsupported: " in told
    assert "c3, baseline" not in told


def test_references_have_as_much_longer_as_there_are_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them compute at once; a kernel has what it is given."""
    given: list[tuple[float, float | None]] = []

    class Noting(LocalExecutor):
        def __init__(self, *, timeout_s: float, reference_timeout_s: float, **more: Any) -> None:
            given.append((timeout_s, reference_timeout_s))
            super().__init__(timeout_s=timeout_s, reference_timeout_s=reference_timeout_s, **more)

    monkeypatch.setattr(compiling, "LocalExecutor", Noting)
    compile_ahead([Trial(CASES[0], "baseline", "cpu", "cpu")], 3, lambda _: None, timeout_s=50.0)
    assert given == [(50.0, 150.0)] * 3


@pytest.mark.parametrize(("workers", "each"), [(1, 16), (3, 5), (16, 1), (40, 1)])
def test_references_share_the_cpus(workers: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all workers compute at once has no more threads than there are CPUs, and each of them one at least."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    asked = Ahead(workers=workers).ask_first(Trial(CASES[0], "baseline", "cpu", "cpu"))
    assert asked["reference_threads"] == each


def test_each_worker_is_asked_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two workers on two CPUs a reference has one thread."""
    asked: list[Any] = []

    class Noting(LocalExecutor):
        def run(self, trials: Iterable[Trial], *, block: int = 0, ask: Ask = ask_nothing) -> Iterator[Result]:
            trials = list(trials)
            asked.extend(ask(trial)["reference_threads"] for trial in trials)
            return super().run(trials, block=block, ask=ask)

    monkeypatch.setattr(compiling, "LocalExecutor", Noting)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    compile_ahead([Trial(case, "baseline", "cpu", "cpu") for case in CASES], 2, lambda _: None)
    assert asked == [1, 1, 1]


def test_what_was_checked_ahead_is_trusted_and_nothing_else(tmp_path: Path) -> None:
    """Outputs with the bits that were checked pass without a reference; other outputs get one, and are found out."""
    trials = [Trial(case, "baseline", "cpu", "cpu") for case in CASES[:2]]
    ahead = compile_ahead(trials, 1, lambda _: None, kept=tmp_path)
    shifted = {name: value + 1 for name, value in make_inputs(CASES[1]).values.items()}
    keep_values(CASES[1], shifted, tmp_path)
    with LocalExecutor(limits=compiling.ONCE) as executor:
        plain, changed = executor.run(trials, ask=ahead.ask)
    assert plain.status is Status.OK
    assert "reference" in plain.extra["phases_s"]
    assert plain.check == from_json(Check, ahead.trusted[CASES[0].id, "baseline", "cpu"]["check"])
    assert changed.status is Status.WRONG


def test_kernels_that_are_trusted_stay_beside_one_that_is_not(tmp_path: Path) -> None:
    """One whose bits vary has no digest: its reference is computed while the others of its case are held."""
    trials = [Trial(CASES[0], name, "cpu", "cpu") for name in ("baseline", "optimized")]
    ahead = compile_ahead(trials, 1, lambda _: None, kept=tmp_path)
    del ahead.trusted[trials[1].key]
    with LocalExecutor(limits=replace(compiling.ONCE, turns=2)) as executor:
        found = list(executor.run(trials, ask=ahead.ask))
    assert [result.status for result in found] == [Status.OK, Status.OK], [result.reason for result in found]


def test_inputs_of_large_cases_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of up to so many bytes are written."""
    monkeypatch.setattr(compiling, "KEPT_BYTES", 2 * 5 * 4)
    ahead = compile_ahead([Trial(case, "baseline", "cpu", "cpu") for case in CASES], 1, lambda _: None, kept=tmp_path)
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {case.id for case in CASES[:2]}
    assert ahead.ask(Trial(CASES[2], "baseline", "cpu", "cpu"))["kept"] is None


@pytest.mark.parametrize(("room", "at_once"), [(10**9, ["c", "b", "a"]), (16, ["c", "a"]), (1, ["c"])])
def test_as_much_at_a_time_as_memory_has_room_for(
    room: int, at_once: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs most first, then what fits beside it; one at least, whatever it needs; room is given back."""
    monkeypatch.setattr(compiling, "free_memory_bytes", lambda: room)
    waiting = Waiting([(1, "a"), (5, "b"), (7, "c")])
    threads = [iter(waiting) for _ in at_once]
    assert [next(thread) for thread in threads] == at_once
    assert sorted(item for thread in threads for item in thread) == sorted({"a", "b", "c"} - set(at_once))
    assert list(waiting) == []


def test_a_thread_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is handed out when another thread has finished."""
    monkeypatch.setattr(compiling, "free_memory_bytes", lambda: 0)
    waiting = Waiting([(1, "a"), (5, "b")])
    first = iter(waiting)
    assert next(first) == "b"
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(lambda: list(waiting))
        with pytest.raises(TimeoutError):
            others.result(0.2)
        assert list(first) in ([], ["a"])
        assert others.result(10) in ([], ["a"])


def test_an_error_ends_the_trial_that_a_thread_waits_for_and_starts_no_other() -> None:
    """Ctrl-C while kernels are compiled or checked does not wait for one that hangs, nor for those that follow."""
    waiting = Waiting((0, number) for number in range(3))
    begun, interrupted = Event(), Event()
    executor = SimpleNamespace(interrupt=interrupted.set)

    def work() -> list[int]:
        done = []
        for number in waiting:
            begun.set()
            assert interrupted.wait(60)
            done.append(number)
        return done

    def interrupt_while_working() -> None:
        with ThreadPoolExecutor(1) as pool, stopping([waiting], [cast("Any", executor)]):
            taken.append(pool.submit(work))
            assert begun.wait(60)
            raise KeyboardInterrupt

    taken: list[Future[list[int]]] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt_while_working()
    assert len(taken[0].result()) == 1
