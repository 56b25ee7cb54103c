"""`opgauge run`: measure, check and store cases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.compile import compiled
from opgauge.harness.cli.options import (
    AsJson,
    Cases,
    Database,
    Devices,
    DryRun,
    Dtypes,
    Gpus,
    Implementations,
    Names,
    Ops,
    Paths,
    ProgressOption,
    Quiet,
    SampleBudget,
    Scheduler,
    Tags,
    Timeout,
    chosen_devices,
    command_line,
    database_url,
    open_progress,
    select_implementations,
)
from opgauge.harness.cli.selection import RunSelection, selection_to_resume
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from opgauge.harness.case.case import Case
    from opgauge.harness.result.result import Environment, Trial
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.run.session import Session
    from opgauge.harness.run.worker_process import Worker
    from opgauge.harness.settings import Settings
    from opgauge.harness.store import Store
    from opgauge.harness.store.store import Run

CEILINGS_FROM = 8
"""Number of trials from which achieved peaks are measured by default, which takes a second or two."""
EARLIER_RUNS = 20
"""Number of latest runs from which `--dry-run` reads durations."""


def run(
    paths: Paths = None,
    op: Ops = None,
    tag: Tags = None,
    dtype: Dtypes = None,
    name: Names = None,
    case: Cases = None,
    implementation: Implementations = None,
    device: Devices = None,
    db: Database = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Resume this run (or `last`): measure only what is missing. Without paths, filters, -i and --device, "
            "those of that run are used; its other options are not.",
        ),
    ] = None,
    budget: SampleBudget = None,
    timeout: Timeout = None,
    ceilings: Annotated[
        bool | None,
        typer.Option("--ceilings/--no-ceilings", help="Measure achieved peaks of the device. Default: if many trials."),
    ] = None,
    ahead: Annotated[
        int,
        typer.Option("--ahead", min=0, metavar="N", help="Compile and verify everything first, using N processes."),
    ] = 0,
    remeasure: Annotated[
        int,
        typer.Option(
            "--remeasure",
            min=0,
            metavar="N",
            help="Re-measure cases whose ranking is within noise, in up to N extra processes.",
        ),
    ] = 0,
    profile: Annotated[
        bool, typer.Option("--profile", help="List the kernels of each call too, by CUPTI, after all timing.")
    ] = False,
    gpus: Gpus = None,
    cluster: Scheduler = None,
    dry_run: DryRun = False,
    progress: ProgressOption = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure cases by every implementation, check each against its reference, store and show the results.

    Ends with 3 if one of our own implementations is wrong or broken (failures of peers are reported, and do not
    fail the run), 5 if nothing was measured, 130 when interrupted (143 by SIGTERM, 129 by SIGHUP): finished results
    are stored, and --resume last measures the rest of the same selection, on like hardware with the same code and
    versions.

    Example: opgauge run --tag seed --op p_norm_grad --device cpu
    """
    from opgauge.harness.settings import load_settings

    settings = load_settings()
    budget_s, timeout_s, notify = budget or settings.budget_s, timeout or settings.timeout_s, silent if quiet else tell
    chosen = RunSelection(paths, op, tag, dtype, name, case, implementation, device)
    if resume:
        chosen, resume = selection_to_resume(chosen, resume, database_url(db), notify)
    if gpus or cluster:
        from opgauge.harness.cli.cluster import run_over

        if profile:
            msg = "--profile lists kernels on one device: leave out --gpus and --cluster"
            raise typer.BadParameter(msg)
        cases = chosen.load_cases(notify)
        raise typer.Exit(
            run_over(
                cases,
                gpus=gpus,
                scheduler=cluster,
                implementations=select_implementations(cases, chosen.implementation),
                devices=chosen.device,
                url=database_url(db),
                resume=resume,
                budget_s=budget_s,
                timeout_s=timeout_s,
                ceilings=ceilings,
                ahead=ahead,
                remeasure=remeasure,
                tell_plan=partial(describe, as_json=as_json) if dry_run else None,
                progress=open_progress(progress, quiet=quiet),
                notify=notify,
                show=partial(report, as_json=as_json, quiet=quiet),
            )
        )
    with nullcontext() if dry_run else early_worker(settings) as worker:
        devices, cases = chosen_devices(chosen.device), chosen.load_cases(notify)
        names = select_implementations(cases, chosen.implementation)
        from opgauge.harness.store import Store

        with Store.open(database_url(db)) as store:
            found = store.find_run(resume) if resume else None
            on_cpu = [] if chosen.device else host_cases(cases, devices)
            trials = planned(store, found, cases, names, devices, on_cpu)
            devices += ["cpu"] if on_cpu else []
            if dry_run:
                describe(store, trials, budget_s, as_json=as_json)
                return
            from opgauge.harness.run.session import RunPlan, Session

            with executor_of(worker, settings, budget_s, timeout_s) as executor:
                run_id = begun(store, found, cases, devices, settings, notify)
                session = Session(store, run_id, open_progress(progress, quiet=quiet), notify)
                peaks_of = tuple(devices) if wants_ceilings(ceilings, trials) else ()
                plan = RunPlan(tuple(trials), peaks_of, remeasure, profile, timeout_s)
                everything = [*trials, *(session.undecided() if remeasure else ())]
                with compiled(everything, ahead, session.open_progress, plan.timeout_s) as ask:
                    ended = session.measure(plan, executor, ask)
            code = report(store, session, as_json=as_json, quiet=quiet)
    raise typer.Exit(ended or code)


