"""The gate's findings for a terminal. No information by colour alone."""

from __future__ import annotations

from opgauge.harness.gate import report
from opgauge.harness.gate.evidence import median_of
from opgauge.harness.gate.pairing import BASE, HEAD
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Comparison
from opgauge.harness.report.render import time_text
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show(run: GateRun, console: Console, *, every: bool = True) -> None:
    """Print a line per case, what is not met or stale, how to look further, and the outcome."""
    found = report.in_order(run) if every else report.flagged(run)
    if found:
        console.print(_table(run, found))
    for title, lines in (
        ("demand not met", run.outcome.breaches),
        ("excused", tuple(f"{one.subject}: {by.reason} ({by.owner})" for one, by in run.outcome.excused)),
        ("waiver", run.outcome.waivers),
        ("note", run.notes),
    ):
        for line in lines:
            console.print(escape(f"{title}: {line}"), highlight=False)
    for one in run.outcome.failures[:3]:
        console.print(escape(f"again:  {report.reproduce(run, one)}"), highlight=False, soft_wrap=True)
    share = report.measuring_share(run) or 0.0
    console.print(
        f"{run.clock.blocks} blocks in {run.seconds:.1f} s, {100 * share:.0f} % of it sampling", highlight=False
    )
    console.print(escape(report.headline(run)), highlight=False, soft_wrap=True)


def _table(run: GateRun, found: list[Comparison]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("verdict", no_wrap=True)
    table.add_column("op/case", overflow="fold", min_width=16)
    if len({one.subject.implementation for one in found}) > 1:
        table.add_column("implementation")
    if len({one.subject.device for one in found}) > 1:
        table.add_column("device", no_wrap=True)
    for name in ("base", "head", "change", "99 % interval", "sees"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pairs", justify="right")
    table.add_column("why", overflow="fold")
    titles = {str(column.header) for column in table.columns}
    for one in found:
        record = run.records.get(one.subject)
        cells = [report.word(one), one.subject.path]
        cells += [one.subject.implementation] if "implementation" in titles else []
        cells += [one.subject.device] if "device" in titles else []
        cells += [time_text(median_of(record, side)) if record else "–" for side in (BASE, HEAD)]
        cells += [report.percent(one.ratio), report.interval(one), report.sees(one, record), str(one.pairs)]
        table.add_row(*(escape(cell) for cell in cells), escape(report.why(one)))
    return table
