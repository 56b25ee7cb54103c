"""`opgauge run`: measure, check, store, show."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from opgauge.harness.cli.compile import compile_all
from opgauge.harness.cli.options import (
    AsJson,
    Database,
    Devices,
    Dtypes,
    Names,
    Ops,
    Paths,
    SampleBudget,
    Tags,
    Timeout,
    command_line,
    database_url,
    default_device,
    load,
    select,
)

if TYPE_CHECKING:
    from opgauge.harness.case.case import Case
    from opgauge.harness.result.result import Environment, Trial
    from opgauge.harness.run.execute import Ask, LocalExecutor
    from opgauge.harness.settings import Settings
    from opgauge.harness.store import Store
    from opgauge.harness.store.store import Run
    from rich.console import Console

CEILINGS_FROM = 8
"""Trials from which the device's ceilings are measured too: they take a second or two."""
WRONG, INTERRUPTED = 3, 130


def run(
    paths: Paths = None,
    op: Ops = None,
    tag: Tags = None,
    dtype: Dtypes = None,
    name: Names = None,
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", "-i", help="Only this implementation; repeatable.")
    ] = None,
    device: Devices = None,
    db: Database = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run (or `last`): only the rest.")
    ] = None,
    budget: SampleBudget = None,
    timeout: Timeout = None,
    ceilings: Annotated[
        bool | None, typer.Option("--ceilings/--no-ceilings", help="Measure what the device reaches; default: if many.")
    ] = None,
    ahead: Annotated[
        int, typer.Option("--ahead", min=0, metavar="WORKERS", help="First compile and check all by so many processes.")
    ] = 0,
    settle: Annotated[
        int,
        typer.Option(
            "--settle",
            min=0,
            metavar="PROCESSES",
            help="Measure cases in which it is open who is fastest again, in up to so many more processes.",
        ),
    ] = 0,
    profile: Annotated[
        bool, typer.Option("--profile", help="List the kernels of each call too, by CUPTI, after all timing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run cases by every implementation there is, check each against its reference, store and show the results.

    Ends with 3 when one of our own implementations is wrong or broken (peers are reported, and do not
    fail the run), with 5 when nothing was measured, with 130 when interrupted: what was
    finished is stored, and --resume last goes on, on like hardware with the same code and versions.

    Example: opgauge run --tag seed --op p_norm_grad --device cpu
    """
    from opgauge.harness.run.worker_process import Worker, worker_options
    from opgauge.harness.settings import child_environment, load_settings

    settings = load_settings()
    limited = (settings.threads, settings.memory_bytes)
    worker = Worker(worker_options(None, *limited), child_environment(settings.threads))

    from opgauge.harness.measure import Limits
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.worker.interleave import TURNS

    with LocalExecutor(
        limits=Limits(budget_s=budget or settings.budget_s, turns=TURNS),
        timeout_s=timeout or settings.timeout_s,
        threads=settings.threads,
        memory_bytes=settings.memory_bytes,
        worker=worker,
    ) as executor:
        from opgauge.harness.errors import NothingError
        from opgauge.harness.run.remeasure import open_trials
        from opgauge.harness.run.runner import plan
        from opgauge.harness.store import Store

        cases = select(load(paths, ops=op), ops=op, tags=tag, dtypes=dtype, names=name)
        devices = device or [default_device()]
        with Store.open(database_url(db)) as store:
            found = store.find_run(None if resume == "last" else resume) if resume else None
            finished = store.finished_trials(found.id) if found else set()
            trials = plan(cases, implementations=implementation, devices=devices, finished=finished)
            if not trials and not finished:
                msg = f"no kernel of {', '.join(implementation or ['any implementation'])} on {', '.join(devices)}"
                raise NothingError(msg)
            run_id = _go_on(store, found, devices, settings) if found else _begin(store, cases, devices, settings)
            wanted = len(trials) >= CEILINGS_FROM if ceilings is None else ceilings
            begun = open_trials(store.results(run_id)) if settle else []
            with _ahead([*trials, *begun], ahead, timeout or settings.timeout_s) as ask:
                rounds = _rounds(store, run_id, trials, settle)
                interrupted = _measure(store, executor, run_id, rounds, devices if wanted else (), ask)
            if profile and not interrupted:
                executor.close()
                interrupted = _profile(store, run_id, timeout or settings.timeout_s)
            code = _report(store, run_id, as_json=as_json)
    raise typer.Exit(INTERRUPTED if interrupted else code)


def _begin(store: Store, cases: Sequence[Case], devices: Sequence[str], settings: Settings) -> str:
    from opgauge.harness.run.environment import tuning_notes

    environment = _captured(cases, devices, settings)
    for note in tuning_notes(environment, devices):
        typer.echo(note, err=True)
    return store.begin_run(environment, command=command_line(sys.argv[1:]))


def _go_on(store: Store, run: Run, devices: Sequence[str], settings: Settings) -> str:
    """The id of a run that was begun under the same conditions; else its results could not be compared."""
    from opgauge.harness.run.environment import changes

    here = _captured((), devices, settings)
    changed = changes(here, run.environment, devices)
    if changed:
        msg = f"run {run.id[:8]} cannot go on here: {'; '.join(changed)}"
        raise typer.BadParameter(msg)
    store.resume_run(run.id, here.soft.get("host", ""))
    return run.id


def _captured(cases: Sequence[Case], devices: Sequence[str], settings: Settings) -> Environment:
    from opgauge.harness.run.environment import capture

    environment = capture(devices, cases=cases, threads=settings.threads)
    if settings.commit and not environment.commit:
        environment = replace(environment, soft={**environment.soft, "commit": settings.commit})
    return environment


@contextmanager
def _ahead(trials: Sequence[Trial], workers: int, timeout_s: float) -> Iterator[Ask]:
    """What to ask of trials after so many workers have called and checked each; nothing without workers."""
    from opgauge.harness.run.execute import ask_nothing
    from opgauge.harness.run.tree import temporary_folder

    if not workers:
        yield ask_nothing
        return
    with temporary_folder("opgauge-run-") as kept:
        yield compile_all(trials, workers, timeout_s=timeout_s, kept=kept).ask


def _rounds(store: Store, run_id: str, trials: Sequence[Trial], settle: int) -> Iterator[tuple[int, Sequence[Trial]]]:
    """All trials, and then up to `settle` times those of cases that are open by what is stored until then.

    What an interrupted run has measured again counts, and stays: the next process has the next number.
    """
    from opgauge.harness.run.remeasure import open_trials

    measured = max((result.block for result in store.results(run_id)), default=0)
    yield 0, trials
    for block in range(measured + 1, settle + 1):
        again = open_trials(store.results(run_id))
        if not again:
            return
        typer.echo(f"{len(again)} trials again, in another process", err=True)
        yield block, again


def _measure(
    store: Store,
    executor: LocalExecutor,
    run_id: str,
    rounds: Iterable[tuple[int, Sequence[Trial]]],
    devices: Sequence[str],
    ask: Ask,
) -> bool:
    """Run each round in a process of its own and store each result as it comes; True when interrupted."""
    from opgauge.harness.run.progress import Progress
    from opgauge.harness.run.runner import run as run_trials
    from opgauge.ops import Device

    try:
        for device in devices:
            store.add_ceilings(run_id, executor.ceilings(str(Device.parse(device))))
        for block, trials in rounds:
            if block:
                executor.renew()
            with Progress(len(trials)) as progress:
                for result in run_trials(progress.follow(trials), executor, block=block, ask=ask):
                    store.add_result(run_id, result)
                    progress.advance()
    except KeyboardInterrupt:
        store.finish_run(run_id, "interrupted")
        return True
    store.finish_run(run_id)
    return False


def _profile(store: Store, run_id: str, timeout_s: float) -> bool:
    """List the kernels of what was measured, in a process that times nothing; True when interrupted."""
    from opgauge.harness.result.result import Status
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.run.progress import Progress

    measured = [result for result in store.results(run_id) if result.status is Status.OK]
    trials = [result.trial for result in measured if result.profile is None and result.trial.backend != "cpu"]
    if len(trials) < len(measured):
        typer.echo(
            f"{len(measured) - len(trials)} results get no kernel list: they have one, or ran on the CPU", err=True
        )
    if not trials:
        return False
    reasons: dict[str, int] = {}
    try:
        with LocalExecutor(timeout_s=timeout_s) as executor, Progress(len(trials)) as progress:
            for trial, profile in zip(trials, executor.profile(progress.follow(trials)), strict=True):
                store.add_profile(run_id, trial, profile)
                progress.advance()
                if profile.reason:
                    reasons[profile.reason] = reasons.get(profile.reason, 0) + 1
    except KeyboardInterrupt:
        return True
    for reason, count in reasons.items():
        typer.echo(f"no kernel list for {count} results: {reason}", err=True)
    return False


def _report(store: Store, run_id: str, *, as_json: bool) -> int:
    """Print the run; gives the exit code."""
    from opgauge.harness.result.result import Status
    from opgauge.harness.result.summary import PEERS

    results, reached = store.results(run_id), store.ceilings(run_id)
    if as_json:
        from opgauge.harness.report.export import as_json as to_text
        from opgauge.harness.report.export import records

        typer.echo(to_text(records(store.find_run(run_id), results, reached)))
    else:
        from opgauge.harness.report.render import show
        from opgauge.harness.result.summary import rows

        show(rows(results), results, reached, _console())
        typer.echo(f"run {run_id} in {store.url}")
    fine = {Status.OK, Status.UNSUPPORTED}
    if any(item.status not in fine for item in results if item.trial.implementation not in PEERS):
        return WRONG
    if not any(item.status is Status.OK for item in results):
        typer.echo("nothing was measured", err=True)
        return 5
    return 0


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)
