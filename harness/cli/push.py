"""`opgauge push`: sending stored runs to a service."""

from __future__ import annotations

from typing import Annotated

import typer

from opgauge.harness.cli.options import Database, database_url
from opgauge.harness.counting import counted

ALL = 1_000_000
"""Most runs to send."""


def push(
    url: Annotated[str, typer.Argument(help="The service, for example https://opgauge.example.")],
    run: Annotated[
        list[str] | None, typer.Option("--run", help="A run's id, its beginning, or `last`; repeatable. All if none.")
    ] = None,
    db: Database = None,
) -> None:
    """Send stored runs to a service, except those that it has.

    The token comes from OPGAUGE_TOKEN. Temporary failures are retried; a run arrives completely or not at all. A
    run that the service refuses does not stop others; the exit code is then 1.

    Example: OPGAUGE_TOKEN=opg_… opgauge push https://opgauge.example
    """
    from opgauge.harness.report.push import Client
    from opgauge.harness.report.push import push as push_runs
    from opgauge.harness.settings import load_settings
    from opgauge.harness.store import Store

    token = load_settings().token
    with Store.open(database_url(db)) as store, Client(url, token) as client:
        runs = [store.find_run(name) for name in run] if run else store.runs(limit=ALL)[::-1]
        sent = refused = 0
        for found in push_runs(store, runs, client):
            reason = f": {found.reason}" if found.reason else ""
            typer.echo(f"{found.run.id}  {counted(found.run.results, 'result'):>13}  {found.outcome}{reason}")
            sent += found.outcome == "sent"
            refused += found.outcome == "refused"
    typer.echo(f"{sent} of {counted(len(runs), 'run')} sent" + (f", {refused} refused" if refused else ""))
    if refused:
        raise typer.Exit(1)
