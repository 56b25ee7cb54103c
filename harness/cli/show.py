"""`opgauge show`: a stored run, its implementations side by side."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer
from opgauge.harness.cli.options import AsJson, Database, Ops, database_url


class Order(StrEnum):
    """How to sort."""

    RUN = "run"
    SLOWEST = "slowest"
    NAME = "name"
    SPEEDUP = "speedup"


def show(
    run: Annotated[str | None, typer.Argument(help="A run's id or its beginning; the latest if none.")] = None,
    op: Ops = None,
    sort: Annotated[Order, typer.Option("--sort", help="slowest: slowest against its best peer first.")] = Order.RUN,
    peers: Annotated[bool, typer.Option("--peers", help="Against the fastest peer, slowest first.")] = False,
    variants: Annotated[bool, typer.Option("--variants", help="A column for each named variant too.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="The kernels of each call, where the run listed them (run --profile).")
    ] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: times, ratio to baseline and best peer, bandwidth, share of the ceiling.

    Example: opgauge show --sort slowest
    """
    from opgauge.harness.result.summary import rows, sort_rows
    from opgauge.harness.store import Store

    with Store.open(database_url(db)) as store:
        found = store.find_run(run)
        results = [item for item in store.results(found.id) if not op or item.trial.case.op in op]
        reached = store.ceilings(found.id)
    if as_json:
        from opgauge.harness.report.export import as_json as to_text
        from opgauge.harness.report.export import records

        typer.echo(to_text(records(found, results, reached)))
        return
    from opgauge.harness.report import kernels as kerneltable
    from opgauge.harness.report import render
    from rich.console import Console

    table = rows(results)
    if peers:
        table = [row for row in table if row.against_peer is not None]
    order = Order.SLOWEST if peers and sort is Order.RUN else sort
    if order is not Order.RUN:
        table = sort_rows(table, str(order))
    console = Console(width=None if sys.stdout.isatty() else 140)
    when = f"{found.started:%Y-%m-%d %H:%M} UTC"
    typer.echo(f"run {found.id}, {when}, {found.status}, commit {found.commit[:12] or 'unknown'}")
    if kernels:
        kerneltable.show(results, console)
        return
    if peers:
        console.print(render.against_peers(table, reached))
        return
    render.show(table, results, reached, console, variants=variants)
