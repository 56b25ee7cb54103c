"""The processes of paired blocks: their order, and those that are started before their turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.errors import TimeIsUpError
from opgauge.harness.gate.gate import Schedule
from opgauge.harness.gate.interleaved import measure_pairs
from opgauge.harness.gate.pairs import BATCH, PairPlan, measure
from opgauge.harness.gate.policy import Policy
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import BASE, CHECKED_PAIRS, HEAD, BlockOutcome, Job, JobRecord
from opgauge.harness.gate.selection import Selection, plan
from opgauge.harness.gate.turns import Effort
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Check, Status, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.tree import Tree
from opgauge.harness.settings import ROOT
from opgauge.ops import find_op


class Machine:
    """Stands for worker processes; notes what becomes of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.open = 0

    def start(self, side: str, *, preload: Sequence[str] = ()) -> FakeExecutor:
        """A process that runs nothing."""
        self.log.append(f"start {side}" + " early" * bool(preload))
        self.open += 1
        return FakeExecutor(self, side)


class FakeExecutor:
    """A process of a Machine."""

    def __init__(self, machine: Machine, side: str) -> None:
        self.machine = machine
        self.side = side
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it, once."""
        self.machine.open -= not self.is_closed
        self.is_closed = True

    def ready(self) -> None:
        """Do nothing."""

    def run_plain(self, trial: Any, **_: Any) -> dict[str, Any]:
        """An outcome."""
        self.machine.log.append(f"run {self.side}")
        return {"trial": trial, "status": str(Status.OK)}


def measured(monkeypatch: pytest.MonkeyPatch, device: str, cpus: int) -> Machine:
    """Two pairs of one job, whose every pair is undecided."""
    machine = Machine()
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    tree = Tree(Path("/nowhere"), "", "a tree")
    with WorkerPool({BASE: tree, HEAD: tree}) as pool:
        monkeypatch.setattr(pool, "executor", machine.start)
        monkeypatch.setattr(
            pool, "look_ahead", lambda records, _sides, **_: machine.log.append(f"look at {len(records)}")
        )
        job = Job(Subject("sign", "rows", "0" * 16, "optimized", device), {"backend": "cuda"})
        plan = PairPlan(Schedule(start=2, most=2), method="blocks")
        measure(pool, [job], lambda _: (), plan)
    assert machine.open == 0
    return machine


@pytest.mark.parametrize(("cpus", "ahead"), [(4, 1), (8, 3), (64, 6)])
def test_the_next_processes_import_while_a_gpu_is_measured(
    monkeypatch: pytest.MonkeyPatch, cpus: int, ahead: int
) -> None:
    """Each process starts before its turn, on the right side, and none is left over; more of them with more CPUs."""
    log = measured(monkeypatch, "cuda:0", cpus).log
    sides = [word.removeprefix("run ") for word in log if word.startswith("run")]
    assert sides in (["base", "head", "head", "base"], ["head", "base", "base", "head"])
    expected = [f"start {side} early" for side in sides[:ahead]] + ["look at 1"]
    for place, side in enumerate(sides):
        expected += [f"start {then} early" for then in sides[place + ahead : place + ahead + 1]] + [f"run {side}"]
    assert log == expected


def test_processes_that_wait_for_other_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for the same blocks are kept; at the end none is left."""
    machine, tree = Machine(), Tree(Path("/nowhere"), "", "a tree")
    with WorkerPool({BASE: tree, HEAD: tree}) as pool:
        monkeypatch.setattr(pool, "executor", machine.start)
        pool.prepare((HEAD, BASE))
        pool.prepare((HEAD, HEAD, BASE))
        assert (len(machine.log), machine.open) == (4, 3)
        pool.take(BASE).close()
        assert machine.log[4:] == ["start base"]
        pool.take(HEAD).close()
        assert (len(machine.log), machine.open) == (5, 2)
    assert machine.open == 0


@pytest.mark.parametrize(("device", "cpus"), [("cpu", 16), ("cuda:0", 2)])
def test_nothing_else_runs_while_a_cpu_is_wanted(monkeypatch: pytest.MonkeyPatch, device: str, cpus: int) -> None:
    """On a CPU, or beside a GPU on a small host, a process starts when the one before has ended."""
    log = measured(monkeypatch, device, cpus).log
    starts, runs = log[::2], log[1::2]
    assert [word.removeprefix("start ") for word in starts] == [word.removeprefix("run ") for word in runs]
    assert sorted(runs) == ["run base"] * 2 + ["run head"] * 2


