"""`opgauge schema`: the JSON Schema of case files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output if none.")] = None,
) -> None:
    """Write the JSON Schema by which editors complete and check case files: for the ops of the project.

    Example: opgauge schema --output cases/schema/case.schema.json
    """
    from opgauge.harness.case.schema import schema_text

    text = schema_text()
    if output is None:
        typer.echo(text.rstrip("\n"))
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
