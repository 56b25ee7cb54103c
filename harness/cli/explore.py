"""`opgauge explore`: draw random valid cases and find those that are slow or wrong."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.compile import compile_all
from opgauge.harness.cli.options import (
    AsJson,
    Database,
    Gpus,
    Ops,
    SampleBudget,
    Scheduler,
    Timeout,
    command_line,
    database_url,
    load,
)
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from opgauge.harness.explore.explore import Exploration, Measure
    from opgauge.harness.explore.finding import Group
    from opgauge.harness.result.result import Result, Trial
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.store import Store

WRONG, NOTHING = 3, 5
"""Exit codes: a case is wrong; no case was drawn."""
MEGABYTE = 1 << 20
"""Bytes per unit of --megabytes."""
AHEAD_BATCH = 64
"""Cases that are compiled together, so that all workers are busy."""
CASES_PER_DEVICE = 4
"""Cases of a batch per device of a cluster: enough to occupy every device while the last ones end."""


def explore(
    op: Ops = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N; default: cuda if any.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all draws; default: a new one, printed.")] = None,
    cases: Annotated[
        int | None, typer.Option("--cases", min=1, help="Cases to draw; default: until time is up.")
    ] = None,
    seconds: Annotated[float, typer.Option("--time", min=1.0, help="Seconds to spend, drawing and shrinking.")] = 600.0,
    wrong: Annotated[bool, typer.Option("--wrong", help="Look for errors only: check, do not measure.")] = False,
    threshold: Annotated[
        float,
        typer.Option("--threshold", min=1.0, help="Least ratio to the fastest other implementation that is slow."),
    ] = 1.10,
    steps: Annotated[int, typer.Option("--steps", min=0, help="Most cases measured to shrink one finding.")] = 16,
    megabytes: Annotated[int, typer.Option("--megabytes", min=1, help="Largest case, inputs and outputs.")] = 64,
    ahead: Annotated[
        int, typer.Option("--ahead", min=0, metavar="WORKERS", help="Compile and verify each batch first, N processes.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the smallest cases as YAML, with the tag `found`.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Resume this exploration (or `last`), same options.")
    ] = None,
    gpus: Gpus = None,
    cluster: Scheduler = None,
    db: Database = None,
    budget: SampleBudget = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Draw random valid cases of every op, check and measure them, and shrink slow or wrong ones.

    A case is slow if `optimized`, or the fastest kernel of a project's op, takes longer than the fastest other
    implementation (peers and baseline) by the threshold. Findings are grouped by likely cause; wrong cases of a
    cause that was reported and shrunk are only counted. Exit code 3 if a case is wrong, 5 if none was drawn, 130 when
    interrupted; results are stored as those of any run.

    Example: opgauge explore --op lerp_grad --time 120 --output found.yaml
    """
    from opgauge.harness.cli.cluster import opened_cluster, spread_device
    from opgauge.harness.cluster.spread import Runs, ending, measure_by
    from opgauge.harness.cluster.tasks import device_count
    from opgauge.harness.explore.draw import CaseLimits
    from opgauge.harness.explore.explore import ExplorationPlan, sources
    from opgauge.harness.explore.explore import explore as explore_cases
    from opgauge.harness.measure import Limits
    from opgauge.harness.run.compiling import ONCE
    from opgauge.harness.run.environment import capture
    from opgauge.harness.run.execute import LocalExecutor
    from opgauge.harness.settings import load_settings
    from opgauge.harness.store import Store
    from opgauge.harness.worker.interleave import TURNS
    from opgauge.ops import Device

    settings = load_settings()
    limits = ONCE if wrong else Limits(budget_s=budget or settings.budget_s / 4, turns=TURNS)
    patience_s, end = timeout or settings.timeout_s, monotonic() + seconds
    with opened_cluster(gpus, cluster) as client, Store.open(database_url(db)) as store, ExitStack() as stack:
        where = spread_device(client, device)
        earlier = store.find_run(resume) if resume else None
        chosen = seed if seed is not None else _seed_of(earlier.command) if earlier else secrets.randbelow(10**6)
        typer.echo(f"seed {chosen} on {where}, {seconds:g} s at most", err=True)
        if earlier is not None:
            store.resume_run(earlier.id, "")
        command = command_line([*sys.argv[1:], "--seed", str(chosen)])
        runs = Runs(store, command, (earlier.id, earlier.environment) if earlier else None)
        measure: Measure
        if client is None:
            executor = LocalExecutor(
                limits=limits, timeout_s=patience_s, threads=settings.threads, memory_bytes=settings.memory_bytes
            )
            run_id = earlier.id if earlier else runs.of(capture([where], threads=settings.threads))
            measure = _measure(store, run_id, stack.enter_context(executor), ahead, end)
            devices, batch = 1, AHEAD_BATCH if ahead else 1
        else:
            stored = store.results(earlier.id) if earlier else ()
            measure = measure_by(client, runs, stored, limits, timeout_s=patience_s, tell=_tell)
            devices = device_count(client, Device.parse(where).backend)
            batch = CASES_PER_DEVICE * devices
        plan = ExplorationPlan(
            chosen,
            where,
            end,
            cases=cases,
            threshold=threshold,
            steps=steps,
            only_wrong=wrong,
            batch=batch,
            limits=CaseLimits(bytes=megabytes * MEGABYTE),
            at_once=devices,
        )
        with ending(store, runs):
            done = explore_cases(plan, sources(load(None), op, where), measure, _tell)
    raise typer.Exit(_publish(done, ", ".join(runs.ids), output, wrong=wrong, as_json=as_json))


