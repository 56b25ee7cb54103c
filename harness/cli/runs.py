"""`opgauge runs`: list and delete stored runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.options import AsJson, Database, database_url
from opgauge.harness.cli.period import Last, Since, period_start
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from datetime import datetime

    from opgauge.harness.store import Store
    from opgauge.harness.store.store import Run

MOST = 100_000
"""Most runs that a list reads."""

runs = typer.Typer(help="List and delete stored runs.", no_args_is_help=True)


@runs.command("list")
def list_runs(
    last: Last = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Newest runs to list.")] = 50,
    as_json: AsJson = False,
    db: Database = None,
) -> None:
    """List runs, newest first.

    Example: opgauge runs list --last 30d
    """
    from opgauge.harness.report.render import commit_text
    from opgauge.harness.store import Store

    start = period_start(last, since)
    with Store.open(database_url(db)) as store:
        found = _since(store, start)[:limit]
    if as_json:
        import json

        typer.echo(json.dumps([_plain(run) for run in found], indent=1))
        return
    from opgauge.harness.report.columns import Column, open_console, print_columns

    columns = [
        Column("run", [run.id[:8] for run in found], right=False),
        Column("started (UTC)", [f"{run.started:%Y-%m-%d %H:%M}" for run in found], right=False),
        Column("status", [run.status for run in found], right=False),
        Column("results", [str(run.results) for run in found], 1),
        Column("commit", [commit_text(run.commit) for run in found], 2, right=False),
        Column("command", [run.command for run in found], 3, right=False, least=20),
    ]
    print_columns(columns, open_console())


@runs.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="RUN…", help="Ids of runs, or their beginnings.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db: Database = None,
) -> None:
    """Delete runs with their results and samples.

    Example: opgauge runs rm 3f2a91c0 --yes
    """
    from opgauge.harness.report.render import commit_text
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.deleting import delete_runs

    with Store.open(database_url(db)) as store:
        found = {run.id: run for run in map(store.find_run, names)}
        for run in found.values():
            when = f"{run.started:%Y-%m-%d %H:%M}"
            typer.echo(f"{run.id}  {when}  {run.status}  {counted(run.results, 'result')}  {commit_text(run.commit)}")
        if not yes:
            typer.confirm(f"Delete {counted(len(found), 'run')} from {store.place}?", abort=True)
        typer.echo(f"{counted(delete_runs(store.engine, found.keys()), 'run')} deleted")
        for name in found:
            add_audit(store.engine, "", "delete run", name)


def _since(store: Store, start: datetime | None) -> list[Run]:
    return [run for run in store.runs(MOST) if start is None or run.started >= start]


def _plain(run: Run) -> dict[str, object]:
    return {
        "id": run.id,
        "started": run.started.isoformat(),
        "finished": None if run.finished is None else run.finished.isoformat(),
        "status": run.status,
        "results": run.results,
        "commit": run.commit,
        "command": run.command,
    }
