"""`opgauge check`: validation of case files."""

from __future__ import annotations

from typing import Annotated

import typer

from opgauge.harness.cli.options import Paths, load, tell_unconfigured
from opgauge.harness.counting import counted


def check(
    paths: Paths = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every expanded case with its id.")] = False,
) -> None:
    """Validate case files against their ops, without a device.

    Example: opgauge check cases/p_norm.yaml --verbose
    """
    if not paths:
        tell_unconfigured()
    cases = load(paths)
    if verbose:
        for case in cases:
            typer.echo(f"{case.id}  {case.op}  {case.name}  {' '.join(case.tags)}")
    ops = {case.op for case in cases}
    typer.echo(f"{counted(len(cases), 'case')} valid ({counted(len(ops), 'op')})")
