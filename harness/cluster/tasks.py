"""Dispatcher of tasks: sends each to a free device of a cluster, and sends a lost one to another member once."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from socket import gethostname
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from opgauge.harness.cluster import member
from opgauge.harness.cluster.status import TaskQueue, publish
from opgauge.harness.errors import HarnessError, WorkerError

if TYPE_CHECKING:
    from distributed import Client, Future

REFERENCE = "reference"
"""Resource of members that compute references; members that measure have a resource named after their backend."""
PREFETCHED = 2
"""Tasks per device of a host whose references are ready before it is free; for GPUs, beside those being computed."""
PER_LIGHT = 4
"""Members that compute references for each light task among those: a GPU takes these while heavy ones are computed."""
TRIES = 2
"""Members that a task is sent to before it is reported as lost."""
RESTART_S = 120.0
"""Longest wait for a killed member to start again."""
POLL_S = 0.5
"""Longest wait for a task to end before the members are listed again."""
PUBLISH_S = 2.0
"""Least time between two reports of the queue."""


class SchedulerLostError(WorkerError):
    """The scheduler of the cluster no longer answers."""


@dataclass(slots=True)
class Task:
    """A function call for one device of a cluster.

    label: name in messages. backend: resource that the call needs. function, arguments: importable on the member, and
    picklable. weight: expected cost, for the order. case: a case as JSON whose reference a CPU member of the host
    computes in advance; `function` then gets `shared=True`. more: keyword arguments. is_light: its reference is
    computed before those of heavier ones.
    """

    label: str
    backend: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    weight: float = 0.0
    case: Mapping[str, Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 0
    host: str = ""
    reference: Future | None = None
    is_light: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The value of a finished task, or why it was lost; `lost` is empty for a finished task."""

    task: Task
    value: Any = None
    lost: str = ""


@dataclass(slots=True)
class _Host:
    """Members of one host by resource, the number of tasks that it runs, and whether one of these was lost before."""

    slots: dict[str, int] = field(default_factory=dict)
    tasks: int = 0
    is_suspect: bool = False


def run_tasks(
    client: Client, tasks: Iterable[Task], tell: Callable[[str], Any] = lambda _: None, *, references: bool = True
) -> Iterator[Outcome]:
    """Outcomes of the tasks as they end, the heaviest tasks first.

    GPU tasks come before CPU tasks, because a CPU is not timed beside GPU work on its host. Raises SchedulerLostError
    when the scheduler is gone, VersionMismatchError for a member of other code, WorkerError where no member has a
    device that is requested, and any HarnessError but WorkerError that a function raises. Earlier outcomes are final.
    """
    ordered = sorted(tasks, key=lambda task: -task.weight)
    for backend in sorted({task.backend for task in ordered}, key=lambda name: name == "cpu"):
        wanted = deque(task for task in ordered if task.backend == backend)
        yield from _Dispatcher(client, tell, references=references).run(wanted)


def device_count(client: Client, backend: str) -> int:
    """Devices of a backend that the members of a cluster offer.

    Waits for a member of this process's own cluster that starts again. Raises WorkerError where no member has a device.
    """
    end = monotonic() + RESTART_S
    while True:
        found = sum(host.slots.get(backend, 0) for host in _list_hosts(client).values())
        if found:
            return found
        if not _may_return(client, backend) or monotonic() > end:
            msg = f"no member of the cluster has a device for {backend}: start one with `opgauge cluster worker`"
            raise WorkerError(msg)
        sleep(POLL_S)


def _may_return(client: Client, backend: str) -> bool:
    """Whether a member with such a device is part of a cluster that this process started."""
    members = getattr(client.cluster, "worker_spec", {}).values()
    return any(one["options"].get("resources", {}).get(backend) for one in members)


