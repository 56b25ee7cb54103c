"""Interleaved pairs: two live processes, one per tree, whose samples alternate at random.

The process is the unit of replication and the sample the unit of interleaving, so that a change of the host's speed
affects both sides. On the CPU both processes run on the same CPU and on the same pages of memory, with one thread
unless more are requested; what kernels allocate themselves is in huge pages. Order of sides, order of cases, size of
the environment and memory differ from pair to pair.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod
from time import monotonic, sleep
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
from opgauge.harness.gate.turns import LEAST_ROUNDS, MOST_ROUNDS, Effort, Times, is_enough, turn_limits, usual_s
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status
from opgauge.harness.run.compiling import SHARE, need_bytes, stopping
from opgauge.harness.run.environment import free_memory_bytes
from opgauge.harness.settings import THREAD_VARIABLES, huge_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opgauge.harness.run.execute import LocalExecutor

MOST_AT_ONCE = 2
"""Most pairs that prepare and check at the same time: a pair waits while the others take their samples."""
COARSE_ROUNDS = 4
"""Samples of a side with all threads: enough to detect a factor, not percents."""
COARSE_REST = 2
"""Pause after such a sample, as a multiple of its duration.

Kernels that use no threads on a busy host would take the other side's sample for other work: the processors must be
idle most of the time between two samples of a side.
"""
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


@dataclass(slots=True)
class Sides:
    """The two processes of a pair. pair: its number; None beside the pairs. cpus: those of both; empty: any."""

    executors: Mapping[str, LocalExecutor]
    pair: int | None = None
    cpus: frozenset[int] = frozenset()
    threads: int = 1
    rng: random.Random = field(default_factory=random.Random)


@dataclass(slots=True)
class Held:
    """A job in the two processes of a pair: its outcomes so far, and the times and limits of its turns.

    spent_s: seconds of the turns of each side. busy: share of the CPUs that other processes used meanwhile.
    """

    sides: Sides
    taken: dict[str, BlockOutcome]
    times: Times = field(default_factory=Times)
    limits: Limits = FIRST
    spent_s: float = 0.0
    busy: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether neither side has failed so far."""
        return all(one.status is Status.OK for one in self.taken.values())