@contextmanager
def early_worker(settings: Settings) -> Iterator[Worker]:
    """A worker that starts while this process is still importing; it is killed at the end."""
    from opgauge.harness.run.worker_process import Worker, worker_options
    from opgauge.harness.settings import child_environment

    worker = Worker(worker_options(None, settings.threads, settings.memory_bytes), child_environment(settings.threads))
    try:
        yield worker
    finally:
        worker.kill()


def executor_of(worker: Worker | None, settings: Settings, budget_s: float, timeout_s: float) -> LocalExecutor:
    """An executor of this host, in whose worker the implementations of a case take turns on a CPU."""
    from opgauge.harness.measure import Limits
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.worker.interleave import TURNS

    return LocalExecutor(
        limits=Limits(budget_s=budget_s, turns=TURNS),
        timeout_s=timeout_s,
        threads=settings.threads,
        memory_bytes=settings.memory_bytes,
        worker=worker,
    )


def wants_ceilings(given: bool | None, trials: Sequence[Trial]) -> bool:
    """Whether achieved peaks are measured: as given, else for many trials."""
    return len(trials) >= CEILINGS_FROM if given is None else given


def tell(text: str) -> None:
    """Write a message to standard error."""
    typer.echo(text, err=True)


def silent(text: str) -> None:
    """Discard a message."""
    del text


def planned(
    store: Store,
    found: Run | None,
    cases: Sequence[Case],
    names: Sequence[str] | None,
    devices: Sequence[str],
    on_cpu: Sequence[Case] = (),
) -> list[Trial]:
    """The trials that remain to be measured; raises NothingError if no kernel matches.

    on_cpu: cases that are measured on the CPU in addition to the devices.
    """
    from opgauge.harness.errors import NothingError
    from opgauge.harness.run.runner import plan

    finished = store.finished_trials(found.id) if found else set()
    trials = plan(cases, implementations=names, devices=devices, finished=finished)
    trials += plan(on_cpu, implementations=names, devices=["cpu"], finished=finished)
    if not trials and not finished:
        msg = f"no kernel of {', '.join(names or ['any implementation'])} on {', '.join(devices)}"
        raise NothingError(msg)
    return trials


