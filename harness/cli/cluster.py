"""`opgauge cluster`: members and state of a cluster that runs are spread over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from opgauge.harness.cli.options import AsJson, command_line

if TYPE_CHECKING:
    from opgauge.harness.case.case import Case
    from opgauge.harness.run.progress import Progress

NOTHING, INTERRUPTED = 5, 130
"""Exit codes: nothing was measured; interrupted."""

cluster = typer.Typer(help="Members and state of a cluster for `opgauge run --cluster`.", no_args_is_help=True)
Scheduler = Annotated[str, typer.Argument(metavar="SCHEDULER", help="Address, such as tcp://host:8786.")]


def run_over(
    cases: Sequence[Case],
    *,
    gpus: str | None,
    scheduler: str | None,
    implementations: Sequence[str] | None,
    devices: Sequence[str] | None,
    url: str,
    resume: str | None,
    budget_s: float,
    timeout_s: float,
    progress: Callable[[int], Progress],
    notify: Callable[[str], None],
) -> int:
    """Measure cases over GPUs of this host or over a cluster, and print each run; returns the exit code."""
    from opgauge.harness.cli.run import report
    from opgauge.harness.cluster.local import local_cluster, member_options, remote_cluster, visible_devices
    from opgauge.harness.cluster.spread import Runs, run_spread
    from opgauge.harness.measure import Limits
    from opgauge.harness.run.runner import plan
    from opgauge.harness.run.session import Session
    from opgauge.harness.store import Store

    if gpus and scheduler:
        msg = "--gpus is for this host, --cluster for a scheduler: give one of them"
        raise typer.BadParameter(msg)
    with Store.open(url) as store:
        found = store.find_run(None if resume == "last" else resume) if resume else None
        finished = store.finished_trials(found.id) if found else set()
        trials = plan(cases, implementations=implementations, devices=devices or ["cuda:0"], finished=finished)
        runs = Runs(store, command_line(sys.argv[1:]), (found.id, found.environment) if found else None)
        opened = (
            remote_cluster(scheduler) if scheduler else local_cluster(member_options(visible_devices(gpus or "all")))
        )
        with opened as client, progress(len(trials)) as shown:
            try:
                run_spread(
                    client,
                    trials,
                    runs,
                    store,
                    Limits(budget_s=budget_s),
                    timeout_s=timeout_s,
                    advance=lambda result: shown.finished(result.trial, result),
                    tell=notify,
                )
            except KeyboardInterrupt:
                return INTERRUPTED
        sessions = [Session(store, run, progress, notify) for run in runs.ids]
        return max((report(store, one, as_json=False, quiet=False) for one in sessions), default=NOTHING)


@cluster.command("status")
def status_(scheduler: Scheduler, as_json: AsJson = False) -> None:
    """Show the members of a cluster: host, devices, what runs, what waits.

    Example: opgauge cluster status tcp://scheduler:8786
    """
    from opgauge.harness.cluster.local import remote_cluster
    from opgauge.harness.cluster.spread import status

    with remote_cluster(scheduler) as client:
        members = status(client)
    if as_json:
        typer.echo(json.dumps(members, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("host", "offers", "running", "waiting", "memory", "address", box=None)
    for one in members:
        memory = f"{one['memory_bytes'] / 2**20:.0f} MiB"
        table.add_row(one["host"], one["offers"], str(one["running"]), str(one["waiting"]), memory, one["address"])
    Console().print(table)


@cluster.command("worker")
def worker_(
    scheduler: Scheduler,
    gpus: Annotated[str, typer.Option("--gpus", help="`all`, numbers separated by commas, or `none`.")] = "all",
    cpu: Annotated[bool, typer.Option("--cpu", help="Time CPU cases here too, one at a time.")] = False,
    references: Annotated[
        int | None, typer.Option("--references", min=0, help="Processes for references; default: one per four CPUs.")
    ] = None,
) -> None:
    """Join a cluster with the devices of this host, until interrupted.

    Starts a process per GPU, pinned to it, and processes that compute references. The scheduler is dask's:
    `dask scheduler --port 8786`.

    Example: opgauge cluster worker tcp://scheduler:8786 --gpus all
    """
    from opgauge.harness.cluster.local import join_cluster, member_options, visible_devices

    devices = [] if gpus == "none" else visible_devices(gpus)
    join_cluster(scheduler, member_options(devices, cpu_slots=int(cpu), references=references))
