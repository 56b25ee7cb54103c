"""Pairs of all jobs, then more of the undecided ones, until all are decided or the budget is spent.

On the CPU pairs are interleaved (see `interleaved`). Otherwise a pair is two processes, one after the other, in random
order within balance. Nothing else is measured meanwhile.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from time import monotonic

from opgauge.harness.errors import TimeIsUpError
from opgauge.harness.gate.cpus import available_cpus
from opgauge.harness.gate.gate import Schedule, Spending, more_pairs
from opgauge.harness.gate.interleaved import measure_coarse, measure_pairs, pairs_at_once
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import (
    BASE,
    BLOCKS,
    HEAD,
    INTERLEAVED,
    SIDES,
    BlockOutcome,
    Job,
    JobRecord,
    is_coarsely_slower,
    outcome_from,
)
from opgauge.harness.gate.turns import Effort
from opgauge.harness.judge.verdict import Comparison, Kind, Subject, Verdict
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status

BATCH = 12
"""Jobs that share a process on the CPU: enough to amortize its start, few enough for pairs close in time."""
CUDA_BATCH = 48
"""Jobs that share a process on a GPU, where a trial takes 0.1 s and the start of a process almost 1 s."""
INTERLEAVED_BATCH = 48
"""Jobs that share both processes of an interleaved pair."""
INTERLEAVED_BYTES = 2 << 30
"""Most bytes of inputs that are cached for the jobs of a batch."""
SPARE_CPUS, MOST_AHEAD = 2, 6
"""CPUs, beside one, for each process that starts while a GPU is measured, in 4 to 12 s with Triton; most of them."""
BLOCK_S = 0.2
"""Seconds of sampling of one trial in one process."""
FIRST_S, INTERLEAVED_S = 0.15, 0.3
"""Seconds of sampling of one trial, per side, in one interleaved pair: in the initial ones, which mostly decide equal
code, and in further ones."""
LEAST_S = 0.02
"""Seconds of sampling, at least, where a budget leaves less than `INTERLEAVED_S`."""
SAMPLED = 0.5
"""Share of the time that is left which sampling may take: the rest is for processes and first calls."""
COARSE_PAIRS, START = 4, 4
"""Most pairs with all threads, and initial pairs of each job."""
METHODS = tuple(name.partition("/")[0] for name in (INTERLEAVED, BLOCKS))
"""Names of the methods, the default on a CPU first."""
Tell = Callable[[str], None]
Decide = Callable[[Mapping[Subject, JobRecord]], Iterable[Comparison]]


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Method and limits of measuring pairs.

    block_s: seconds of sampling per side and pair; None: the default of the method. end: time by `time.monotonic`
    at which measuring stops. threads: of each process on the CPU. method: one of `METHODS`; None: interleaved on
    the CPU.
    """

    schedule: Schedule
    block_s: float | None = None
    end: float | None = None
    threads: int = 1
    method: str | None = None

    def is_interleaved(self, job: Job) -> bool:
        """Whether a job's samples alternate between two live processes."""
        wanted = self.method == METHODS[0] or (self.method is None and job.subject.device == "cpu")
        return wanted and job.is_paired

    @property
    def start(self) -> int:
        """Initial number of pairs of each job."""
        return self.schedule.start or START

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether this number of seconds is left."""
        return self.end is None or monotonic() + seconds <= self.end

    def left_s(self) -> float:
        """Seconds that are left; infinity without an end."""
        return float("inf") if self.end is None else max(0.0, self.end - monotonic())

    def share_of(self, parts: int) -> PairPlan:
        """The plan of the first of so many parts, which get equal shares of the time that is left."""
        return self if self.end is None else replace(self, end=monotonic() + self.left_s() / parts)


def measure(
    pool: WorkerPool,
    jobs: Sequence[Job],
    decide: Decide,
    plan: PairPlan,
    *,
    stored: Mapping[Subject, Sequence[BlockOutcome]] | None = None,
    tell: Tell = lambda _: None,
) -> dict[Subject, JobRecord]:
    """Measure pairs of all jobs, then of the undecided ones.

    stored: stored results of the base, which are not measured.
    """
    records = {job.subject: JobRecord(job) for job in jobs}
    most = dict.fromkeys(records, plan.schedule.total)
    for subject, blocks in (stored or {}).items():
        records[subject].outcomes[BASE] = dict(enumerate(blocks))
        most[subject] = min(plan.schedule.total, len(blocks))
    wanted = {
        subject: min(plan.start, most[subject]) if one.job.is_paired or one.outcomes[BASE] else 1
        for subject, one in records.items()
    }
    for subject, count in wanted.items():
        records[subject].checked_pair %= max(1, count)  # one of those that come
    try:
        while wanted:
            _measure_all(pool, list(_batches(records, wanted, plan, _devices(pool))), plan, tell)
            if not plan.has_time():
                break
            spending = {subject: Spending(one.sampling_s, one.job.budget_s) for subject, one in records.items()}
            wanted = {
                subject: count
                for subject, count in more_pairs(decide(records), spending, plan.schedule).items()
                if subject in records and records[subject].attempts < most[subject]
            }
        _check_threads(pool, list(records.values()), plan, tell)
    except TimeIsUpError:
        for record in records.values():
            record.drop_half_pairs()
    return records


def first_batches(jobs: Sequence[Job], plan: PairPlan) -> list[tuple[list[Job], int]]:
    """Jobs that share processes, in the order of measuring, with their initial number of pairs."""
    records = {job.subject: JobRecord(job) for job in jobs}
    wanted = {job.subject: min(plan.start, plan.schedule.most) if job.is_paired else 1 for job in jobs}
    return [([one.job for one in found.records], found.pairs) for found in _batches(records, wanted, plan, 1)]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that are measured by the same processes. pairs: more pairs of each; 0: one pair with all threads."""

    records: list[JobRecord]
    pairs: int


