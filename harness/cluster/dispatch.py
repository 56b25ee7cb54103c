"""Dispatch of cases to the members of a cluster; results are yielded as they arrive.

The unit is a case on a device: its implementations run one after the other on one member, so that they are compared on
one GPU. A case's reference is computed by a CPU member of the same host, while its GPU runs the previous case. A case
whose member is lost is sent to another one once, then reported as an error of each trial.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opgauge.harness.case.casejson import case_to_json
from opgauge.harness.cluster import member
from opgauge.harness.errors import WorkerError
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Ceilings, Environment, Result, Status, Trial, from_json, to_json
from opgauge.ops import find_op
from opgauge.ops._core.op import tensor_bytes

if TYPE_CHECKING:
    from distributed import Client, Future

REFERENCE = "reference"
"""Resource of members that compute references; measuring members have one named after their backend."""
AHEAD = 2
"""Cases per device of a host whose references are computed before they are sent."""
TRIES = 2
"""Most attempts per case."""
POLL_S = 0.5
"""Seconds between polls of the scheduler."""


class SchedulerLostError(WorkerError):
    """The scheduler of the cluster no longer answers."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A result with its origin: environment and achieved peaks of the member, its host."""

    result: Result
    environment: Environment
    ceilings: Ceilings | None
    host: str


@dataclass(slots=True)
class Task:
    """A case in flight. weight: expected cost, for the order; host: where it was sent."""

    trials: Sequence[Trial]
    weight: float
    tries: int = 0
    host: str = ""
    reference: Future | None = None

    @property
    def backend(self) -> str:
        """Backend of its trials, which is the resource that it needs."""
        return self.trials[0].backend


@dataclass(slots=True)
class Host:
    """Members of one host by resource, and its number of cases."""

    name: str
    slots: dict[str, int] = field(default_factory=dict)
    tasks: int = 0


