"""`opgauge show`: table of a stored run, its implementations side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from opgauge.harness.cli.options import AsJson, Database, Ops, database_url


def show(
    run: Annotated[str | None, typer.Argument(help="A run's id, its beginning, or `last`; the latest if none.")] = None,
    op: Ops = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="ORDER|COLUMN",
            help="run; slowest (against the fastest peer); speedup; name; or any column: op, case, dtype, device, "
            "an implementation, base, peer, gbps, ceil, status.",
        ),
    ] = "run",
    reverse: Annotated[bool, typer.Option("--reverse", help="Largest first.")] = False,
    peers: Annotated[bool, typer.Option("--peers", help="Against the fastest peer, slowest first.")] = False,
    variants: Annotated[bool, typer.Option("--variants", help="A column for each named variant too.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="The kernels of each call, if the run listed them (run --profile).")
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Which CUDA kernel ran for each case, its launch, and why.")
    ] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: times, ratio to baseline and fastest peer, bandwidth, share of the ceiling.

    Example: opgauge show --sort slowest
    """
    from opgauge.harness.case.filters import matches_any, require_matches
    from opgauge.harness.result.summary import rows
    from opgauge.harness.store import Store

    with Store.open(database_url(db)) as store:
        found = store.find_run(run)
        stored = store.results(found.id)
        reached = store.ceilings(found.id)
    require_matches({"--op": op}, {"--op": {item.trial.case.op for item in stored}})
    results = [item for item in stored if matches_any(op, [item.trial.case.op])]
    if as_json:
        from opgauge.harness.report.export import as_json as to_text
        from opgauge.harness.report.export import records

        typer.echo(to_text(records(found, results, reached)))
        return
    from opgauge.harness.report import kernels as kerneltable
    from opgauge.harness.report import plans, render
    from opgauge.harness.report.columns import open_console, print_columns
    from opgauge.harness.report.sorting import sort as sorted_rows

    table = rows(results)
    if peers:
        table = [row for row in table if row.against_peer is not None]
    table = sorted_rows(table, "slowest" if peers and sort == "run" else sort, reached, reverse=reverse)
    console = open_console()
    when = f"{found.started:%Y-%m-%d %H:%M} UTC"
    typer.echo(f"run {found.id}, {when}, {found.status}, commit {render.commit_text(found.commit)}")
    if kernels:
        kerneltable.show(results, console)
    elif why:
        plans.show(results, console)
    elif peers:
        print_columns(render.against_peers(table, reached), console)
    else:
        render.show(table, results, reached, console, variants=variants)
