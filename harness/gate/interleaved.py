"""Interleaved pairs: two live processes, one per tree, whose samples alternate at random.

The process is the unit of replication and the sample the unit of interleaving, so that a change of the host's speed
affects both sides. On the CPU both processes run on the same CPU and on the same pages of memory, with one thread
unless more are requested. Order of sides, order of cases, environment size and memory differ from pair to pair.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import ceil, prod
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from opgauge.harness.gate.cpus import available_cpus, busy_share
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import (
    BUSY,
    INTERLEAVED,
    MEASURING,
    METHOD,
    MOST_BUSY,
    SIDES,
    BlockOutcome,
    JobRecord,
    outcome_from,
)
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status
from opgauge.harness.settings import THREAD_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opgauge.harness.run.execute import LocalExecutor

SAMPLE_S = 0.004
"""Least duration of a sample on the CPU.

The other process has evicted a core's private caches, and changing the process takes 1 ms. Up to some 8 ms the times of
neighbouring samples differ independently, so that shorter ones would be no more precise in the same time.
"""
WARMUP_S = 0.0005
"""Duration of calls before a sample, for calls that are shorter."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 400
"""Least and most samples of a side in one pair; even, so that each side is first equally often."""
PRECISE = 0.004
"""Standard error of a pair's log ratio at which sampling stops: less than the difference between processes."""
WAITED = 0.05
"""Share of a sample, above the usual one, that its process may wait for the CPU."""
PATIENCE = 3.0
"""Multiple of a pair's time after which it ends although most samples were disturbed."""
CUDA_SAMPLES = 5
"""Samples per turn on a GPU, where changing the process costs more than a sample."""
COARSE_ROUNDS = 6
"""Samples of a side with all threads: enough to detect a factor, not percents."""
PADDING = "OPGAUGE_PADDING"
"""Variable that changes the size of the environment."""
MOST_PADDING = 4096
"""Largest difference of the environments of pairs in bytes, which shifts the stack."""
SHARED_OVERHEAD = 1 << 16
"""Bytes of alignment and guards per tensor."""
ALL_THREADS = "run with all threads"
"""Activity of a run with all threads, of which phases are not told apart."""
FIRST = Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=0.002)
"""Limits of the first sample."""
ONE_CALL = replace(FIRST, warmup_s=0.0, calls=1)
"""Limits of the first sample where the duration of a call is known."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Amount of sampling in one pair.

    side_s: seconds per side and case. threads: of each process on the CPU. end: time at which sampling stops, by
    `time.monotonic`.
    """

    side_s: float
    threads: int = 1
    end: float | None = None

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.end is not None and monotonic() >= self.end


@dataclass(slots=True)
class Times:
    """Times of alternating samples by side, and the share of each during which its process did not run."""

    times_ns: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    idle: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def add(self, side: str, found: BlockOutcome) -> None:
        """Add the samples of one turn, as their median."""
        time_ns = float(np.median(found.samples_ns))
        busy_ns = found.measurement.cpu_ns if found.measurement else ()
        self.times_ns[side].append(time_ns)
        self.idle[side].append(1.0 - float(np.median(busy_ns)) / time_ns if busy_ns else 0.0)

    def undisturbed(self) -> dict[str, list[float]]:
        """Times of the turns in which neither process waited for its CPU longer than usual; all if those are few.

        A kernel that sleeps waits equally in each sample.
        """
        chosen = np.all([np.array(idle) <= np.min(idle, initial=1.0) + WAITED for idle in self.idle.values()], axis=0)
        if np.count_nonzero(chosen) < LEAST_ROUNDS:
            return self.times_ns
        return {side: np.array(times)[chosen].tolist() for side, times in self.times_ns.items()}


@dataclass(slots=True)
class Sides:
    """The two processes of a pair. cpus: CPUs that both run on; empty: any."""

    executors: Mapping[str, LocalExecutor]
    cpus: frozenset[int] = frozenset()
    threads: int = 1
    rng: random.Random = field(default_factory=random.Random)


def measure_pair(pool: WorkerPool, records: Sequence[JobRecord], pair: int, effort: Effort) -> None:
    """Add one pair to each record, all in the same two processes; records for which no time is left get none."""
    rng = random.Random()  # noqa: S311  no secret
    device = records[0].job.subject.device
    with pool.clock.block(len(SIDES)), _open(pool, device, effort.threads, rng) as sides:
        for record in rng.sample(records, len(records)):
            if effort.is_over():
                break
            _measure_record(pool, sides, record, pair, effort)


