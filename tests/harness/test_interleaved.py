"""Interleaved pairs: what their two processes are asked, and where their time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import TracebackType
from typing import Any, Self

import pytest

from opgauge.harness.gate import clock, pairs
from opgauge.harness.gate import run as gate_run
from opgauge.harness.gate.clock import BETWEEN_PHASES, STARTING, Clock
from opgauge.harness.gate.interleaved import (
    ALL_THREADS,
    COARSE_ROUNDS,
    FIRST,
    ONE_CALL,
    measure_coarse,
    measure_pairs,
    pairs_at_once,
)
from opgauge.harness.gate.plan import GatePlan
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import BASE, HEAD, MEASURING, SIDES, Job, JobRecord
from opgauge.harness.gate.run import Conditions
from opgauge.harness.gate.selection import Selection
from opgauge.harness.gate.turns import Effort
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.measure import Limits
from opgauge.harness.run.tree import Tree
from opgauge.ops._cpu.load import LEAST_FREE
from tests.tinytree import TinyTree

START_S, HOLD_S, SAMPLE_S, LAST_S, END_S, AROUND_S = 16.0, 2.0, 0.25, 4.0, 8.0, 0.5
"""Seconds that the parts of a pair take: binary fractions, which add up exactly."""


class Now:
    """A clock that moves when a process is asked something."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The present time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class TimedExecutor:
    """A process whose answers take known times.

    asked: limits of the trials that it was asked to hold. sampled_at: when its samples began.
    """

    def __init__(self, now: Now, environment: Mapping[str, str] | None = None) -> None:
        self._now = now
        self.environment = environment or {}
        self.limits = Limits()
        self.asked: list[Limits] = []
        self.sampled_at: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ready(self) -> None:
        """Start."""
        self._now.now += START_S

    def close(self) -> None:
        """End, once."""
        self._now.now += END_S
        self.close = lambda: None  # type: ignore[method-assign]

    def pin(self, cpus: object) -> None:
        """Do nothing."""

    def cpu_s(self) -> float:
        """No CPU time."""
        return 0.0

    def run_plain(self, trial: Any, **_: Any) -> dict[str, Any]:
        """A held trial."""
        self.asked.append(self.limits)
        self._now.now += HOLD_S + AROUND_S
        return _result({"first call": HOLD_S})

    def sample(self, trial: Any, limits: Limits, *, is_last: bool = False) -> dict[str, Any]:
        """A sample; the last one is followed by checks."""
        self.sampled_at.append(self._now.now)
        self._now.now += SAMPLE_S + is_last * LAST_S
        return _result({MEASURING: SAMPLE_S} | ({"check after measuring": LAST_S} if is_last else {}))


def _result(phases_s: Mapping[str, float]) -> dict[str, Any]:
    measurement = {"samples_ns": [1e6], "timer": "t", "warmup": 0, "calls_per_sample": 4, "cpu_ns": [1e6]}
    return {"status": "ok", "measurement": measurement, "extra": {"phases_s": phases_s}}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WorkerPool, list[TimedExecutor]]]:
    """A pool of such processes, and those that it has started."""
    now, started = Now(), list[TimedExecutor]()
    for module in ("clock", "interleaved", "turns", "cpus"):
        monkeypatch.setattr(f"opgauge.harness.gate.{module}.monotonic", now)
    monkeypatch.setattr("opgauge.harness.gate.interleaved.sleep", now.sleep)

    def start(side: str, *, environment: Mapping[str, str] | None = None, **_: Any) -> TimedExecutor:
        del side
        started.append(TimedExecutor(now, environment))
        return started[-1]

    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(Path("/nowhere"), "", "a tree"))) as pool:
        monkeypatch.setattr(pool, "executor", start)
        yield pool, started


def a_record() -> JobRecord:
    """A job without pairs."""
    return JobRecord(Job(Subject("sign", "c", "0" * 16, "optimized", "cpu"), {"case": {"shapes": {}}}))


def test_all_of_a_pair_s_time_has_a_name(timed: tuple[WorkerPool, list[TimedExecutor]]) -> None:
    """Also that of starting, of the samples and of the checks after the last one; the rest is between the phases."""
    pool, _ = timed
    record = a_record()
    measure_pairs(pool, [record], [0], Effort(0.0))
    samples = len(record.outcomes[HEAD][0].samples_ns)
    spent = pool.clock.spent_s(pool.clock.blocks_s)
    assert spent[STARTING] == 2 * (START_S + END_S)
    assert spent["first call"] == 2 * HOLD_S
    assert spent["check after measuring"] == 2 * LAST_S
    assert spent[MEASURING] == 2 * (samples + 1) * SAMPLE_S
    assert spent[BETWEEN_PHASES] == 2 * AROUND_S
    assert sum(spent.values()) == pool.clock.blocks_s
    assert record.sampling_s == (samples + 1) * SAMPLE_S


