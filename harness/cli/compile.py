"""`opgauge compile`: compile kernels before they are measured."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from harness.cli.options import Devices, Ops, Paths, Tags, default_device, load, select


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
    from harness.run.compiling import compile_ahead
    from harness.run.progress import Progress
    from harness.run.runner import plan

    cases = select(load(paths, ops=op), ops=op, tags=tag, dtypes=None, names=None)
    devices = device or [default_device()]
    trials = plan(cases, devices=devices)
    with Progress(len(trials)) as progress:
        ahead = compile_ahead(trials, workers or os.cpu_count() or 1, progress.finished)
    typer.echo(f"{ahead.right} of {len(trials)} are compiled and right")
