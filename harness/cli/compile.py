"""`opgauge compile`: compile kernels before they are measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from opgauge.harness.cli.options import Devices, Ops, Paths, Tags, default_device, load, select

if TYPE_CHECKING:
    from opgauge.harness.result.result import Trial
    from opgauge.harness.run.compiling import Ahead

MOST_PHASES = 4
"""Of what workers spent their time on, so many are told."""


def compile_(
    paths: Paths = None,
    op: Ops = None,
    tag: Tags = None,
    device: Devices = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Default: one per CPU.")] = None,
) -> None:
    """Compile what cases need, by every implementation: Numba's kernels, torch.compile's, CUDA's.

    They lie in caches on disk afterwards, so that `run` measures instead of compiling. Nothing is stored.

    Example: opgauge compile --tag seed
    """
    from opgauge.harness.run.runner import plan

    cases = select(load(paths, ops=op), ops=op, tags=tag, dtypes=None, names=None)
    devices = device or [default_device()]
    trials = plan(cases, devices=devices)
    compile_all(trials, workers or os.cpu_count() or 1)


def compile_all(trials: Sequence[Trial], workers: int, **more: Any) -> Ahead:
    """As `compile_ahead`, with a bar meanwhile and a line at the end."""
    from opgauge.harness.run.compiling import compile_ahead
    from opgauge.harness.run.progress import Progress

    begun = perf_counter()
    with Progress(len(trials)) as progress:
        found = compile_ahead(trials, workers, progress.finished, **more)
    took = perf_counter() - begun
    spent = sum(found.seconds.values()) or 1.0
    shares = ", ".join(
        f"{100 * time / spent:.0f} % on {phase}" for phase, time in found.seconds.most_common(MOST_PHASES)
    )
    told = f" of workers that spent {shares}" if shares else ""
    typer.echo(f"{found.right} of {len(trials)} are compiled and right, after {took:.0f} s{told}", err=True)
    return found
