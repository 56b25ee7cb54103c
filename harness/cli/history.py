"""`opgauge history`: a case's stored series, and the commits at which its level changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.options import AsJson, Database, database_url
from opgauge.harness.cli.period import Last, Since, period_start
from opgauge.harness.counting import counted

if TYPE_CHECKING:
    from rich.table import Table

    from opgauge.harness.report.history import Series

LATEST = 15
"""Number of latest points in the table, besides those at which the level changed."""


def history(
    case: Annotated[str, typer.Argument(metavar="CASE", help="op/case (with * and ?), an op, or a case's id.")],
    branch: Annotated[
        str | None, typer.Option("--branch", help="Runs of commits of this branch, not of the default one.")
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", "-i", help="Only this implementation; repeatable.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Only this device, as it was stored: cpu, cuda:0.")
    ] = None,
    least: Annotated[float, typer.Option("--least", help="Smallest change to show, 0.02 is 2 %.", min=0.0)] = 0.0,
    last: Last = None,
    since: Since = None,
    as_json: AsJson = False,
    db: Database = None,
) -> None:
    """Find the change points of stored series: at least 10 points, 3 at either edge.

    A series has the clean runs of its project's default branch in the order of the commits, as on the pages. Other
    runs count only where there are none of these.

    Example: opgauge history 'p_norm/seed-1*' --branch main
    """
    from opgauge.harness.report.history import as_plain, find_series
    from opgauge.harness.run.tree import reachable
    from opgauge.harness.store import Store

    commits = set(reachable(Path.cwd(), branch)) if branch else set()
    with Store.open(database_url(db)) as store:
        found = find_series(
            store.engine,
            case,
            branch=branch,
            commits=commits,
            implementations=implementation or (),
            device=device,
            since=period_start(last, since),
        )
    if as_json:
        typer.echo(json.dumps([as_plain(one, 1 + least) for one in found], indent=1))
        return
    from rich.markup import escape

    from opgauge.harness.report.columns import open_console

    console = open_console()
    for series in found:
        where = ", ".join(filter(None, (series.project, series.machine)))
        console.print(escape(f"{series.subject} ({where})"), highlight=False)
        console.print(table(series, 1 + least))
        if not series.is_long_enough:
            console.print(f"{counted(len(series.points), 'point')}; change points need 10", highlight=False)


def table(series: Series, least_ratio: float) -> Table:
    """The latest points and those at which the level changed, which are marked in words."""
    from rich import box
    from rich.table import Table

    from opgauge.harness.report.render import commit_text
    from opgauge.harness.result.time_text import time_text

    changes = {one.index: one for one in series.changes(least_ratio)}
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "when", "commit", "median", "change of level"):
        made.add_column(name, no_wrap=True)
    last = len(series.points) - LATEST
    for index, point in enumerate(series.points):
        change = changes.get(index)
        if index < last and change is None:
            continue
        said = ""
        if change is not None:
            levels = f"{time_text(change.before)} → {time_text(change.after)}"
            said = f"{'slower' if change.ratio > 1 else 'faster'} {100 * (change.ratio - 1):+.1f} %, {levels}"
        when = f"{point.started:%Y-%m-%d %H:%M}"
        made.add_row(point.run[:8], when, commit_text(point.commit), time_text(point.median_ns), said)
    return made
