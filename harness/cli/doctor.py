"""`opgauge doctor`: whether this machine is fit to measure."""

from __future__ import annotations

from typing import Annotated

import typer

from opgauge.harness.cli.options import default_device


def doctor(
    device: Annotated[str | None, typer.Option(help="Device to measure on, as cpu or cuda:0.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Report whether this machine is fit to measure, with advice for each fact that is not.

    Exits with 1 if a fact makes times unreliable.

    Example: opgauge doctor --device cpu
    """
    from opgauge.harness.json_text import write
    from opgauge.harness.run.doctor import as_facts, examine, examine_repository
    from opgauge.harness.run.environment import measured_tree

    findings = [*examine(device or default_device()), *examine_repository(measured_tree())]
    if as_json:
        typer.echo(write(as_facts(findings)))
    else:
        width = max(len(one.subject) for one in findings)
        for one in findings:
            advice = f"  {one.advice}" if one.advice else ""
            typer.echo(f"{'✓' if one.is_good else '✗'} {one.subject:<{width}}  {one.fact}{advice}")
    raise typer.Exit(0 if all(one.is_good for one in findings) else 1)