@pytest.mark.parametrize(("jobs", "forgotten"), [(1, 0), (2 * BATCH, 4)])
def test_inputs_of_a_single_batch_serve_further_pairs(
    monkeypatch: pytest.MonkeyPatch, jobs: int, forgotten: int
) -> None:
    """Those of several batches are removed after each, in both rounds."""
    machine, removed, rounds = Machine(), [], []
    tree = Tree(Path("/nowhere"), "", "a tree")
    subjects = [Subject("sign", f"c{number}", f"{number:016}", "optimized", "cpu") for number in range(jobs)]
    wanted = [Job(subject, {"backend": "cpu", "case": {"shapes": {}}}) for subject in subjects]

    def further(*_: object) -> dict[Subject, int]:
        rounds.append(1)
        return dict.fromkeys(subjects, 1) if len(rounds) == 1 else {}

    monkeypatch.setattr("opgauge.harness.gate.pairs.more_pairs", further)
    with WorkerPool({BASE: tree, HEAD: tree}) as pool:
        monkeypatch.setattr(pool, "executor", machine.start)
        monkeypatch.setattr(pool, "forget_inputs", lambda: removed.append(1))
        measure(pool, wanted, lambda _: (), PairPlan(Schedule(start=1, most=2), method="blocks"))
    assert len(removed) == forgotten


def test_half_a_pair_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the budget ends between the sides of a pair, the side that was measured is not all that there is."""
    machine, tree = Machine(), Tree(Path("/nowhere"), "", "a tree")
    subject = Subject("sign", "c", f"{0:016}", "optimized", "cpu")
    ended, answer = iter((False, False, False, True)), FakeExecutor.run_plain

    def run_plain(self: FakeExecutor, trial: Any, **_: Any) -> dict[str, Any]:
        if next(ended):
            raise TimeIsUpError
        return answer(self, trial)

    monkeypatch.setattr(FakeExecutor, "run_plain", run_plain)
    with WorkerPool({BASE: tree, HEAD: tree}) as pool:
        monkeypatch.setattr(pool, "executor", machine.start)
        job = Job(subject, {"backend": "cpu", "case": {"shapes": {}}})
        records = measure(pool, [job], lambda _: (), PairPlan(Schedule(start=2, most=2), method="blocks"))
    assert [sorted(pairs) for pairs in records[subject].outcomes.values()] == [[0], [0]]


def record_of(size: int, implementation: str) -> JobRecord:
    """No pairs yet of a case of `scale` on the CPU."""
    case = Case("scale", f"c{size}", {"x": (size,)}, "float32", find_op("scale").params())
    trial = Trial(case, implementation, "cpu", "cpu")
    return JobRecord(Job(Subject("scale", case.name, case.id, implementation, "cpu"), to_json(trial)))


def test_processes_of_pairs_import_numba_if_a_kernel_has() -> None:
    """Importing it takes longer than starting a process: those of pairs import it at once, or not at all."""
    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(ROOT, "", "this tree"))) as pool:
        pool.look_ahead([record_of(3, "baseline")])
        assert pool.imported == set()
        pool.look_ahead([record_of(3, "optimized")])
        assert pool.imported == {"numba"}


@pytest.mark.parametrize(("implementation", "needed"), [("torch", {"torch"}), ("optimized", set())])
def test_processes_import_torch_if_a_selected_kernel_takes_its_tensors(
    monkeypatch: pytest.MonkeyPatch, implementation: str, needed: set[str]
) -> None:
    """Its import takes seconds of each process: those that start ahead of their turn import it before."""
    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(ROOT, "", "this tree"))) as pool:
        plan(pool, Selection(ops=("sign",), implementations=(implementation,), devices=("cpu",)), Policy())
        assert pool.imported == needed
        started: list[Sequence[str]] = []
        monkeypatch.setattr(pool, "executor", lambda _, *, preload: started.append(preload))
        pool.prepare((HEAD,))
        assert set(started[0]) == {"cupy", *needed}
        pool._waiting.clear()


@pytest.mark.parametrize("imported", [set(), {"numba"}])
def test_processes_of_pairs_import_what_was_seen(monkeypatch: pytest.MonkeyPatch, imported: set[str]) -> None:
    """Both processes of a pair are started with the modules that kernels have imported before."""
    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(ROOT, "", "this tree"))) as pool:
        pool.imported = imported
        given: list[Sequence[str]] = []
        start = pool.executor

        def executor(side: str, *, preload: Sequence[str], environment: dict[str, str]) -> LocalExecutor:
            given.append(list(preload))
            return start(side, preload=preload, environment=environment)

        monkeypatch.setattr(pool, "executor", executor)
        measure_pairs(pool, [record_of(3, "baseline")], [0], Effort(0.0))
    assert given == [sorted(imported)] * 2


def test_calls_outside_the_samples_are_not_checked_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are checked in a pair, beside no other process; ahead of it each side has a sample of one call."""
    asked: list[tuple[bool, int | None]] = []

    def run_plain(self: LocalExecutor, trial: Any, *, extra_checks: bool, **_: Any) -> dict[str, Any]:
        asked.append((extra_checks, self.limits.calls))
        return {"trial": trial, "status": str(Status.TIMEOUT)}

    monkeypatch.setattr(LocalExecutor, "run_plain", run_plain)
    for sides in ((HEAD,), (BASE, HEAD)):
        with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(ROOT, "", "this tree"))) as pool:
            pool.look_ahead([record_of(3, "baseline")], sides)
    assert asked == [(False, 1)] * 3