def host_cases(cases: Sequence[Case], devices: Sequence[str]) -> list[Case]:
    """Cases of ops that have kernels for the CPU alone, if the CPU is not among the devices."""
    from opgauge.ops import kernels

    if "cpu" in devices:
        return []
    others = {item.key.op for item in kernels() if item.key.backend != "cpu"}
    return [case for case in cases if case.op not in others]


def describe(store: Store, trials: Sequence[Trial], budget_s: float, *, as_json: bool) -> None:
    """Print the trials of a run, and the expected duration."""
    from opgauge.harness.run.duration import expect

    earlier = [result for run in store.runs(EARLIER_RUNS) for result in store.results(run.id)]
    expected = expect(trials, earlier, budget_s)
    if as_json:
        import json

        listed = [
            {
                "op": trial.case.op,
                "case": trial.case.name,
                "case_id": trial.case.id,
                "dtype": trial.case.dtype,
                "implementation": trial.implementation,
                "device": trial.device,
            }
            for trial in trials
        ]
        typer.echo(json.dumps({"trials": listed, "expected_s": expected.seconds, "known": expected.known}, indent=1))
        return
    for trial in trials:
        typer.echo(f"{trial.case.op} · {trial.case.name} · {trial.implementation} · {trial.device}")
    cases = {trial.case.id for trial in trials}
    typer.echo(f"{counted(len(trials), 'trial')} of {counted(len(cases), 'case')}, {expected}")


def begun(
    store: Store,
    found: Run | None,
    cases: Sequence[Case],
    devices: Sequence[str],
    settings: Settings,
    notify: Callable[[str], None],
) -> str:
    """The id of a new run, or of the run that is resumed."""
    from dataclasses import replace

    from opgauge.harness.run.doctor import unfit_facts
    from opgauge.harness.run.environment import tree_notes, tuning_notes

    if found is not None:
        return resumed(store, found, devices, settings)
    environment = captured(cases, devices, settings)
    for note in (*tuning_notes(environment, devices), *tree_notes()):
        notify(note)
    unfit = {f"{device}.unfit": bad for device in devices if (bad := unfit_facts(device))}
    for key, bad in unfit.items():
        notify(f"{key.removesuffix('.unfit')}: times may be unreliable ({bad}); see opgauge doctor")
    environment = replace(environment, soft={**environment.soft, **unfit})
    return store.begin_run(environment, command=command_line(sys.argv[1:]))


def resumed(store: Store, found: Run, devices: Sequence[str], settings: Settings) -> str:
    """The id of a run that was begun under the same conditions; results under others would not be comparable."""
    from opgauge.harness.run.environment import changes

    here = captured((), devices, settings)
    changed = changes(here, found.environment, devices)
    if changed:
        msg = f"run {found.id[:8]} cannot be resumed here: {'; '.join(changed)}"
        raise typer.BadParameter(msg)
    store.resume_run(found.id, here.soft.get("host", ""))
    return found.id


def captured(cases: Sequence[Case], devices: Sequence[str], settings: Settings) -> Environment:
    """The environment, with the commit of the settings for a tree without git."""
    from opgauge.harness.run.environment import capture

    environment = capture(devices, cases=cases, threads=settings.threads)
    if settings.commit and not environment.commit:
        environment = replace(environment, soft={**environment.soft, "commit": settings.commit})
    return environment


def report(store: Store, session: Session, *, as_json: bool, quiet: bool) -> int:
    """Print the run; returns the exit code."""
    code = session.exit_code()
    results, reached = store.results(session.run_id), store.ceilings(session.run_id)
    if as_json:
        from opgauge.harness.report.export import as_json as to_text
        from opgauge.harness.report.export import records

        typer.echo(to_text(records(store.find_run(session.run_id), results, reached)))
    elif not quiet:
        from opgauge.harness.report.columns import open_console
        from opgauge.harness.report.render import show
        from opgauge.harness.result.summary import rows

        show(rows(results), results, reached, open_console())
        typer.echo(f"run {session.run_id} in {store.place}")
    if code == 5:
        typer.echo("nothing was measured", err=True)
    return code
