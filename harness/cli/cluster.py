"""`opgauge cluster`: members and state of a cluster that runs are spread over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.options import AsJson, command_line, default_device

if TYPE_CHECKING:
    from distributed import Client

    from opgauge.harness.case.case import Case
    from opgauge.harness.result.result import Result, Trial
    from opgauge.harness.run.progress import Progress
    from opgauge.harness.run.session import Session
    from opgauge.harness.store import Store

NOTHING = 5
"""Exit code: nothing was measured."""
CONNECT_S = 10.0
"""Longest wait for a scheduler, seconds."""

cluster = typer.Typer(help="Members and state of a cluster for `opgauge run --cluster`.", no_args_is_help=True)
SchedulerArgument = Annotated[str, typer.Argument(metavar="SCHEDULER", help="Address, such as tcp://host:8786.")]


@contextmanager
def opened_cluster(gpus: str | None, scheduler: str | None) -> Iterator[Client | None]:
    """A client of the cluster that the options `--gpus` and `--cluster` name; None where they name none."""
    from opgauge.harness.cluster.local import local_cluster, member_options, remote_cluster, visible_devices

    if gpus and scheduler:
        msg = "--gpus is for this host, --cluster for a scheduler: give one of them"
        raise typer.BadParameter(msg)
    if scheduler:
        with remote_cluster(scheduler) as client:
            yield client
    elif gpus:
        with local_cluster(member_options(visible_devices(gpus))) as client:
            yield client
    else:
        yield None


def spread_device(client: Client | None, given: str | None) -> str:
    """The device of a command: as given, else a GPU where the cluster or, without a cluster, this host has one."""
    from opgauge.harness.cluster.tasks import members_with
    from opgauge.ops import Device

    if given is None and client is not None:
        given = "cuda" if members_with(client, "cuda") else "cpu"
    return str(Device.parse(given or default_device()))


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
    ceilings: bool | None,
    ahead: int,
    remeasure: int,
    tell_plan: Callable[[Store, Sequence[Trial], float], object] | None,
    progress: Callable[[int], Progress],
    notify: Callable[[str], None],
    show: Callable[[Store, Session], int],
) -> int:
    """Measure cases over GPUs of this host or over a cluster, and show each run; returns the highest exit code.

    ahead: processes that compile and verify everything first, which only devices of this host can use. tell_plan:
    prints the trials, none of which is then measured.
    """
    from opgauge.harness.cli.compile import compiled
    from opgauge.harness.cli.run import wants_ceilings
    from opgauge.harness.cluster.spread import Runs, ending, run_spread
    from opgauge.harness.measure import Limits
    from opgauge.harness.run.remeasure import rounds
    from opgauge.harness.run.runner import plan
    from opgauge.harness.run.session import Session
    from opgauge.harness.run.signals import exit_code
    from opgauge.harness.store import Store

    if scheduler and ahead:
        msg = "--ahead compiles on this host: run `opgauge compile` on the hosts of the cluster"
        raise typer.BadParameter(msg)
    with opened_cluster(gpus, scheduler) as client, Store.open(url) as store:
        if client is None:
            msg = "name a cluster by --gpus or --cluster"
            raise typer.BadParameter(msg)
        found = store.find_run(resume) if resume else None
        finished = store.finished_trials(found.id) if found else set()
        wanted = devices or [spread_device(client, None)]
        trials = plan(cases, implementations=implementations, devices=wanted, finished=finished)
        if tell_plan:
            tell_plan(store, trials, budget_s)
            return 0
        runs = Runs(store, command_line(sys.argv[1:]), (found.id, found.environment) if found else None)
        limits, with_peaks = Limits(budget_s=budget_s), wants_ceilings(ceilings, trials)
        measure = partial(run_spread, client, timeout_s=timeout_s, ceilings=with_peaks, tell=notify)
        interrupted = 0
        try:
            with compiled(trials, ahead, progress, timeout_s) as ask, ending(store, runs):
                for block, part in rounds(trials, remeasure, runs.results, notify):
                    with progress(len(part)) as shown:
                        measure(part, runs, limits, block=block, ask=ask, advance=partial(_advance, shown))
        except KeyboardInterrupt as error:
            interrupted = exit_code(error)
        sessions = [Session(store, run, progress, notify) for run in runs.ids]
        shown_codes = [show(store, one) for one in sessions]
        return interrupted or max(shown_codes, default=NOTHING)


def _advance(shown: Progress, result: Result) -> None:
    shown.finished(result.trial, result)


@cluster.command("status")
def status_(scheduler: SchedulerArgument, as_json: AsJson = False) -> None:
    """List the members of a cluster, their devices and tasks, and the commands that wait for them.

    Example: opgauge cluster status tcp://scheduler:8786
    """
    from opgauge.harness.cluster.status import look

    found = look(scheduler, CONNECT_S)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    members = Table("host", "member", "offers", "running", "memory", box=None)
    for one in found.members:
        memory = f"{one.memory_bytes / 2**20:.0f} MiB"
        members.add_row(one.host, one.name, one.offers, escape(", ".join(one.running)) or "–", memory)
    console.print(members)
    for queue in found.queues:
        counts = f"{queue.waiting} waiting, {queue.running} running, {queue.finished} finished"
        console.print(f"{escape(queue.command)} on {queue.host}: {counts}")
    if not found.queues:
        console.print("no command uses the cluster")


@cluster.command("worker")
def worker_(
    scheduler: SchedulerArgument,
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