def tasks_of(trials: Iterable[Trial]) -> list[Task]:
    """A task per case and device, the longest first: short ones fill the end of a run."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.device, trial.case.id), []).append(trial)
    found = [Task(tuple(group), _weight(group)) for group in groups.values()]
    return sorted(found, key=lambda task: -task.weight)


def dispatch(
    client: Client,
    trials: Iterable[Trial],
    limits: Limits,
    *,
    timeout_s: float = 120.0,
    references: bool = True,
    ceilings: bool = False,
    tell: Callable[[str], Any] = lambda _: None,
) -> Iterator[Measured]:
    """Results as they arrive.

    GPU cases come before CPU cases, since a CPU is not timed beside GPU work on its host. ceilings: measure
    achieved peaks with the first case of each host.

    Raises SchedulerLostError if the scheduler is gone, VersionMismatchError for a member with other code,
    WorkerError if no member has a requested device. All results yielded until then are complete.
    """
    tasks = tasks_of(trials)
    for backend in sorted({task.backend for task in tasks}, key=lambda name: name == "cpu"):
        wanted = deque(task for task in tasks if task.backend == backend)
        yield from _Dispatcher(client, limits, timeout_s, tell, references=references, ceilings=ceilings).run(wanted)


class _Dispatcher:
    """Dispatch of one backend's tasks."""

    def __init__(
        self,
        client: Client,
        limits: Limits,
        timeout_s: float,
        tell: Callable[[str], Any],
        *,
        references: bool,
        ceilings: bool,
    ) -> None:
        self.client, self.limits, self.timeout_s, self.tell = client, to_json(limits), timeout_s, tell
        self.references = references
        self.asked_ceilings: set[str] | None = set() if ceilings else None
        self.running: dict[Future, Task] = {}
        self.lost: list[Measured] = []

    def run(self, waiting: deque[Task]) -> Iterator[Measured]:
        """Send tasks while devices are free, and collect results."""
        backend = waiting[0].backend
        if not any(host.slots.get(backend) for host in self._hosts().values()):
            msg = f"no member of the cluster has a device for {backend}: start one with `opgauge cluster worker`"
            raise WorkerError(msg)
        try:
            while waiting or self.running:
                hosts = self._hosts()
                self._send(waiting, hosts)
                self._recall(waiting, hosts)
                for future in self._finished():
                    yield from self._collect(future, waiting)
                yield from self.lost
                self.lost.clear()
        finally:
            with suppress(Exception):
                self.client.cancel(list(self.running))

    def _send(self, waiting: deque[Task], hosts: Mapping[str, Host]) -> None:
        """Send a task to every free device, and references of the following tasks."""
        for host in hosts.values():
            while waiting and host.slots.get(waiting[0].backend, 0) > host.tasks:
                task = next((one for one in waiting if one.host in {"", host.name}), waiting[0])
                waiting.remove(task)
                if task.host != host.name:
                    task.host, task.reference = host.name, None
                task.tries += 1
                host.tasks += 1
                self.running[self._submit(task)] = task
        if self.references:
            self._prefetch(waiting, [host for host in hosts.values() if host.slots.get(REFERENCE)])

    def _prefetch(self, waiting: deque[Task], hosts: Sequence[Host]) -> None:
        for host in hosts:
            ready = sum(task.host == host.name for task in waiting)
            for task in waiting if host.slots.get(waiting[0].backend if waiting else "") else ():
                if ready >= AHEAD * host.slots[task.backend]:
                    break
                if not task.host and not task.tries:
                    task.host, ready = host.name, ready + 1
                    task.reference = self.client.submit(
                        member.compute_reference,
                        case_to_json(task.trials[0].case),
                        key=f"reference-{_unique(task)}",
                        resources={REFERENCE: 1},
                        **_at(host.name),
                    )

    def _submit(self, task: Task) -> Future:
        return self.client.submit(
            _alone if task.reference is None else _after_reference,
            task.reference,
            [to_json(trial) for trial in task.trials],
            self.limits,
            member.code_digest(),
            key=_unique(task),
            resources={task.backend: 1},
            timeout_s=self.timeout_s,
            ceilings=self._asks_ceilings(task.host),
            **_at(task.host),
        )

    def _asks_ceilings(self, host: str) -> bool:
        """Whether this is the first task of a host, which measures its achieved peaks."""
        if self.asked_ceilings is None or host in self.asked_ceilings:
            return False
        self.asked_ceilings.add(host)
        return True

    def _recall(self, waiting: deque[Task], hosts: Mapping[str, Host]) -> None:
        """Take back tasks of hosts that have no member left for them."""
        for task in waiting:
            if task.host and task.host not in hosts:
                task.host, task.reference = "", None
        for future, task in list(self.running.items()):
            there = hosts.get(task.host)
            if (there is None or not there.slots.get(task.backend)) and not future.done():
                self.client.cancel([future])
                del self.running[future]
                self._again(task, waiting, "its host has no member left")

    def _finished(self) -> list[Future]:
        """Tasks that ended, after a short wait; raises SchedulerLostError if the scheduler is gone."""
        from distributed import wait

        lost = None
        if self._is_connected():
            try:
                with self.client.as_current():
                    wait(list(self.running), timeout=POLL_S, return_when="FIRST_COMPLETED")
            except TimeoutError:
                pass
            except Exception as error:  # noqa: BLE001  futures are cancelled, in words of the version of dask
                lost = error
        if lost is not None or not self._is_connected():
            msg = "the scheduler of the cluster is gone; finished results are stored, --resume measures the rest"
            raise SchedulerLostError(msg) from lost
        return [future for future in self.running if future.done()]

    def _is_connected(self) -> bool:
        communication = self.client.scheduler_comm
        return self.client.status == "running" and communication is not None and not communication.comm.closed()

    def _collect(self, future: Future, waiting: deque[Task]) -> Iterator[Measured]:
        task = self.running.pop(future)
        task.reference = None
        try:
            found = future.result()
        except member.VersionMismatchError:
            raise
        except Exception as error:  # noqa: BLE001  whatever becomes of a process on another machine
            if not self._is_connected():
                self.running[future] = task
                self._finished()
            self._again(task, waiting, f"{type(error).__name__}: {str(error).partition('.')[0]}")
            return
        environment = from_json(Environment, found["environment"])
        reached = from_json(Ceilings, found["ceilings"]) if found["ceilings"] else None
        for result in found["results"]:
            yield Measured(from_json(Result, result), environment, reached, found["host"])

    def _again(self, task: Task, waiting: deque[Task], why: str) -> None:
        """Queue a lost task once more; the second time, report an error of each of its trials."""
        case = task.trials[0].case
        if task.tries < TRIES:
            self.tell(f"{case.op} {case.name} was lost on {task.host}: sent again ({why})")
            task.host, task.reference = "", None
            waiting.appendleft(task)
            return
        reason = f"its worker was lost {TRIES} times, at last on {task.host}: {why}"
        self.lost += [_lost(trial, reason) for trial in task.trials]

    def _hosts(self) -> dict[str, Host]:
        """Members by host, as the scheduler knows them, with their tasks."""
        hosts: dict[str, Host] = {}
        for worker in self.client.scheduler_info(n_workers=-1)["workers"].values():
            host = hosts.setdefault(worker["host"], Host(worker["host"]))
            for resource, count in worker["resources"].items():
                host.slots[resource] = host.slots.get(resource, 0) + int(count)
        for task in self.running.values():
            if task.host in hosts:
                hosts[task.host].tasks += 1
        return hosts


def _unique(task: Task) -> str:
    trial = task.trials[0]
    return f"{trial.case.id}-{trial.device}-{task.tries}-{random.getrandbits(32):x}"


def _at(host: str) -> dict[str, Any]:
    return {"workers": [host], "allow_other_workers": False, "pure": False}


def _after_reference(shared: bool, *arguments: Any, **more: Any) -> dict[str, Any]:  # noqa: FBT001  a task's result
    return member.run_case(*arguments, shared=bool(shared), **more)


def _alone(_: None, *arguments: Any, **more: Any) -> dict[str, Any]:
    return member.run_case(*arguments, shared=False, **more)


def _lost(trial: Trial, reason: str) -> Measured:
    work = find_op(trial.case.op).work(trial.case.resolved, trial.case.params)
    result = Result(trial, Status.ERROR, reason, bytes=work.bytes, flops=work.flops)
    return Measured(result, Environment({}, {}), None, "")


def _weight(trials: Sequence[Trial]) -> float:
    """Bytes of a case times the number of implementations, plus a constant per case."""
    shapes = trials[0].case.resolved
    return (tensor_bytes(shapes.inputs) + tensor_bytes(shapes.outputs) + (1 << 20)) * len(trials)
