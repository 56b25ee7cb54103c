"""`opgauge compare`: comparison of stored or imported runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli import gate_options as gating
from opgauge.harness.cli.options import AsJson, Cases, Database, Devices, Ops, database_url

if TYPE_CHECKING:
    from opgauge.harness.gate.stored_comparison import Chosen
    from opgauge.harness.judge.verdict import Subject


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Base, then head: run ids, last, commits or branches. One alone is compared with the last run.",
        ),
    ],
    head: Annotated[
        list[str] | None,
        typer.Option("--head", metavar="RUN", help="Run of the head; repeatable. Then all RUNs are of the base."),
    ] = None,
    case: Cases = None,
    op: Ops = None,
    implementation: gating.Implementations = None,
    device: Devices = None,
    policy: gating.PolicyFile = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a Markdown report.")
    ] = None,
    as_json: AsJson = False,
    db: Database = None,
) -> None:
    """Compare stored runs: several runs of a side are replicates, as are their processes.

    Nothing is measured. Ends as `gate` does: 0 passed, 1 slower, 2 usage error, 3 broken, 4 undecided, 5 nothing
    found.

    Example: opgauge compare main --head last
    """
    gating.refuse_unwritable(junit, markdown)
    from opgauge.harness.cli.gate_reports import Reports, print_table, reported, write
    from opgauge.harness.gate.stored_comparison import compare_stored, resolve
    from opgauge.harness.store import LATEST, Store

    heads = head or [runs[-1] if len(runs) > 1 else LATEST]
    bases = runs if head or len(runs) == 1 else runs[:-1]
    conditions = gating.load_rules(Path.cwd(), policy)
    reports = Reports(as_json=as_json, junit=junit, markdown=markdown)
    with Store.open(database_url(db)) as store, reported(Path.cwd(), " ".join(bases), reports):
        sides = [[run for name in names for run in resolve(store.engine, name)] for names in (bases, heads)]
        if not head and len(runs) == 1:
            sides[0] = [run for run in sides[0] if run not in sides[1]]
        is_chosen = choice(case, op, implementation, device)
        found = compare_stored(store.engine, sides[0], sides[1], conditions, is_chosen)
    write(found, reports)
    print_table(found, reports)
    raise typer.Exit(int(found.outcome.code))


def choice(
    cases: list[str] | None, ops: list[str] | None, implementations: list[str] | None, devices: list[str] | None
) -> Chosen:
    """Whether a subject matches a value of each given filter."""
    from opgauge.harness.case.filters import matches_any
    from opgauge.harness.judge.pattern import matches

    def is_chosen(subject: Subject) -> bool:
        return (
            (not cases or any(matches(pattern, subject) for pattern in cases))
            and matches_any(ops, [subject.op])
            and matches_any(implementations, [subject.implementation])
            and (not devices or any(subject.device.startswith(one) for one in devices))
        )

    return is_chosen