class _Dispatcher:
    """Sends the tasks of one backend."""

    def __init__(self, client: Client, tell: Callable[[str], Any], *, references: bool) -> None:
        self.client, self.tell, self.references = client, tell, references
        self.key, self.finished, self.published = f"{random.getrandbits(48):x}", 0, 0.0
        self.running: dict[Future, Task] = {}
        self.lost: list[Outcome] = []

    def run(self, waiting: deque[Task]) -> Iterator[Outcome]:
        """Send tasks while there is room, and collect."""
        device_count(self.client, waiting[0].backend)
        try:
            while waiting or self.running:
                hosts = self._hosts()
                if waiting:
                    self._send(waiting, hosts)
                self._recall(waiting, hosts)
                self._publish(len(waiting))
                for future in self._finished():
                    yield from self._collect(future, waiting)
                yield from self.lost
                self.lost.clear()
        finally:
            with suppress(Exception):
                self.client.cancel(list(self.running))
                publish(self.client, self.key, None)

    def _send(self, waiting: deque[Task], hosts: Mapping[str, _Host]) -> None:
        """Send a task to every free device, and before that the references of those that come later.

        A task that was lost has its host to itself: if it ends members, no other task is lost twice beside it.
        """
        for name, host in hosts.items() if self.references else ():
            if host.slots.get(REFERENCE):
                self._prefetch(waiting, name, host)
        for name, host in hosts.items():
            while waiting and host.slots.get(waiting[0].backend, 0) > host.tasks and not host.is_suspect:
                task = _next(waiting, name)
                if task.tries and host.tasks:
                    break
                waiting.remove(task)
                host.is_suspect = task.tries > 0
                if task.host != name:
                    task.host, task.reference = name, None
                task.tries += 1
                host.tasks += 1
                self.running[self._submit(task)] = task

    def _prefetch(self, waiting: deque[Task], name: str, host: _Host) -> None:
        """Assign tasks to a host and compute their references there: the next ones, and some of the lightest.

        The last ones are left for free devices. A CPU is timed beside few other processes.
        """
        ahead = [task for task in waiting if task.host == name]
        devices, light = host.slots.get(waiting[0].backend, 0), sum(task.is_light for task in ahead)
        most, most_light = PREFETCHED * devices, 0
        if waiting[0].backend != "cpu":
            most, most_light = most + host.slots[REFERENCE], host.slots[REFERENCE] // PER_LIGHT
        if len(ahead) >= most:
            return
        given = islice(waiting, max(0, len(waiting) - (devices - host.tasks)))
        free = deque(task for task in given if task.case is not None and not task.host and not task.tries)
        for _ in range(min(most - len(ahead), len(free))):
            is_light = light < most_light
            task = free.pop() if is_light else free.popleft()
            light += is_light
            task.host, task.is_light = name, is_light
            task.reference = self.client.submit(
                member.compute_reference,
                task.case,
                key=f"reference-{_unique(task)}",
                resources={REFERENCE: 1},
                **_at(name),
            )

    def _submit(self, task: Task) -> Future:
        return self.client.submit(
            member.call,
            task.reference,
            member.planning_state(),
            task.function,
            task.arguments,
            dict(task.more),
            key=_unique(task),
            resources={task.backend: 1},
            **_at(task.host),
        )

    def _recall(self, waiting: deque[Task], hosts: Mapping[str, _Host]) -> None:
        """Take back the tasks of hosts that have no member left for them."""
        for task in waiting:
            if task.host and task.host not in hosts:
                task.host, task.reference = "", None
        for future, task in list(self.running.items()):
            there = hosts.get(task.host)
            if (there is None or not there.slots.get(task.backend)) and not future.done():
                self.client.cancel([future])
                del self.running[future]
                self._retry(task, waiting, "its host has no member left")

    def _finished(self) -> list[Future]:
        """Tasks that ended, after a short wait; raises SchedulerLostError when the scheduler is gone."""
        from distributed import wait

        lost = None
        if self._is_connected():
            try:
                with self.client.as_current():
                    wait(list(self.running), timeout=POLL_S, return_when="FIRST_COMPLETED")
            except TimeoutError:
                pass
            except Exception as error:  # noqa: BLE001  the class depends on the version of dask
                lost = error
        if lost is not None or not self._is_connected():
            msg = "the scheduler of the cluster is gone"
            raise SchedulerLostError(msg) from lost
        return [future for future in self.running if future.done()]

    def _is_connected(self) -> bool:
        communication = self.client.scheduler_comm
        return self.client.status == "running" and communication is not None and not communication.comm.closed()

    def _collect(self, future: Future, waiting: deque[Task]) -> Iterator[Outcome]:
        task = self.running.pop(future)
        task.reference = None
        try:
            value = future.result()
        except Exception as error:
            if isinstance(error, HarnessError) and not isinstance(error, WorkerError):
                raise
            if not self._is_connected():
                self.running[future] = task
                self._finished()
            self._retry(task, waiting, f"{type(error).__name__}: {str(error).partition('.')[0]}")
            return
        finally:
            # Exceptions of timeouts hold it in cycles: a value that is still wanted is computed anew for a lost member.
            future.release()
        self.finished += 1
        yield Outcome(task, value)

    def _publish(self, waiting: int) -> None:
        """Tell the scheduler how many tasks wait in this process, which alone knows."""
        if monotonic() - self.published < PUBLISH_S or not self._is_connected():
            return
        self.published = monotonic()
        queue = TaskQueue(command_name(), gethostname(), waiting, len(self.running), self.finished)
        with suppress(Exception):  # what is lost with a scheduler is noticed where tasks end
            publish(self.client, self.key, queue)

    def _retry(self, task: Task, waiting: deque[Task], why: str) -> None:
        """Queue a lost task once more; report it the second time."""
        if task.tries < TRIES:
            self.tell(f"{task.label} was lost on {task.host}: sent again ({why})")
            task.host, task.reference = "", None
            waiting.appendleft(task)
            return
        self.lost.append(Outcome(task, lost=f"its worker was lost {TRIES} times, the last time on {task.host}: {why}"))

    def _hosts(self) -> dict[str, _Host]:
        """Members by host, as the scheduler lists them, with the tasks that they run."""
        hosts = _list_hosts(self.client)
        for task in self.running.values():
            if task.host in hosts:
                hosts[task.host].tasks += 1
                hosts[task.host].is_suspect |= task.tries > 1
        return hosts