class SpreadPool(WorkerPool):
    """A pool that measures on several devices at once; both blocks of a pair run on one device."""

    devices: int

    def measure_batches(self, batches: Iterable[Batch], plan: PairPlan, tell: Tell) -> None:
        """Measure every batch by `measure_batch` somewhere, and update its records."""
        raise NotImplementedError


def _devices(pool: WorkerPool) -> int:
    return pool.devices if isinstance(pool, SpreadPool) else 1


def _measure_all(pool: WorkerPool, batches: Sequence[Batch], plan: PairPlan, tell: Tell) -> None:
    """Measure batches here one after the other, each in its share of the time that is left, or on several devices."""
    if isinstance(pool, SpreadPool):
        pool.measure_batches(batches, plan, tell)
        return
    for place, batch in enumerate(batches):
        measure_batch(pool, batch, plan.share_of(len(batches) - place), tell)
        if len(batches) > 1:  # further pairs of a single batch use the same inputs
            pool.forget_inputs()


def _batches(
    records: Mapping[Subject, JobRecord], wanted: Mapping[Subject, int], plan: PairPlan, devices: int
) -> Iterator[Batch]:
    """Records that get equally many pairs on the same sides, in the order of `wanted`; a batch at least per device."""
    groups: dict[tuple[int, str, tuple[str, ...]], list[JobRecord]] = {}
    for subject, count in wanted.items():
        job = records[subject].job
        groups.setdefault((count, subject.device, job.sides), []).append(records[subject])
    for (count, _, _), found in groups.items():
        if plan.is_interleaved(found[0].job):
            parts = max(_parts(found, INTERLEAVED_BATCH), round(sum(map(_input_bytes, found)) / INTERLEAVED_BYTES))
        else:
            # of equal size, so that no batch of few jobs needs processes of its own
            parts = _parts(found, BATCH if found[0].job.subject.device == "cpu" else CUDA_BATCH)
        parts = max(parts, min(devices, len(found)))
        for part in range(parts):
            yield Batch(found[part * len(found) // parts : (part + 1) * len(found) // parts], count)


def _parts(found: Sequence[JobRecord], size: int) -> int:
    return max(1, round(len(found) / size))


def _input_bytes(record: JobRecord) -> int:
    """Approximate most bytes of a job's inputs."""
    shapes: Mapping[str, Sequence[int]] = record.job.trial["case"]["shapes"]
    return 8 * sum(map(prod, shapes.values()))


def measure_batch(pool: WorkerPool, wanted: Batch, plan: PairPlan, tell: Tell) -> None:
    """Measure the pairs of a batch on this machine and add them to its records."""
    batch, count = wanted.records, wanted.pairs
    if not count:
        measure_coarse(pool, batch, Effort(INTERLEAVED_S, end=plan.end))
        return
    first = max(record.attempts for record in batch)
    interleaved = plan.is_interleaved(batch[0].job)
    blocks = _Blocks(pool, plan, random.Random(), batch[0].job)  # noqa: S311
    if first == 0 and (interleaved or blocks.ahead):
        tell(f"cases to compile and check: {len(batch)}")
        blocks.prepare(count)
        pool.look_ahead(batch, SIDES if interleaved else (HEAD,), end=plan.end)
        for record in batch if interleaved else ():
            _take_failures(record)
    longest_s, end = 0.0, first + count
    at_once = pairs_at_once(batch, plan.threads) if interleaved else 1
    for pair in range(first, end, at_once):
        open_ = [record for record in batch if not record.is_final]
        if not open_ or not plan.has_time(longest_s):
            return
        tell(f"pair {pair + 1} of {end}: {', '.join(sorted({record.job.subject.op for record in open_}))}")
        started = monotonic()
        if interleaved:
            turns = len(SIDES) * len(open_) * (end - pair)
            available_s = max(LEAST_S, SAMPLED * plan.left_s() / turns)
            usual_s = INTERLEAVED_S if first else FIRST_S
            side_s = min(plan.block_s or usual_s, _affordable_s(open_), available_s)
            numbers = range(pair, min(pair + at_once, end))
            measure_pairs(pool, open_, numbers, Effort(side_s, plan.threads, plan.end))
        else:
            blocks.measure(open_, pair, further=end - pair - 1)
        longest_s = monotonic() - started


def _take_failures(record: JobRecord) -> None:
    """Record a side's failure in its first call as its outcome: it needs no pair."""
    if any(one.status is not Status.OK for one in record.seen.values()):
        for side, found in record.seen.items():
            record.outcomes[side][0] = found


def _affordable_s(records: Sequence[JobRecord]) -> float:
    """Seconds per side and pair that the smallest budget of the jobs allows."""
    return min((one.job.budget_s / 12 for one in records if one.job.budget_s), default=float("inf"))


class _Blocks:
    """Pairs of sequential processes. The order of the sides is random within balance.

    ahead: most processes that start before their turn: none where they would disturb the one that measures.
    """

    def __init__(self, pool: WorkerPool, plan: PairPlan, rng: random.Random, job: Job) -> None:
        self._pool = pool
        self._plan = plan
        self._rng = rng
        self._sides = job.sides
        self._coming: list[str] = []
        spare = ((os.cpu_count() or 1) - 1) // SPARE_CPUS
        self.ahead = 0 if job.subject.device == "cpu" else min(spare, MOST_AHEAD)

    def prepare(self, pairs: int) -> None:
        """Start the first processes of so many pairs."""
        self._pool.prepare(self._next(min(self.ahead, pairs * len(self._sides))))

    def measure(self, records: Sequence[JobRecord], pair: int, *, further: int) -> None:
        """Measure one pair, of which `further` follow. A side that failed is still compared with the other once."""
        for left in reversed(range(len(self._sides))):
            (side,) = self._next(1)
            del self._coming[0]
            then = self._next(min(self.ahead, left + further * len(self._sides)))
            for record, found in self._run_block(side, records, pair, then):
                record.outcomes[side][pair] = found

    def _next(self, count: int) -> list[str]:
        """Sides of the next blocks. Two pairs in a row use each order once."""
        while len(self._coming) < count:
            for order in self._rng.sample((self._sides, self._sides[::-1]), 2):
                self._coming += order
        return self._coming[:count]

    def _run_block(
        self, side: str, records: Sequence[JobRecord], pair: int, then: Sequence[str]
    ) -> Iterator[tuple[JobRecord, BlockOutcome]]:
        """Run the jobs in a new process of one side. then: sides of the next processes, which start meanwhile."""
        pool, clock = self._pool, self._pool.clock
        block_s = self._plan.block_s or BLOCK_S
        with clock.block(1), pool.take(side) as executor:
            pool.prepare(then)
            pool.await_start([(side, executor)])
            for record in records:
                budget_s = record.job.budget_s
                limit_s = min(block_s, budget_s / 12 if budget_s else block_s)
                executor.limits = replace(Limits(), budget_s=limit_s, min_samples=3)
                found = outcome_from(pool.run(executor, side, record, pair))
                clock.add(found.phases_s)
                yield record, found
            with clock.starting():
                executor.close()


def _check_threads(pool: WorkerPool, records: Iterable[JobRecord], plan: PairPlan, tell: Tell) -> None:
    """Run jobs that were measured with one thread with all threads: nothing else detects a slower parallel part."""
    chosen = _single_threaded(records, plan)
    for number in range(COARSE_PAIRS):
        chosen = [one for one in chosen if is_coarsely_slower(one) or not one.coarse]
        if not chosen or not plan.has_time():
            return
        tell(f"all threads, {number + 1} of at most {COARSE_PAIRS}; cases: {len(chosen)}")
        count = _devices(pool)
        _measure_all(pool, [Batch(chosen[part::count], 0) for part in range(min(count, len(chosen)))], plan, tell)


def _single_threaded(records: Iterable[JobRecord], plan: PairPlan) -> list[JobRecord]:
    """Records of the CPU that were measured with one thread although there are more."""
    if plan.threads > 1 or len(available_cpus()) == 1:
        return []
    return [
        one
        for one in records
        if plan.is_interleaved(one.job) and one.job.subject.device == "cpu" and not one.is_final and one.attempts
    ]


def unfinished_notes(found: Iterable[Comparison], records: Mapping[Subject, JobRecord], plan: PairPlan) -> list[str]:
    """Limits of what was found where the budget ended first: undecided cases, and those without a coarse run."""
    if plan.has_time():
        return []
    undecided = sum(one.verdict is Verdict.UNDECIDED or one.kind is Kind.UNMEASURED for one in found)
    untested = sum(not one.coarse for one in _single_threaded(records.values(), plan))
    notes = []
    if undecided:
        notes.append(f"the budget ended with {undecided} undecided; raise --budget, or select fewer cases")
    if untested:
        notes.append(f"the budget ended before the run with all threads of {untested}: measured with one thread only")
    return notes