def _publish(done: Exploration, runs: str, output: Path | None, *, wrong: bool, as_json: bool) -> int:
    """Print the findings, and write their cases to a file if it is named; returns the exit code."""
    from opgauge.harness.explore.finding import group, write_cases

    groups = group(done.findings)
    if output is not None:
        typer.echo(f"{counted(write_cases(output, groups), 'case')} in {output}", err=True)
    _report(done, groups, runs, wrong=wrong, as_json=as_json)
    if any(finding.reason for finding in done.findings):
        return WRONG
    return 0 if done.rows else NOTHING


def _measure(store: Store, run_id: str, executor: LocalExecutor, ahead: int, end: float) -> Measure:
    """A function that runs trials and stores each result; results that an earlier part of the run stored are read.

    end: time by `time.monotonic` after which no further case begins; results of cases that were not measured are
    missing.
    """
    from opgauge.harness.run.execute import ask_nothing
    from opgauge.harness.run.progress import Progress
    from opgauge.harness.run.runner import run as run_trials
    from opgauge.harness.run.tree import temporary_folder

    stored = {result.trial.key: result for result in store.results(run_id)}

    def measure(trials: Sequence[Trial]) -> list[Result]:
        new = [trial for trial in trials if trial.key not in stored]
        left = Counter(trial.case.id for trial in new)
        with temporary_folder("opgauge-explore-") if ahead and len(new) > ahead else nullcontext(None) as kept:
            ask = ask_nothing if kept is None else compile_all(new, ahead, Progress(len(new)), kept=kept).ask
            for result in run_trials(new, executor, ask=ask):
                store.add_result(run_id, result)
                stored[result.trial.key] = result
                left[result.trial.case.id] -= 1
                if not left[result.trial.case.id] and monotonic() > end:
                    break
        return [stored[trial.key] for trial in trials if not left[trial.case.id]]

    return measure


def _seed_of(command: str) -> int:
    words = command.split()
    return int(words[len(words) - 1 - words[::-1].index("--seed") + 1])


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _report(done: Exploration, groups: Sequence[Group], run_id: str, *, wrong: bool, as_json: bool) -> None:
    from opgauge.harness.explore.finding import as_json as to_plain
    from opgauge.harness.explore.finding import shares

    if as_json:
        typer.echo(json.dumps(to_plain(groups, done.rows, done.further), allow_nan=False, indent=1))
        return
    for item in groups:
        worst = item.worst
        what = worst.reason or (f"{worst.slowdown.ratio:.3g} × {worst.slowdown.rival}" if worst.slowdown else "")
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in worst.case.shapes.items())
        count = len(item.findings) + done.further[item.cause]
        typer.echo(f"{count:4} {' · '.join(item.cause)}\n     {worst.case.dtype} {shapes}: {what}")
    for label, share in ({} if wrong else shares(done.rows)).items():
        typer.echo(f"{100 * share:5.1f} % {label}")
    for name in done.undrawn:
        typer.echo(f"no valid case of {name} was drawn")
    further = done.further.total()
    more = f", {counted(further, 'further case')} of the same" if further else ""
    typer.echo(f"{counted(len(done.rows), 'case')} in run {run_id}; {counted(len(done.findings), 'finding')}{more}")
    if done.shrinking:
        typer.echo(f"{counted(done.shrinking, 'further case')} measured to shrink them")
