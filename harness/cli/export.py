"""`opgauge export`: a stored run as a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Database, database_url


class Format(StrEnum):
    """What to write."""

    JSON = "json"
    CSV = "csv"


def export(
    run: Annotated[str | None, typer.Option("--run", help="A run's id or its beginning; the latest if none.")] = None,
    form: Annotated[
        Format, typer.Option("--format", help="json: a list of objects; csv: the same, flat.")
    ] = Format.JSON,
    samples: Annotated[
        bool, typer.Option("--samples", help="The whole run with raw samples, for `opgauge import`; JSON only.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output if none.")] = None,
    db: Database = None,
) -> None:
    """Write a run's results: a record per result.

    Example: opgauge export --format csv --output run.csv
    """
    from harness.export import as_csv, as_json, records, whole_run
    from harness.store import Store

    with Store.open(database_url(db)) as store:
        found = store.find_run(run)
        results, reached = store.results(found.id, samples=samples), store.ceilings(found.id)
    if samples:
        if form is not Format.JSON:
            msg = "--samples writes JSON only"
            raise typer.BadParameter(msg)
        text = as_json(whole_run(found, results, reached))
    else:
        flat = records(found, results, reached)
        text = as_json(flat) if form is Format.JSON else as_csv(flat)
    if output is None:
        typer.echo(text.rstrip("\n"))
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"{len(results)} results in {output}", err=True)
