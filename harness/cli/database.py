"""`opgauge db`: database migration, backup, retention and deletion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from opgauge.harness.cli.options import AsJson, Database, database_url
from opgauge.harness.counting import counted

database = typer.Typer(help="Maintain the database.", no_args_is_help=True)
AGE = re.compile(r"(\d{1,5})d")
"""Number of days."""


@database.command("upgrade")
def upgrade(db: Database = None) -> None:
    """Create the tables, or migrate them to the schema of this opgauge. Back up first: there is no downgrade.

    Example: opgauge db upgrade --db postgresql+psycopg://localhost/opgauge
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.schema import HEAD

    with Store.open(database_url(db), migrate=True) as store:
        typer.echo(f"{store.place}: schema {HEAD}")


@database.command("info")
def info(db: Database = None) -> None:
    """List the latest runs.

    Example: opgauge db info
    """
    from opgauge.harness.report.render import commit_text
    from opgauge.harness.store import Store

    with Store.open(database_url(db)) as store:
        runs = store.runs()
        typer.echo(f"{store.place}: {counted(len(runs), 'run')}" + (", the latest 50" if len(runs) == 50 else ""))
        for found in runs:
            started = f"{found.started:%Y-%m-%d %H:%M}"
            results = f"{counted(found.results, 'result'):>13}"
            typer.echo(f"{found.id}  {started}  {found.status:11}  {results}  {commit_text(found.commit)}")


@database.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist.")], db: Database = None
) -> None:
    """Write a consistent copy while the database is in use: a SQLite file, or an archive of pg_dump.

    Example: opgauge db backup opgauge-2026-11-25.db
    """
    from opgauge.harness.store.maintenance import back_up_database

    typer.echo(f"{file}: {back_up_database(database_url(db), file):,} bytes")


@database.command("prune")
def prune(
    samples_older: Annotated[
        str | None, typer.Option("--samples-older", help="Age, for example 90d; each project's own retention if none.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    db: Database = None,
) -> None:
    """Drop raw samples of old runs; medians, quartiles and verdicts stay.

    Example: opgauge db prune --samples-older 90d
    """
    from datetime import timedelta

    from opgauge.harness.errors import SettingsError
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.maintenance import prune_samples

    found = AGE.fullmatch(samples_older or "0d")
    if found is None:
        msg = f"--samples-older should be a number of days such as 90d, not {samples_older!r}"
        raise SettingsError(msg)
    age = timedelta(days=int(found[1])) if samples_older else None
    with Store.open(database_url(db)) as store:
        dropped = prune_samples(store.engine, age, project)
        add_audit(store.engine, "", "prune samples", samples_older or "by project", str(dropped))
    for name, count in dropped.items():
        typer.echo(f"{name or 'unnamed project'}: raw samples of {counted(count, 'result')} dropped")
    if not dropped:
        typer.echo("no project has a retention; give --samples-older, or opgauge project set NAME --samples-days")


@database.command("audit")
def audit(
    limit: Annotated[int, typer.Option("--limit", help="Number of entries.", min=1, max=100_000)] = 50,
    as_json: AsJson = False,
    db: Database = None,
) -> None:
    """List the latest entries of the audit log: submissions, acknowledgements, refusals, administration.

    Example: opgauge db audit --limit 20
    """
    import json
    from dataclasses import asdict

    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import list_audit

    with Store.open(database_url(db)) as store:
        found = list_audit(store.engine, limit)
    if as_json:
        entries = [{**asdict(one), "created": one.created.isoformat()} for one in found]
        typer.echo(json.dumps(entries, indent=1))
        return
    if not found:
        typer.echo("no entries yet", err=True)
    for one in found:
        actor = one.actor or "command line"
        typer.echo(f"{one.created:%Y-%m-%d %H:%M:%S}  {actor:20}  {one.action:14}  {one.subject}  {one.detail}")