def _next(waiting: Iterable[Task], host: str) -> Task:
    """The next task for a host: the first one whose reference is there, else a light one while others are computed."""
    here = [task for task in waiting if task.host in {"", host}] or list(waiting)
    first, light = here[0], next((task for task in reversed(here) if task.reference is None), here[0])
    ready = (task for task in here if task.reference is not None and task.reference.done())
    return next(ready, light if first.reference is not None else first)


def members_with(client: Client, resource: str) -> Sequence[str]:
    """Addresses of the members that offer a resource."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [address for address, worker in workers.items() if worker["resources"].get(resource)]


def _list_hosts(client: Client) -> dict[str, _Host]:
    hosts: dict[str, _Host] = {}
    for worker in client.scheduler_info(n_workers=-1)["workers"].values():
        host = hosts.setdefault(worker["host"], _Host())
        for resource, count in worker["resources"].items():
            host.slots[resource] = host.slots.get(resource, 0) + int(count)
    return hosts


def command_name() -> str:
    """The command of this process in a few words, without options: they may hold a password."""
    return " ".join(["opgauge", *(word for word in sys.argv[1:2] if word.isalpha())])


def _unique(task: Task) -> str:
    """A key of its own for every submission; the label in front says in the cluster's status what runs."""
    return f"{task.label}-{task.tries}-{random.getrandbits(48):x}"


def _at(host: str) -> dict[str, Any]:
    return {"workers": [host], "allow_other_workers": False, "pure": False}
