"""`opgauge compile`: compile kernels before they are measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opgauge.harness.cli.options import (
    Devices,
    Ops,
    Paths,
    ProgressOption,
    Tags,
    chosen_devices,
    load,
    open_progress,
    select,
)
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from opgauge.harness.result.result import Trial
    from opgauge.harness.run.compiling import Ahead
    from opgauge.harness.run.execute import Ask
    from opgauge.harness.run.progress import Progress

MOST_PHASES = 4
"""Phases of the workers' time that the summary line names."""
MOST_FAULTS = 10
"""Trials that did not work which are listed below it."""


def compile_(
    paths: Paths = None,
    op: Ops = None,
    tag: Tags = None,
    device: Devices = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Default: one per CPU.")] = None,
    progress: ProgressOption = "auto",
) -> None:
    """Compile what cases need, by every implementation: Numba's kernels, torch.compile's, CUDA's.

    Caches on disk keep the compiled code, so that `run` measures instead of compiling. Nothing is stored. Exit code 3
    if a kernel of ours is wrong or broken, as of `run`.

    Example: opgauge compile --tag seed
    """
    from opgauge.harness.result.result import Status
    from opgauge.harness.result.summary import PEERS
    from opgauge.harness.run.runner import plan
    from opgauge.harness.run.session import WRONG

    cases = select(load(paths, ops=op), ops=op, tags=tag, dtypes=None, names=None, patterns=None)
    trials = plan(cases, devices=chosen_devices(device))
    found = compile_all(trials, workers or os.cpu_count() or 1, open_progress(progress, quiet=False)(len(trials)))
    if any(one.status is not Status.UNSUPPORTED and one.trial.implementation not in PEERS for one in found.faults):
        raise typer.Exit(WRONG)


def compile_all(trials: Sequence[Trial], workers: int, progress: Progress, **more: Any) -> Ahead:
    """Compile and verify the trials, with a progress display and a summary line."""
    from opgauge.harness.run.compiling import compile_ahead

    begun = perf_counter()
    with progress:
        found = compile_ahead(trials, workers, progress.finished, **more)
    took = perf_counter() - begun
    spent = sum(found.seconds.values()) or 1.0
    phases = ", ".join(f"{100 * time / spent:.0f} % {phase}" for phase, time in found.seconds.most_common(MOST_PHASES))
    summary = f"{found.right} of {counted(len(trials), 'trial')} compiled and valid, {took:.0f} s"
    typer.echo(f"{summary} (worker time: {phases})" if phases else summary, err=True)
    for result in found.faults[:MOST_FAULTS]:
        case, implementation = result.trial.case, result.trial.implementation
        typer.echo(f"  {case.op} · {case.name}, {implementation}: {result.status}: {result.reason}", err=True)
    return found


@contextmanager
def compiled(
    trials: Sequence[Trial], workers: int, progress: Callable[[int], Progress], timeout_s: float
) -> Iterator[Ask]:
    """Request fields for trials after `workers` processes compiled and verified each; nothing without workers."""
    from opgauge.harness.run.execute import ask_nothing
    from opgauge.harness.run.tree import temporary_folder

    if not workers:
        yield ask_nothing
        return
    with temporary_folder("opgauge-run-") as kept:
        yield compile_all(trials, workers, progress(len(trials)), timeout_s=timeout_s, kept=kept).ask
