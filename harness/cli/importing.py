"""`opgauge import`: a run from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Database, database_url


def import_(
    files: Annotated[list[Path], typer.Argument(help="Exports made with --samples.")],
    db: Database = None,
) -> None:
    """Enter runs that `opgauge export --samples` wrote, for example on a machine with a GPU.

    Example: opgauge import tests/data/h200/seed.json
    """
    from harness.export import import_run
    from harness.store import Store

    with Store.open(database_url(db)) as store:
        for file in files:
            typer.echo(f"run {import_run(file, store)} from {file}")
