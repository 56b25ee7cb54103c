"""Runs spread over a cluster: results are stored as they arrive, those of unlike devices in separate runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opgauge.harness.cluster.dispatch import Measured, SchedulerLostError, dispatch
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Environment, Result, Trial
from opgauge.harness.store import Store

if TYPE_CHECKING:
    from distributed import Client


class Runs:
    """Runs by hard environment entries: one per kind of device, begun when its first result arrives.

    first: a run that exists already, with its environment; results of the same kind are stored there.
    """

    def __init__(self, store: Store, command: str, first: tuple[str, Environment] | None = None) -> None:
        self._store, self._command = store, command
        self._ids: dict[str, str] = {} if first is None else {_kind(first[1]): first[0]}
        self._with_ceilings = {first[0]} if first and store.ceilings(first[0]) else set()
        self.last = first[0] if first else ""

    def of(self, environment: Environment) -> str:
        """The id of the run for results of this environment; an unknown one (a lost worker's) gets the latest run."""
        if not environment.hard and self.last:
            return self.last
        kind = _kind(environment)
        if kind not in self._ids:
            self._ids[kind] = self._store.begin_run(environment, command=self._command)
        self.last = self._ids[kind]
        return self.last

    def add(self, measured: Measured) -> None:
        """Store a result, and the achieved peaks of its device with the first of a run."""
        run = self.of(measured.environment)
        if measured.ceilings is not None and run not in self._with_ceilings:
            self._with_ceilings.add(run)
            self._store.add_ceilings(run, measured.ceilings)
        self._store.add_result(run, measured.result)

    @property
    def ids(self) -> list[str]:
        """The ids of all runs."""
        return list(self._ids.values())


def run_spread(
    client: Client,
    trials: Sequence[Trial],
    runs: Runs,
    store: Store,
    limits: Limits,
    *,
    timeout_s: float,
    ceilings: bool = True,
    advance: Callable[[Result], Any],
    tell: Callable[[str], Any],
) -> None:
    """Measure `trials` on the members of a cluster and store each result.

    Raises KeyboardInterrupt and SchedulerLostError after the runs are marked as interrupted; stored results remain.
    """
    try:
        for measured in dispatch(client, trials, limits, timeout_s=timeout_s, ceilings=ceilings, tell=tell):
            runs.add(measured)
            advance(measured.result)
    except (KeyboardInterrupt, SchedulerLostError):
        for run in runs.ids:
            store.finish_run(run, "interrupted")
        raise
    for run in runs.ids:
        store.finish_run(run)


def status(client: Client) -> list[Mapping[str, Any]]:
    """A line per member: host, resources, running and waiting tasks, memory."""
    found: list[Mapping[str, Any]] = []
    for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
        metrics = worker.get("metrics", {})
        found.append(
            {
                "address": address,
                "host": worker["host"],
                "offers": ", ".join(f"{count:g} {name}" for name, count in worker["resources"].items()),
                "running": metrics.get("executing", 0) or metrics.get("task_counts", {}).get("executing", 0),
                "waiting": metrics.get("ready", 0) or metrics.get("task_counts", {}).get("ready", 0),
                "memory_bytes": metrics.get("memory", 0),
            }
        )
    return found


def _kind(environment: Environment) -> str:
    return json.dumps(dict(environment.hard), sort_keys=True)
