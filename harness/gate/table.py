"""Table of the gate's verdicts for a terminal. No information by colour alone."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from opgauge.harness.counting import counted
from opgauge.harness.gate import report
from opgauge.harness.gate.evidence import median_of
from opgauge.harness.gate.record import BASE, HEAD
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Comparison
from opgauge.harness.report.columns import Column, print_columns
from opgauge.harness.result.time_text import time_text


def show(run: GateRun, console: Console, *, every: bool = True) -> None:
    """Print a line per case, unmet demands and stale waivers, commands to investigate, and the outcome."""
    found = report.in_order(run) if every else report.flagged(run)
    if found:
        print_columns(_columns(run, found), console)
    for title, lines in (
        ("demand not met", run.outcome.breaches),
        ("excused", tuple(f"{one.subject}: {by.reason} ({by.owner})" for one, by in run.outcome.excused)),
        ("waiver", run.outcome.waivers),
        ("note", run.notes),
    ):
        for line in lines:
            console.print(escape(f"{title}: {line}"), highlight=False)
    for one in report.failures(run)[:3]:
        console.print(escape(f"again:  {report.reproduce(run, one)}"), highlight=False, soft_wrap=True)
    if run.seconds:
        blocks = counted(run.clock.blocks, "block")
        console.print(f"{blocks} in {run.seconds:.1f} s, {report.spent(run)}", highlight=False)
    console.print(escape(report.headline(run)), highlight=False, soft_wrap=True)


def _columns(run: GateRun, found: list[Comparison]) -> list[Column]:
    records = [run.records.get(one.subject) for one in found]
    columns = [
        Column("verdict", [report.word(one) for one in found], right=False),
        Column("op/case", [one.subject.path for one in found], right=False, least=16),
    ]
    if len({one.subject.implementation for one in found}) > 1:
        columns.append(Column("implementation", [one.subject.implementation for one in found], right=False, least=8))
    if len({one.subject.device for one in found}) > 1:
        columns.append(Column("device", [one.subject.device for one in found], right=False))
    for rank, side in ((3, BASE), (2, HEAD)):
        times = [time_text(median_of(record, side)) if record else "–" for record in records]
        columns.append(Column(side, times, rank))
    pairs = zip(found, records, strict=True)
    return [
        *columns,
        Column("change", [report.percent(one.ratio) for one in found]),
        Column("99 % interval", [report.interval(one) for one in found], 1),
        Column("sees", [report.sees(one, record) for one, record in pairs], 4),
        Column("pairs", [str(one.pairs) for one in found], 5),
        Column("why", [report.why(one) for one in found], right=False, least=12),
    ]
