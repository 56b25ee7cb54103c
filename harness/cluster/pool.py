"""Pairs of the gate over a cluster: all pairs of a case are measured by one member, both sides on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from opgauge.harness.cluster import member
from opgauge.harness.cluster.tasks import Task, device_count, members_with, run_tasks
from opgauge.harness.cluster.trees import provide_trees
from opgauge.harness.counting import counted
from opgauge.harness.errors import WorkerError
from opgauge.harness.gate.clock import Clock
from opgauge.harness.gate.pairs import Batch, PairPlan, SpreadPool, Tell, measure_batch
from opgauge.harness.gate.pool import MOST_LOOKING, WorkerPool
from opgauge.harness.gate.record import SIDES, BlockOutcome
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import from_json
from opgauge.harness.result.result import Environment, Profile, Status
from opgauge.harness.run.tree import Tree
from opgauge.harness.worker import protocol
from opgauge.ops import Device

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class PoolOptions:
    """Arguments of a member's pool; see `WorkerPool`. trees: side and tree."""

    trees: tuple[tuple[str, Tree], ...]
    timeout_s: float
    threads: int | None
    memory_bytes: int | None
    checking_processes: int


class ClusterPool(SpreadPool):
    """A pool whose processes run on the members of a cluster, as many at once as there are devices.

    Verdicts rest on pairs of several devices together, so these have to be alike: raises WorkerError where the members'
    hardware or software differs, and TreeError where a member cannot have the trees.
    """

    def __init__(
        self,
        client: Client,
        device: str,
        trees: Mapping[str, Tree],
        *,
        timeout_s: float = 120.0,
        threads: int | None = None,
        memory_bytes: int | None = None,
        tell: Tell = lambda _: None,
    ) -> None:
        super().__init__(trees, timeout_s=timeout_s, threads=threads, memory_bytes=memory_bytes)
        self._client, self._backend, self._lost = client, Device.parse(device).backend, tell
        self.devices = device_count(client, self._backend)
        addresses = members_with(client, self._backend)
        self.environment = common_environment(client, addresses, device)
        provide_trees(client, addresses, {tree.path for tree in trees.values()})
        checking = max(1, MOST_LOOKING // self.devices)
        self._options = PoolOptions(tuple(trees.items()), timeout_s, threads, memory_bytes, checking)

    def prepare(self, sides: Sequence[str], preload: Sequence[str] | None = None) -> None:
        """Start nothing: this process's host runs no kernel, and members start theirs."""

    def ask(self, side: str, requests: Iterable[protocol.Request]) -> list[Any]:
        """Answers of the tree of a side on a member; raises as `WorkerPool.ask`."""
        found: list[Any] = self._call("inventory", ask_tree, side, tuple(requests))
        return found

    def ceilings(self, devices: Iterable[str]) -> dict[str, Ceilings]:
        """Achieved peaks of one member's device, which stand for all: their devices are alike."""
        wanted = list(devices)
        missing = [device for device in wanted if device not in self._ceilings]
        if missing:
            self._ceilings |= self._call("ceilings", measure_ceilings, missing)
        return {device: self._ceilings[device] for device in wanted}

    def profile(self, side: str, trials: Iterable[Mapping[str, Any]]) -> list[Profile]:
        """Kernel lists of trials, from a member that times nothing meanwhile."""
        found: list[Profile] = self._call("profile", profile_trials, side, list(trials))
        return found

    def measure_batches(self, batches: Iterable[Batch], plan: PairPlan, tell: Tell) -> None:
        """Measure each batch on one device; a batch that is lost twice fails with the reason."""
        wanted = list(batches)
        # clocks of unlike hosts share no origin but the calendar's
        end = None if plan.end is None else time() + plan.end - monotonic()
        tasks = [
            Task(
                f"gate/{'+'.join(sorted({one.job.subject.op for one in batch.records}))}",
                self._backend,
                measure_there,
                (self._options, batch, plan, end, number),
                float(len(batch.records) * max(batch.pairs, 1)),
            )
            for number, batch in enumerate(wanted)
        ]
        for count, outcome in enumerate(run_tasks(self._client, tasks, self._lost, references=False), 1):
            batch = wanted[outcome.task.arguments[-1]]
            tell(f"{count} of {counted(len(wanted), 'batch')} on {counted(self.devices, 'device')}")
            if outcome.lost:
                _fail(batch, outcome.lost)
                continue
            records, clock = outcome.value
            for record, found in zip(batch.records, records, strict=True):
                record.outcomes, record.seen = found.outcomes, found.seen
                record.coarse, record.is_crowded = found.coarse, found.is_crowded
            self._add(clock)

    def _add(self, clock: Clock) -> None:
        """Add the mean over the devices, so that the parts of the time sum to the wall time."""
        self.clock.blocks += clock.blocks
        self.clock.blocks_s += clock.blocks_s / self.devices
        self.clock.add({name: spent / self.devices for name, spent in clock.phases_s.items()})

    def _call(self, label: str, function: Callable[..., Any], *arguments: Any) -> Any:
        task = Task(f"gate/{label}", self._backend, function, (self._options, *arguments))
        (outcome,) = run_tasks(self._client, [task], self._lost, references=False)
        if outcome.lost:
            raise WorkerError(outcome.lost)
        return outcome.value


def ask_tree(options: PoolOptions, side: str, requests: Sequence[protocol.Request]) -> list[Any]:
    """On a member: answers of the tree of a side."""
    return _pool(options).ask(side, requests)


def measure_ceilings(options: PoolOptions, devices: Sequence[str]) -> dict[str, Ceilings]:
    """On a member: achieved peaks of its devices."""
    return _pool(options).ceilings(devices)


def profile_trials(options: PoolOptions, side: str, trials: Sequence[Mapping[str, Any]]) -> list[Profile]:
    """On a member: kernel lists of trials."""
    return _pool(options).profile(side, trials)


def measure_there(
    options: PoolOptions, batch: Batch, plan: PairPlan, end: float | None, number: int
) -> tuple[list[Any], Clock]:
    """On a member: the records of a batch with their new pairs, and the time that these took.

    end: seconds since 1970 at which measuring stops. number: position of the batch.
    """
    del number
    pool = _pool(options)
    before = pool.clock.now()
    here = replace(plan, end=None if end is None else monotonic() + end - time())
    measure_batch(pool, batch, here, lambda _: None)
    pool.prepare(())  # ends what waits for pairs that a batch decided early does not need
    pool.forget_inputs()
    return batch.records, pool.clock.since(before)


@cache
def _pools() -> dict[PoolOptions, WorkerPool]:
    return {}


def _pool(options: PoolOptions) -> WorkerPool:
    """The pool of this member; a pool with other options is closed, so that one remains."""
    known = _pools()
    if options not in known:
        close()
        known[options] = WorkerPool(
            dict(options.trees),
            timeout_s=options.timeout_s,
            threads=options.threads,
            memory_bytes=options.memory_bytes,
            checking_processes=options.checking_processes,
        ).__enter__()
    return known[options]


def close() -> None:
    """Close this member's pool and remove its folder."""
    for pool in _pools().values():
        with suppress(OSError):
            pool.__exit__(None, None, None)
    _pools().clear()


def _fail(batch: Batch, reason: str) -> None:
    """Record a lost batch as an error of both sides."""
    for record in batch.records:
        for side in SIDES if record.job.is_paired else record.job.sides:
            record.outcomes[side].setdefault(record.attempts, BlockOutcome(Status.ERROR, reason))


def common_environment(client: Client, addresses: Sequence[str], device: str) -> Environment:
    """The environment of the members; raises WorkerError where what decides comparability differs."""
    found = client.run(member.identity, device, workers=list(addresses))
    environments = [(one["host"], from_json(Environment, one["environment"])) for one in found.values()]
    (host, first), *others = environments
    for other, environment in others:
        ours, theirs = first.hard, environment.hard
        keys = sorted(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
        if keys:
            facts = "; ".join(f"{key}: {ours.get(key)} and {theirs.get(key)}" for key in keys[:3])
            msg = f"members on {host} and {other} are unlike, and verdicts need equal devices ({facts})"
            raise WorkerError(msg)
    return first