@pytest.mark.parametrize(("start", "most"), [(1, 2), (2, 2), (3, 6)])
def test_the_checked_pair_is_one_of_the_first(monkeypatch: pytest.MonkeyPatch, start: int, most: int) -> None:
    """However few there are: later ones may not come."""
    drawn = set()
    monkeypatch.setattr("opgauge.harness.gate.pairs._measure_all", lambda *_: None)
    monkeypatch.setattr("opgauge.harness.gate.pairs._check_threads", lambda *_: None)
    job = Job(Subject("sign", "c", f"{0:016}", "optimized", "cpu"), {"backend": "cpu", "case": {"shapes": {}}})
    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(Path("/nowhere"), "", "a tree"))) as pool:
        for _ in range(200):
            (record,) = measure(pool, [job], lambda _: (), PairPlan(Schedule(start=start, most=most))).values()
            drawn.add(record.checked_pair)
    assert drawn == set(range(start))


def test_what_the_head_was_seen_to_leave_is_known_to_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel is called and checked once, on the head; from there on neither side needs a reference."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    records = [record_of(size, "baseline") for size in (3, 5, 7)]
    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(ROOT, "", "this tree"))) as pool:
        pool.look_ahead(records)
    for record in records:
        head, base = record.trusted(HEAD), record.trusted(BASE)
        assert head is not None
        assert head == base
        assert head["check"]["ok"]
        assert head["fingerprint"]
        assert record.attempts == 0


class AskedExecutor:
    """Notes which trials were to be checked outside the samples."""

    def __init__(self) -> None:
        self.checked: list[bool] = []

    def run_plain(self, trial: Any, *, extra_checks: bool, **_: Any) -> dict[str, Any]:
        """An outcome."""
        self.checked.append(extra_checks)
        return {"trial": trial, "status": str(Status.OK)}


def test_calls_outside_the_samples_are_checked_in_one_pair_by_chance() -> None:
    """Always where no checked outputs are known; else in one of the first pairs, and never beside the pairs."""
    tree = Tree(Path("/nowhere"), "", "a tree")
    job = Job(Subject("sign", "rows", "0" * 16, "optimized", "cpu"), {})
    valid = Check(ok=True, max_abs_error=0.0, max_rel_error=0.0, worst=0.0)
    known = BlockOutcome(Status.OK, check=valid, extra={"digest": "d", "fingerprint": "f"})
    drawn = set()
    with WorkerPool({BASE: tree, HEAD: tree}) as pool:
        for _ in range(200):
            executor: Any = AskedExecutor()
            record = JobRecord(job)
            pool.run(executor, HEAD, record, 7)
            record.seen[HEAD] = known
            for pair in (*range(8), None):
                pool.run(executor, HEAD, record, pair)
            first, *pairs, beside = executor.checked
            assert first
            assert not beside
            assert sum(pairs) == 1
            drawn.add(pairs.index(True))
    assert drawn == set(range(CHECKED_PAIRS))