def test_a_run_with_all_threads_has_a_name_of_its_own(timed: tuple[WorkerPool, list[TimedExecutor]]) -> None:
    """It is neither sampling nor the start of processes."""
    pool, _ = timed
    measure_coarse(pool, [a_record()], Effort(0.0))
    spent = pool.clock.spent_s(pool.clock.blocks_s)
    assert spent[STARTING] == 2 * (START_S + END_S)
    assert spent[ALL_THREADS] == pool.clock.blocks_s - spent[STARTING]
    assert (spent[BETWEEN_PHASES], MEASURING in spent) == (0.0, False)


def test_processors_are_idle_between_samples_with_all_threads(timed: tuple[WorkerPool, list[TimedExecutor]]) -> None:
    """Else each side takes the other for a busy neighbour, beside which kernels use one thread (ops/_cpu/load.py)."""
    pool, started = timed
    measure_coarse(pool, [a_record()], Effort(0.0))
    begun = sorted(at for one in started for at in one.sampled_at[:-1])
    assert len(begun) == len(SIDES) * COARSE_ROUNDS
    for first, then in pairwise(begun):
        busy, span = 2 * SAMPLE_S, 2 * (then - first)
        # two processors: all but one sample of the other side is idle or one's own
        assert 2 * span - busy > LEAST_FREE * span


def test_a_duration_is_found_once(timed: tuple[WorkerPool, list[TimedExecutor]]) -> None:
    """Later pairs begin with one call, since they know how long it takes; those with all threads do not know it."""
    pool, started = timed
    record = a_record()
    for pair in range(2):
        measure_pairs(pool, [record], [pair], Effort(0.0))
    measure_coarse(pool, [record], Effort(0.0))
    assert [one.asked for one in started] == [[FIRST]] * 2 + [[ONE_CALL]] * 2 + [[FIRST]] * 2


def test_kernels_of_a_pair_allocate_in_huge_pages(timed: tuple[WorkerPool, list[TimedExecutor]]) -> None:
    """On both sides: small pages make equal processes differ."""
    pool, started = timed
    measure_pairs(pool, [a_record()], [0], Effort(0.0))
    assert len(started) == 2
    assert all("glibc.malloc.hugetlb=1" in one.environment["GLIBC_TUNABLES"] for one in started)


class MeetingExecutor(TimedExecutor):
    """A process that waits in trials and last samples for one of the other pair, and notes all that it is asked."""

    def __init__(self, barrier: Barrier, patience_s: float, log: list[tuple[str, int]]) -> None:
        super().__init__(Now())
        self._barrier, self._patience_s, self._log = barrier, patience_s, log

    def interrupt(self) -> None:
        """Do nothing."""

    def run_plain(self, trial: Any, **more: Any) -> dict[str, Any]:
        """A held trial."""
        self._barrier.wait(60.0)
        self._log.append(("hold", id(self)))
        return super().run_plain(trial, **more)

    def sample(self, trial: Any, limits: Limits, *, is_last: bool = False) -> dict[str, Any]:
        """A sample."""
        if is_last:
            self._barrier.wait(self._patience_s)
        self._log.append(("last" if is_last else "sample", id(self)))
        return super().sample(trial, limits, is_last=is_last)


def both_pairs(
    monkeypatch: pytest.MonkeyPatch, checked_pair: int, patience_s: float = 60.0
) -> tuple[JobRecord, list[tuple[str, int]]]:
    """A job's record after two pairs at once, and what the processes were asked, in order.

    patience_s: of a last sample that waits for the other pair's.
    """
    log: list[tuple[str, int]] = []
    barrier, record = Barrier(2), a_record()
    record.checked_pair = checked_pair
    with WorkerPool(dict.fromkeys((BASE, HEAD), Tree(Path("/nowhere"), "", "a tree"))) as pool:
        monkeypatch.setattr(pool, "executor", lambda *_, **__: MeetingExecutor(barrier, patience_s, log))
        measure_pairs(pool, [record], [4, 5], Effort(0.0))
    return record, log