def measure_coarse(pool: WorkerPool, records: Sequence[JobRecord], effort: Effort) -> None:
    """Add to each record log ratios of a few sample pairs with all threads, and whether the CPUs were idle."""
    device, threads = records[0].job.subject.device, len(available_cpus())
    with (
        pool.clock.block(len(SIDES), ALL_THREADS),
        _open(pool, device, threads, random.Random()) as sides,  # noqa: S311
    ):
        for record in records:
            if effort.is_over():
                break
            taken = _hold_both(pool, sides, record, None)
            if all(one.status is Status.OK for one in taken.values()):
                with busy_share(sides.cpus, sides.executors.values()) as busy:
                    _sample(sides, record, taken, replace(effort, side_s=0.0), rounds=COARSE_ROUNDS)
                base, head = (np.array(taken[side].samples_ns) for side in SIDES)
                if base.size and base.size == head.size:
                    record.coarse.append(tuple(np.log(head / base).tolist()))
                    record.is_crowded = record.is_crowded or busy() > MOST_BUSY


@contextmanager
def _open(pool: WorkerPool, device: str, threads: int, rng: random.Random) -> Iterator[Sides]:
    """Start both processes of a pair at the same time, in random order."""
    on_cpu = device == "cpu"
    environment = {PADDING: "x" * rng.randrange(MOST_PADDING)}
    if on_cpu:
        environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    preload = sorted(pool.imported) if on_cpu else ("cupy",)
    cpus = sorted(available_cpus())
    chosen = frozenset(rng.sample(cpus, min(threads, len(cpus)))) if on_cpu else frozenset()
    with ExitStack() as stack:
        with pool.clock.starting():
            executors = {
                side: stack.enter_context(pool.executor(side, preload=preload, environment=environment))
                for side in rng.sample(SIDES, len(SIDES))
            }
        pool.await_start(executors)
        yield Sides(executors, chosen, threads, rng)
        with pool.clock.starting():
            stack.close()


def _measure_record(pool: WorkerPool, sides: Sides, record: JobRecord, pair: int, effort: Effort) -> None:
    taken = _hold_both(pool, sides, record, pair)
    if all(one.status is Status.OK for one in taken.values()):
        with busy_share(sides.cpus, sides.executors.values()) as busy:
            _sample(sides, record, taken, effort)
        if sides.threads > 1:
            taken |= {side: replace(one, extra={**one.extra, BUSY: busy()}) for side, one in taken.items()}
    for side, found in taken.items():
        pool.clock.add(found.phases_s)
        record.outcomes[side][pair] = found


def _hold_both(pool: WorkerPool, sides: Sides, record: JobRecord, pair: int | None) -> dict[str, BlockOutcome]:
    """Bind, call and check the job in both processes, on buffers that they share."""
    found = {}
    with _memory_file(record) as memory:
        for side in sides.rng.sample(SIDES, len(SIDES)):
            executor = sides.executors[side]
            executor.limits = _first_limits(record, side, pair)
            if sides.cpus:
                executor.pin(sides.cpus)
            plain = pool.run(executor, side, record, pair, hold=True, memory=memory)
            found[side] = outcome_from(plain, **{METHOD: INTERLEAVED})
    return found


def _first_limits(record: JobRecord, side: str, pair: int | None) -> Limits:
    """Limits of the sample with which a process begins: one call where earlier pairs have told its duration."""
    is_known = pair is not None and _usual_s(record, side) is not None
    return ONE_CALL if is_known and record.job.subject.device == "cpu" else FIRST


def _usual_s(record: JobRecord, side: str) -> float | None:
    """Seconds of a call in the latest pair; None before any."""
    found = record.medians_ns(side)
    return found[max(found)] / 1e9 if found else None


@contextmanager
def _memory_file(record: JobRecord) -> Iterator[str | None]:
    """A new file in memory for the buffers of a job on the CPU; None if the system has none, and on a GPU."""
    if record.job.subject.device != "cpu" or not hasattr(os, "memfd_create"):
        yield None
        return
    descriptor = os.memfd_create("opgauge-buffers")
    try:
        os.ftruncate(descriptor, _buffer_bytes(record))
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _buffer_bytes(record: JobRecord) -> int:
    """Bytes for inputs and outputs: the file is sparse, so that unused bytes are free."""
    shapes = record.job.trial["case"]["shapes"].values()
    largest = 16 * max((prod(shape) for shape in shapes), default=0)
    return 4 * (len(shapes) + 2) * (largest + SHARED_OVERHEAD)


