"""Status of a cluster: its members, their tasks, and the commands that wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

METADATA = "opgauge"
"""Key of the scheduler's metadata under which each command publishes its queue."""
STALE_S = 60.0
"""Age beyond which a published queue is that of a command that was killed."""
LOOK_S = 3.0
"""Longest wait for a scheduler."""


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """A worker process of a cluster.

    offers: resources, such as `1 cuda`. running: labels of the tasks that it was given. memory_bytes: of the process.
    """

    name: str
    host: str
    address: str
    offers: str
    running: tuple[str, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """A command that uses the cluster. waiting, running, finished: numbers of its tasks."""

    command: str
    host: str
    waiting: int
    running: int
    finished: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Members by host and name, and the commands that use them."""

    members: tuple[ClusterMember, ...]
    queues: tuple[TaskQueue, ...]

    def as_json(self) -> dict[str, Any]:
        """The state as plain JSON."""
        return asdict(self)

    @property
    def devices(self) -> int:
        """Number of members that time a GPU or a CPU."""
        return sum(member.offers != "1 reference" for member in self.members)


def look(address: str, timeout_s: float = LOOK_S) -> ClusterState:
    """The state of the cluster whose scheduler is at `address`; raises SettingsError where none answers."""
    from opgauge.harness.cluster.local import remote_cluster

    with remote_cluster(address, timeout_s=timeout_s) as client:
        return state_of(client)


def state_of(client: Client) -> ClusterState:
    """The state of the cluster of a client."""
    running = client.processing()
    members = [
        ClusterMember(
            str(worker["name"]),
            worker["host"],
            address,
            ", ".join(f"{count:g} {name}" for name, count in worker["resources"].items()),
            tuple(_label(str(key)) for key in running.get(address, ())),
            int(worker.get("metrics", {}).get("memory", 0)),
        )
        for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()
    ]
    published: Mapping[str, Mapping[str, Any]] = client.get_metadata([METADATA], {})
    queues = [
        TaskQueue(*(entry[name] for name in ("command", "host", "waiting", "running", "finished")))
        for entry in published.values()
        if entry and time() - entry["time"] < STALE_S
    ]
    return ClusterState(tuple(sorted(members, key=lambda one: (one.host, one.name))), tuple(queues))


def publish(client: Client, key: str, queue: TaskQueue | None) -> None:
    """Publish the queue of a command under a key of its own; None: the command has ended."""
    client.set_metadata([METADATA, key], {} if queue is None else {**asdict(queue), "time": time()})


def _label(key: str) -> str:
    """The label of a task: its key without the number of the attempt and the random part."""
    return key.rsplit("-", 2)[0]