def test_two_pairs_prepare_together_and_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials and checks of one pair run beside those of the other, and nothing beside samples of either."""
    record, log = both_pairs(monkeypatch, 0)
    words = [word for word, _ in log]
    samples = words.count("sample")
    assert words == ["hold"] * 4 + ["sample"] * samples + ["last"] * 4
    halves = (log[4 : 4 + samples // 2], log[-4 - samples // 2 : -4])
    first, second = ({process for _, process in part} for part in halves)
    assert (len(first), len(second), first & second) == (2, 2, set())
    assert {side: sorted(found) for side, found in record.outcomes.items()} == {BASE: [4, 5], HEAD: [4, 5]}


def test_times_of_calls_outside_the_samples_are_checked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that fills the caches makes calls dearer than they were in the samples."""
    with pytest.raises(BrokenBarrierError):
        both_pairs(monkeypatch, 5, patience_s=0.1)


@pytest.mark.parametrize(
    ("device", "cpus", "threads", "free", "expected"),
    [
        *(("cpu", 1, 1, 1 << 30, 1), ("cpu", 2, 1, 1 << 30, 2), ("cpu", 64, 1, 1 << 30, 2), ("cpu", 2, 2, 1 << 30, 1)),
        *(("cpu", 1, 4, 1 << 30, 1), ("cuda:0", 64, 1, 1 << 30, 1), ("cpu", 2, 1, 1000, 1), ("cpu", 2, 1, 0, 1)),
    ],
)
def test_each_of_the_pairs_at_once_has_cpus_of_its_own(
    monkeypatch: pytest.MonkeyPatch, device: str, cpus: int, threads: int, free: int, expected: int
) -> None:
    """One pair where there are not enough, or too little memory, and on a GPU, which both would use."""
    monkeypatch.setattr("opgauge.harness.gate.interleaved.available_cpus", lambda: frozenset(range(cpus)))
    monkeypatch.setattr("opgauge.harness.gate.interleaved.free_memory_bytes", lambda: free)
    subject = Subject("sign", "c", "0" * 16, "optimized", device)
    assert pairs_at_once([JobRecord(Job(subject, {"case": {"shapes": {"x": (10,)}}}))], threads) == expected


IDLE = """    def run(*, x, out):
        if perf_counter() - last[0] > 50e-6:
            np.multiply(x, 2, out=out["out"])
        last[0] = perf_counter()

    last = [0.0]
"""
"""A kernel that skips its work right after another call: all samples begin with right outputs."""


def test_a_kernel_that_works_in_the_first_call_of_a_sample_is_broken(tmp_path: Path) -> None:
    """Calls outside the samples show it, which are checked in one pair of each side and not ahead of the pairs."""
    tree = TinyTree(tmp_path / "repository")
    tree.set_ops("tiny", {"double": "sane"})
    tree.commit("one")
    file = tree.path / "ops" / "tiny" / "__init__.py"
    before, _, after = file.read_text().partition("    def run(*, x, out):")
    file.write_text(before + IDLE + after[after.index("    def plain(") - 1 :])
    tree.commit("two")
    quick = ("--pairs", "4", "--most-pairs", "4", "--block-s", "0.01")
    assert "returned before they had written the outputs" in tree.opgauge(
        "gate", "--base", "HEAD~1", "--json", *quick, code=3
    )


def test_a_clock_without_blocks_knows_no_activity() -> None:
    """All of its time is between the blocks."""
    assert Clock().spent_s(3.0) == {BETWEEN_PHASES: 0.0, "between blocks": 3.0}


@pytest.mark.parametrize(("left_s", "listed"), [(7.0, False), (9.0, True)])
def test_kernel_lists_begin_only_if_their_time_is_left(
    monkeypatch: pytest.MonkeyPatch, left_s: float, *, listed: bool
) -> None:
    """Their processes import both trees once more, which took 4 s before: a budget would not be kept."""
    now, asked = Now(), set[str]()
    for module in (clock, gate_run, pairs):
        monkeypatch.setattr(module, "monotonic", now)

    def plan(*_: object) -> GatePlan:
        now.now += 4.0
        return GatePlan(())

    monkeypatch.setattr(gate_run, "plan", plan)
    monkeypatch.setattr(gate_run, "_profiles", lambda *_: asked.add("lists"))
    tree = Tree(Path("/nowhere"), "", "a tree")
    with WorkerPool({BASE: tree, HEAD: tree}) as pool:
        gate_run.gate(pool, Selection(), Conditions(end=4.0 + left_s))
    assert bool(asked) is listed
