"""`opgauge import`: importing runs from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opgauge.harness.cli.options import Database, database_url


def import_(
    files: Annotated[list[Path], typer.Argument(help="Files of opgauge or of another tool.")],
    project: Annotated[str, typer.Option("--project", metavar="NAME", help="Project of runs that name none.")] = "",
    db: Database = None,
) -> None:
    """Import runs from files of `opgauge export --samples`, nvbench, pytest-benchmark or Google Benchmark.

    A file's content identifies the tool; `opgauge export --self-tests` writes self-tests. Sample files of nvbench's
    --jsonbin are read from the folder of its JSON.
    A run of another tool becomes one of the op `imported`.

    Example: opgauge import tests/data/h200/seed.json
    """
    from opgauge.harness.interchange import enter_file
    from opgauge.harness.store import Store

    with Store.open(database_url(db)) as store:
        for file in files:
            typer.echo(f"{enter_file(file, store, project)} from {file}")
