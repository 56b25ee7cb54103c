"""Rounds of the tuner over a cluster: a round runs on one device, with all candidates; several rounds run at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opgauge.harness.cluster.pool import common_environment
from opgauge.harness.cluster.tasks import Task, device_count, members_with, run_tasks
from opgauge.harness.errors import WorkerError
from opgauge.harness.measure import Limits
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.tune.rounds import Json, LocalTuningBench, RoundOrder, RoundOutcome, measure_round
from opgauge.harness.worker import protocol
from opgauge.ops import Device

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class ExecutorOptions:
    """Arguments of a member's executor; see `LocalExecutor`."""

    limits: Limits
    timeout_s: float
    threads: int | None = None
    memory_bytes: int | None = None

    def start(self) -> LocalExecutor:
        """An executor with a fresh process."""
        return LocalExecutor(
            limits=self.limits, timeout_s=self.timeout_s, threads=self.threads, memory_bytes=self.memory_bytes
        )


class ClusterTuningBench:
    """Measures rounds on the devices of a cluster, which have to be alike: one file of values serves them all."""

    def __init__(
        self, client: Client, device: str, options: ExecutorOptions, tell: Callable[[str], Any] = lambda _: None
    ) -> None:
        self._client, self._backend, self._options, self._tell = client, Device.parse(device).backend, options, tell
        self.devices = device_count(client, self._backend)
        self.environment = common_environment(client, members_with(client, self._backend), device)

    def bind(self, trials: Sequence[Json]) -> list[dict[str, Any]]:
        """Bind all trials on one member."""
        (found,) = self._run([Task("tune/bind", self._backend, bind_there, (self._options, list(trials)))])
        answers: list[dict[str, Any]] = found
        return answers

    def measure(self, orders: Sequence[RoundOrder]) -> list[RoundOutcome]:
        """The outcome of each order; raises WorkerError for a round that was lost twice."""
        label = f"tune/{orders[0].parameter}"
        return self._run([Task(label, self._backend, measure_there, (self._options, order)) for order in orders])

    def model(self, device: str) -> str:
        """Model of the members' devices, as their vendor names it."""
        (found,) = self._run([Task("tune/model", self._backend, name_there, (self._options, device))])
        return str(found)

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        values: dict[int, Any] = {}
        for outcome in run_tasks(self._client, tasks, self._tell, references=False):
            if outcome.lost:
                msg = f"{outcome.task.label}: {outcome.lost}"
                raise WorkerError(msg)
            values[id(outcome.task)] = outcome.value
        return [values[id(task)] for task in tasks]


def bind_there(options: ExecutorOptions, trials: Sequence[Json]) -> list[dict[str, Any]]:
    """On a member: names of the tunables that binding each trial reads."""
    return LocalTuningBench(options.start).bind(trials)


def measure_there(options: ExecutorOptions, order: RoundOrder) -> RoundOutcome:
    """On a member: the outcome of a round."""
    return measure_round(options.start, order)


def name_there(options: ExecutorOptions, device: str) -> str:
    """On a member: the model of its device."""
    with closing(options.start()) as executor:
        return str(executor.ask(protocol.NameModel(device)))
