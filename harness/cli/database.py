"""`opgauge db`: the database itself."""

from __future__ import annotations

import typer
from opgauge.harness.cli.options import Database, database_url

database = typer.Typer(help="Look after the database.", no_args_is_help=True)


@database.command("upgrade")
def upgrade(db: Database = None) -> None:
    """Create the tables, or migrate them to what this opgauge needs.

    Example: opgauge db upgrade --db postgresql+psycopg://localhost/opgauge
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.schema import HEAD

    with Store.open(database_url(db), migrate=True) as store:
        typer.echo(f"{store.url}: schema {HEAD}")


@database.command("info")
def info(db: Database = None) -> None:
    """List the latest runs.

    Example: opgauge db info
    """
    from opgauge.harness.report.render import commit_text
    from opgauge.harness.store import Store

    with Store.open(database_url(db)) as store:
        runs = store.runs()
        typer.echo(f"{store.url}: {len(runs)} runs" + (", the latest 50" if len(runs) == 50 else ""))
        for found in runs:
            started = f"{found.started:%Y-%m-%d %H:%M}"
            typer.echo(
                f"{found.id}  {started}  {found.status:11}  {found.results:5} results  {commit_text(found.commit)}"
            )