def _sample(
    sides: Sides, record: JobRecord, taken: dict[str, BlockOutcome], effort: Effort, *, rounds: int = MOST_ROUNDS
) -> None:
    """Replace the samples of both outcomes by interleaved ones, or an outcome by its failure."""
    trial, started = record.job.trial, monotonic()
    limits = _turn(record, taken, is_known=rounds == MOST_ROUNDS)
    times = Times()
    count = 0
    while count < LEAST_ROUNDS or (count < rounds and not _is_enough(times, monotonic() - started, effort, rounds)):
        # each side is first once in two rounds
        orders = sides.rng.sample((SIDES, SIDES[::-1]), 2)
        for order in orders:
            for side in order:
                found = outcome_from(sides.executors[side].sample(trial, limits), **{METHOD: INTERLEAVED})
                if found.status is not Status.OK or found.measurement is None:
                    taken[side] = found
                    return
                times.add(side, found)
        count += len(orders)
    spent = (monotonic() - started) / len(SIDES)
    for side in SIDES:
        last = outcome_from(sides.executors[side].sample(trial, limits, is_last=True), **{METHOD: INTERLEAVED})
        taken[side] = _joined(taken[side], last, times.undisturbed()[side], spent)


def _joined(held: BlockOutcome, last: BlockOutcome, times: Sequence[float], spent_s: float) -> BlockOutcome:
    """The outcome of a side with all samples; its failure, if the check after the last sample found one.

    spent_s: seconds of the samples between the first and the last.
    """
    measurement, phases_s = held.measurement, Counter(held.phases_s)
    phases_s.update({MEASURING: spent_s})
    phases_s.update(last.phases_s)
    extra = {"phases_s": dict(phases_s)}
    if last.status is not Status.OK or measurement is None:
        return replace(last, extra={**last.extra, **extra})
    measurement = replace(measurement, samples_ns=tuple(times), cpu_ns=())
    return replace(held, measurement=measurement, extra={**held.extra, **extra})


def _turn(record: JobRecord, taken: Mapping[str, BlockOutcome], *, is_known: bool) -> Limits:
    """Limits of one turn; the same number of calls per sample on both sides.

    is_known: earlier pairs tell the duration of a call, as these were measured alike.
    """
    if record.job.subject.device != "cpu":
        return Limits(budget_s=0.0, min_samples=CUDA_SAMPLES, max_samples=CUDA_SAMPLES, warmup_s=WARMUP_S)
    known = {side: _usual_s(record, side) if is_known else None for side in taken}
    fast_s, slow_s = sorted(known[side] or (one.median_ns or 1.0) / 1e9 for side, one in taken.items())
    warmup_s = WARMUP_S if fast_s < WARMUP_S else 0.0
    # a side that is slower by a factor needs no long samples
    calls = max(1, ceil(min(SAMPLE_S / fast_s, 2 * SAMPLE_S / slow_s)))
    return Limits(budget_s=0.0, min_samples=1, max_samples=1, warmup_s=warmup_s, calls=calls)


def _is_enough(times: Times, spent_s: float, effort: Effort, rounds: int) -> bool:
    """Whether the ratio of this pair is known, or the time is over."""
    if rounds != MOST_ROUNDS:
        return False
    if effort.is_over() or spent_s >= PATIENCE * 2 * effort.side_s:
        return True
    found = times.undisturbed()
    base, head = (found[side] for side in SIDES)
    if len(base) < 4 * LEAST_ROUNDS:
        return len(base) >= LEAST_ROUNDS and spent_s >= 2 * effort.side_s
    return spent_s >= 2 * effort.side_s or standard_error(base, head) <= PRECISE


def standard_error(base_ns: Sequence[float], head_ns: Sequence[float]) -> float:
    """Standard error of the median of the log ratios of neighbours, from their quartiles."""
    ratios = np.log(np.array(head_ns) / np.array(base_ns))
    low, high = np.quantile(ratios, (0.25, 0.75))
    return float(1.2533 * (high - low) / 1.349 / np.sqrt(ratios.size))