def pairs_at_once(records: Sequence[JobRecord], threads: int) -> int:
    """Number of pairs that prepare and check at the same time, each on CPUs of its own, if all fit in memory."""
    if records[0].job.subject.device != "cpu":
        return 1
    largest = max(need_bytes(record.job.trial["case"]["shapes"].values()) for record in records)
    fitting = int(SHARE * free_memory_bytes()) // max(largest, 1)
    return max(1, min(MOST_AT_ONCE, len(available_cpus()) // threads, fitting))


def measure_pairs(pool: WorkerPool, records: Sequence[JobRecord], pairs: Sequence[int], effort: Effort) -> None:
    """Add pairs to each record, each in two processes; records for which no time is left get none.

    All pairs bind, call and check a job at the same time, and then take its samples one after the other: nothing else
    runs beside a sample, nor beside checks of times.
    """
    rng = random.Random()  # noqa: S311  no secret
    device = records[0].job.subject.device
    with (
        pool.clock.block(len(SIDES) * len(pairs)),
        ThreadPoolExecutor(len(pairs)) as threads,
        _open(pool, device, effort.threads, rng, pairs) as opened,
    ):
        for record in rng.sample(records, len(records)):
            if effort.is_over():
                break
            held = list(threads.map(partial(_hold_both, pool, record), opened))
            for one in held:
                pool.clock.add_shared(one.taken.values(), len(held))
                if one.is_right:
                    _take_turns(record, one, effort)
                    pool.clock.add({MEASURING: len(SIDES) * one.spent_s})
            is_timed = any(one.sides.pair == record.checked_pair for one in held)
            each = map if is_timed else threads.map
            for last, one in zip(each(partial(_check_last, record), held), held, strict=True):
                pool.clock.add_shared(last, 1 if is_timed else len(held))
                extra = {BUSY: one.busy} if effort.threads > 1 else {}
                for side, found in one.taken.items():
                    record.outcomes[side][one.sides.pair or 0] = replace(found, extra={**found.extra, **extra})


def measure_coarse(pool: WorkerPool, records: Sequence[JobRecord], effort: Effort) -> None:
    """Add to each record log ratios of a few sample pairs with all threads, and whether the CPUs were idle."""
    device, threads = records[0].job.subject.device, len(available_cpus())
    rng = random.Random()  # noqa: S311
    with pool.clock.block(len(SIDES), ALL_THREADS), _open(pool, device, threads, rng, [None]) as (sides,):
        for record in records:
            if effort.is_over():
                break
            held = _hold_both(pool, record, sides)
            if held.is_right:
                _take_turns(record, held, replace(effort, side_s=0.0), rounds=COARSE_ROUNDS, rest=COARSE_REST)
                _check_last(record, held)
                base, head = (np.array(held.taken[side].samples_ns) for side in SIDES)
                if base.size and base.size == head.size:
                    record.coarse.append(tuple(np.log(head / base).tolist()))
                    record.is_crowded = record.is_crowded or held.busy > MOST_BUSY


@contextmanager
def _open(
    pool: WorkerPool, device: str, threads: int, rng: random.Random, pairs: Sequence[int | None]
) -> Iterator[list[Sides]]:
    """Start all processes of some pairs at the same time, in random order, each pair on CPUs of its own."""
    on_cpu = device == "cpu"
    preload = sorted(pool.imported) if on_cpu else pool.preload
    paddings = ["x" * rng.randrange(MOST_PADDING) for _ in pairs]
    cpus = rng.sample(sorted(available_cpus()), len(available_cpus()))
    executors: dict[tuple[int, str], LocalExecutor] = {}
    with ExitStack() as stack, stopping((), executors.values()):
        with pool.clock.starting():
            for place, side in rng.sample([*product(range(len(pairs)), SIDES)], len(pairs) * len(SIDES)):
                environment = {PADDING: paddings[place]}
                if on_cpu:
                    environment |= huge_pages() | dict.fromkeys(THREAD_VARIABLES, str(threads))
                executor = pool.executor(side, preload=preload, environment=environment)
                executors[place, side] = stack.enter_context(executor)
        pool.await_start((side, executor) for (_, side), executor in executors.items())
        yield [
            Sides(
                {side: executors[place, side] for side in SIDES},
                pair,
                frozenset(cpus[place * threads : (place + 1) * threads] if on_cpu else ()),
                threads,
                random.Random(rng.random()),  # noqa: S311
            )
            for place, pair in enumerate(pairs)
        ]
        with pool.clock.starting():
            stack.close()


def _hold_both(pool: WorkerPool, record: JobRecord, sides: Sides, *, may_share: bool = True) -> Held:
    """Bind, call and check the job in both processes, on buffers that they share if their inputs are the same."""
    found: dict[str, BlockOutcome] = {}
    is_shared = may_share and not _has_other_inputs(record, found)
    with _memory_file(record) if is_shared else nullcontext() as memory:
        for side in sides.rng.sample(SIDES, len(SIDES)):
            executor = sides.executors[side]
            executor.limits = _first_limits(record, side, sides.pair)
            if sides.cpus:
                executor.pin(sides.cpus)
            plain = pool.run(executor, side, record, sides.pair, hold=True, late_checks=True, memory=memory)
            found[side] = outcome_from(plain, **{METHOD: INTERLEAVED})
    if is_shared and _has_other_inputs(record, found):  # the second side has overwritten those of the first
        return _hold_both(pool, record, sides, may_share=False)
    return Held(sides, found)


def _has_other_inputs(record: JobRecord, found: Mapping[str, BlockOutcome]) -> bool:
    """Whether the two trees are known to draw different inputs for the case."""
    digests = {record.fingerprint(side)[0] for side in SIDES} | {one.fingerprint[0] for one in found.values()}
    return len(digests - {""}) > 1


def _first_limits(record: JobRecord, side: str, pair: int | None) -> Limits:
    """Limits of the sample with which a process begins: one call where earlier pairs have told its duration."""
    is_known = pair is not None and usual_s(record, side) is not None
    return ONE_CALL if is_known and record.job.subject.device == "cpu" else FIRST


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


def _take_turns(record: JobRecord, held: Held, effort: Effort, *, rounds: int = MOST_ROUNDS, rest: float = 0.0) -> None:
    """Let both sides take samples in turn, until there are enough or one fails.

    rest: pause after each sample as a multiple of its duration.
    """
    sides, started = held.sides, monotonic()
    held.limits = turn_limits(record, held.taken, is_known=rounds == MOST_ROUNDS)
    with busy_share(sides.cpus, sides.executors.values()) as busy:
        count = 0
        while held.is_right and (
            count < LEAST_ROUNDS
            or (count < rounds and not is_enough(held.times, monotonic() - started, effort, rounds))
        ):
            # each side is first once in two rounds
            orders = sides.rng.sample((SIDES, SIDES[::-1]), 2)
            for side in (side for order in orders for side in order if held.is_right):
                begun = monotonic()
                found = _sampled(record, held, side)
                if rest:
                    sleep(rest * (monotonic() - begun))
                if found.status is not Status.OK or found.measurement is None:
                    held.taken[side] = found
                else:
                    held.times.add(side, found)
            count += len(orders)
    held.spent_s, held.busy = (monotonic() - started) / len(SIDES), busy()


def _sampled(record: JobRecord, held: Held, side: str, *, is_last: bool = False) -> BlockOutcome:
    plain = held.sides.executors[side].sample(record.job.trial, held.limits, is_last=is_last)
    return outcome_from(plain, **{METHOD: INTERLEAVED})


def _check_last(record: JobRecord, held: Held) -> list[BlockOutcome]:
    """Take a last sample of each side, with the checks after it; outcomes get their samples, or their failure."""
    if not held.is_right:
        return []
    times = held.times.undisturbed()
    found = {side: _sampled(record, held, side, is_last=True) for side in SIDES}
    for side, last in found.items():
        held.taken[side] = _joined(held.taken[side], last, times[side], held.spent_s)
    return [*found.values()]


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
