"""Paired blocks: two trees measured in turn, A B B A, each block a fresh process, nothing else meanwhile.

A job is a trial on the sides it is to be measured on, a batch a few jobs that share their
processes, a block one such process. What comes of it is a `Record` per subject.
Trials and results stay plain JSON: the process that compares builds the cases of neither tree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Self

from opgauge.harness.errors import TreeError, WorkerError
from opgauge.harness.gate.gate import Schedule, Spending, more_pairs
from opgauge.harness.judge.verdict import Comparison, Subject
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Ceilings, Check, Measurement, Ruler, Status, from_json, to_json
from opgauge.harness.run.compiling import ONCE, Waiting, need_bytes
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.tree import Tree, temporary_folder
from opgauge.harness.worker import protocol
from opgauge.harness.worker.kept import forget_values

BASE, HEAD = "base", "head"
KEPT = "kept"
MEASURING = "measure"
SIDES = (BASE, HEAD)
BATCH = 12
"""Jobs, about so many, that share the start of a process: enough to pay for it, few enough for pairs close in time."""
CUDA_BATCH = 48
"""As BATCH on a GPU, where a trial takes a tenth of a second and the start of a process almost one."""
SPARE_CPUS = 4
"""Where a machine has so many CPUs, the next process may import what it needs while a GPU is measured."""
LOOKING = 8
"""Processes, at most, that call and check kernels before a GPU is timed: references take long, and one CPU each."""
BLOCK_S = 0.2
"""Seconds of sampling of one trial in one block."""
START_S = 300.0
"""The longest that a tree may take to say what it holds; compiled digests take longest."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A trial, as plain JSON, and the sides to measure it on. budget_s: seconds per side; None: no limit."""

    subject: Subject
    trial: Mapping[str, Any]
    sides: tuple[str, ...] = SIDES
    budget_s: float | None = None

    @property
    def is_paired(self) -> bool:
        """Whether it has two sides."""
        return len(self.sides) == len(SIDES)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job in one block; fields as in `opgauge.harness.result.result.Result`."""

    status: Status
    reason: str = ""
    check: Check | None = None
    measurement: Measurement | None = None
    bytes: int = 0
    flops: int = 0
    deterministic: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    ruler: Ruler | None = None

    @property
    def median_ns(self) -> float | None:
        """Of the samples; None where there are none."""
        return self.measurement.median_ns if self.measurement and self.measurement.samples_ns else None

    @property
    def is_known(self) -> bool:
        """Whether its outputs were right, and can be told from others."""
        return self.check is not None and self.check.ok and "grounds" in self.extra

    @property
    def sampling_s(self) -> float:
        """Seconds spent on warming up and sampling."""
        return self.phases_s.get(MEASURING, 0.0)

    @property
    def phases_s(self) -> Mapping[str, float]:
        """Seconds by what the block did."""
        found: Mapping[str, float] = self.extra.get("phases_s", {})
        return found


@dataclass(slots=True)
class Record:
    """All blocks of one job: outcomes by side, then by number of the pair. seen: what the head did before them."""

    job: Job
    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=lambda: {side: {} for side in SIDES})
    seen: Outcome | None = None

    def trusted(self, side: str) -> dict[str, Any] | None:
        """Outputs that were checked against the reference: blocks that leave the same bits need no other.

        Those of the other side count too, on the grounds that it checked them with.
        """
        own, others = self.outcomes[side].values(), self.outcomes[SIDES[SIDES.index(side) - 1]].values()
        known = next((one for one in (*own, *others, self.seen) if one is not None and one.is_known), None)
        if known is None or known.check is None:
            return None
        found = {"digest": known.extra["digest"], "check": to_json(known.check)}
        return found if any(one is known for one in own) else {**found, "grounds": known.extra["grounds"]}

    @property
    def attempts(self) -> int:
        """Blocks of the head, which every job has."""
        return len(self.outcomes[HEAD])

    @property
    def is_settled(self) -> bool:
        """Whether the head has been tried and a block ended in a way that more blocks would not change."""
        return bool(self.outcomes[HEAD]) and any(
            one.status is not Status.OK for blocks in self.outcomes.values() for one in blocks.values()
        )

    @property
    def sampling_s(self) -> float:
        """Seconds of sampling, of the side that took more."""
        return max(sum(one.sampling_s for one in blocks.values()) for blocks in self.outcomes.values())

    def medians_ns(self, side: str) -> dict[int, float]:
        """Block medians by number of the pair."""
        return {pair: time for pair, one in self.outcomes[side].items() if (time := one.median_ns) is not None}


@dataclass(slots=True)
class Clock:
    """Where the time went, in seconds. phases_s: of trials, by what they did; processes started in what is left."""

    blocks: int = 0
    blocks_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def measuring_s(self) -> float:
        """Sampling and warming up."""
        return self.phases_s.get(MEASURING, 0.0)

    def since(self, before: Clock) -> Clock:
        """What was added to it since it was at `before`."""
        phases_s = {name: spent - before.phases_s.get(name, 0.0) for name, spent in self.phases_s.items()}
        return Clock(self.blocks - before.blocks, self.blocks_s - before.blocks_s, phases_s)

    def add(self, phases_s: Mapping[str, float]) -> None:
        """Another trial."""
        for name, spent in phases_s.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + spent

    def now(self) -> Clock:
        """As it is now."""
        return Clock(self.blocks, self.blocks_s, self.phases_s.copy())


class Workshop:
    """Starts workers on either tree, one at a time. Use it in a `with` statement.

    Compiled Numba code goes to folders of this workshop: a cache beside the source
    would not notice a change in another file that was inlined. So do inputs: to draw
    them anew in each block would take longer than to measure.
    """

    def __init__(
        self,
        trees: Mapping[str, Tree],
        *,
        timeout_s: float = 120.0,
        threads: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.trees = trees
        self.clock = Clock()
        self._timeout_s = timeout_s
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._stack = ExitStack()
        self._folder = Path()
        self._next: tuple[str, LocalExecutor] | None = None
        self._ceilings: dict[str, Ceilings] = {}
        self._seen: dict[Subject, Outcome] = {}

    def __enter__(self) -> Self:
        self._folder = self._stack.enter_context(temporary_folder("opgauge-gate-"))
        return self

    def __exit__(self, *_: object) -> None:
        self.prepare(None)
        self._stack.close()

    def prepare(self, side: str | None) -> None:
        """Start the worker of the next block on a GPU, which it leaves alone until then; None: end what waits."""
        if self._next is not None:
            self._next[1].close()
        self._next = None if side is None else (side, self.executor(side, preload=("cupy",)))

    def _fresh(self, side: str) -> LocalExecutor:
        """The worker that was prepared for this side, or one that starts now."""
        if self._next is None or self._next[0] != side:
            return self.executor(side)
        found, self._next = self._next[1], None
        return found

    def executor(self, side: str, *, preload: Sequence[str] = ()) -> LocalExecutor:
        """A fresh worker on the tree of a side. preload: what it imports while it waits, none by default."""
        return LocalExecutor(
            timeout_s=self._timeout_s,
            ops_tree=self.trees[side].path,
            threads=self._threads,
            memory_bytes=self._memory_bytes,
            environment={"NUMBA_CACHE_DIR": str(self._folder_of("numba", side))},
            preload=preload,
        )

    def look_ahead(self, records: Sequence[Record]) -> None:
        """Call and check the head's kernels once, many at a time, so that blocks need no reference."""
        new = [record for record in records if record.job.subject not in self._seen]
        shapes = [record.job.trial["case"]["shapes"].values() for record in new]
        waiting = Waiting(zip(map(need_bytes, shapes), new, strict=True))

        def look() -> None:
            with self.executor(HEAD, preload=("cupy",)) as executor:
                executor.limits = ONCE
                for record in waiting:
                    kept = str(self._folder_of(KEPT, HEAD))
                    found = _outcome(executor.run_plain(record.job.trial, with_grounds=True, kept=kept))
                    self._seen[record.job.subject] = found

        with ThreadPoolExecutor(LOOKING) as pool:
            workers = min(LOOKING, (os.cpu_count() or 1) // 2, len(new))
            for done in [pool.submit(look) for _ in range(workers)]:
                done.result()
        for record in records:
            record.seen = self._seen.get(record.job.subject)

    def ceilings(self, devices: Iterable[str]) -> dict[str, Ceilings]:
        """What devices reach, measured where they are first asked about, by a worker on the head's tree."""
        wanted = list(devices)
        missing = [device for device in wanted if device not in self._ceilings]
        if missing:
            with self.executor(HEAD) as executor:
                self._ceilings |= {device: executor.ceilings(device) for device in missing}
        return {device: self._ceilings[device] for device in wanted}

    def forget_inputs(self) -> None:
        """Remove the inputs that blocks have kept for the next ones."""
        forget_values(self._folder / KEPT)

    def _folder_of(self, what: str, side: str) -> Path:
        """A folder for what belongs to the tree of a side: another tree may draw other inputs."""
        return self._folder / what / sha256(str(self.trees[side].path).encode()).hexdigest()[:16]

    def ask(self, side: str, requests: Iterable[protocol.Request]) -> list[Any]:
        """What the tree of a side answers; raises TreeError, naming it, where it cannot be asked, and CaseError."""
        try:
            with self.executor(side) as executor:
                return [executor.ask(request, timeout_s=START_S) for request in requests]
        except (TreeError, WorkerError) as error:
            msg = f"{self.trees[side]} cannot be asked: {error}"
            raise TreeError(msg) from error

    def run_block(
        self, side: str, records: Sequence[Record], pair: int, block_s: float, then: str | None = None
    ) -> Iterator[tuple[Record, Outcome]]:
        """One block: the jobs in a fresh process of one side, each with its outcome. then: the next block's side."""
        started = monotonic()
        with self._fresh(side) as executor:
            if then is not None and _may_prepare(records[0].job):
                self.prepare(then)
            for record in records:
                budget_s = record.job.budget_s
                executor.limits = _limits(min(block_s, budget_s / 12 if budget_s else block_s))
                found = _outcome(self._run(executor, side, record, pair))
                self.clock.add(found.phases_s)
                yield record, found
        self.clock.blocks += 1
        self.clock.blocks_s += monotonic() - started

    def _run(self, executor: LocalExecutor, side: str, record: Record, pair: int) -> dict[str, Any]:
        """Raises TreeError where it is not the kernel that failed: what this harness asked, the tree did not have."""
        try:
            trusted = record.trusted(side)
            is_new = trusted is None or "grounds" in trusted
            kept = str(self._folder_of(KEPT, side))
            return executor.run_plain(record.job.trial, block=pair, trusted=trusted, with_grounds=is_new, kept=kept)
        except WorkerError as error:
            msg = f"{self.trees[side]} cannot be asked: {record.job.subject}: {error}"
            raise TreeError(msg) from error


Decide = Callable[[Mapping[Subject, Record]], Iterable[Comparison]]


def measure(
    workshop: Workshop,
    jobs: Sequence[Job],
    decide: Decide,
    *,
    stored: Mapping[Subject, Sequence[Outcome]] | None = None,
    schedule: Schedule | None = None,
    block_s: float = BLOCK_S,
    budget_s: float | None = None,
    tell: Tell = lambda _: None,
) -> dict[Subject, Record]:
    """Measure pairs of all jobs, then of the undecided ones, until all is decided or the budget is spent.

    stored: blocks of the base that are there already. budget_s: seconds in all, after which no further
    pairs are begun; the first ones are taken anyway.
    """
    plan = schedule or Schedule()
    end = monotonic() + budget_s if budget_s else None
    records = {job.subject: Record(job) for job in jobs}
    most = dict.fromkeys(records, plan.most)
    for subject, blocks in (stored or {}).items():
        records[subject].outcomes[BASE] = dict(enumerate(blocks))
        most[subject] = min(plan.most, len(blocks))
    wanted = {
        subject: min(plan.start, most[subject]) if one.job.is_paired or one.outcomes[BASE] else 1
        for subject, one in records.items()
    }
    while wanted:
        for batch, count in _batches(records, wanted):
            _measure_batch(workshop, batch, count, block_s, tell)
            workshop.forget_inputs()
        if end is not None and monotonic() >= end:
            break
        spending = {subject: Spending(one.sampling_s, one.job.budget_s) for subject, one in records.items()}
        wanted = {
            subject: count
            for subject, count in more_pairs(decide(records), spending, plan).items()
            if subject in records and records[subject].attempts < most[subject]
        }
    return records


def _batches(records: Mapping[Subject, Record], wanted: Mapping[Subject, int]) -> Iterator[tuple[list[Record], int]]:
    """Records that are to get equally many pairs on the same sides, a few at a time."""
    groups: dict[tuple[int, str, tuple[str, ...]], list[Record]] = {}
    for subject, count in wanted.items():
        job = records[subject].job
        groups.setdefault((count, subject.device, job.sides), []).append(records[subject])
    for (count, _, _), found in groups.items():
        # as even as they come, so that no few jobs pay for processes of their own
        batch = BATCH if found[0].job.subject.device == "cpu" else CUDA_BATCH
        parts = max(1, round(len(found) / batch))
        for part in range(parts):
            yield found[part * len(found) // parts : (part + 1) * len(found) // parts], count


def _measure_batch(workshop: Workshop, batch: Sequence[Record], count: int, block_s: float, tell: Tell) -> None:
    first = max(record.attempts for record in batch)
    sides = batch[0].job.sides
    if first == 0 and _may_prepare(batch[0].job):
        workshop.look_ahead(batch)
    for pair in range(first, first + count):
        # A B B A: a steady drift falls on both sides alike; a failure of one side is faced by the other once
        open_ = [record for record in batch if not record.is_settled]
        if not open_:
            return
        tell(f"pair {pair + 1} of {first + count}: {', '.join(sorted({record.job.subject.op for record in open_}))}")
        order = sides if pair % 2 == 0 else sides[::-1]
        # the next pair begins with the side that this one ends with
        following = [*order[1:], order[-1] if pair + 1 < first + count else None]
        for side, then in zip(order, following, strict=True):
            for record, found in workshop.run_block(side, open_, pair, block_s, then):
                record.outcomes[side][pair] = found


def _may_prepare(job: Job) -> bool:
    """Whether there are CPUs enough for other processes to take nothing from the one that measures."""
    return job.subject.device != "cpu" and (os.cpu_count() or 1) >= SPARE_CPUS


def _limits(block_s: float) -> Limits:
    return replace(Limits(), budget_s=block_s, min_samples=3)


def _outcome(plain: Mapping[str, Any]) -> Outcome:
    known = {item.name for item in fields(Outcome)}
    return from_json(Outcome, {name: value for name, value in plain.items() if name in known})
