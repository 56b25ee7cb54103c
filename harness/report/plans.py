"""Plans of kernels for a terminal: which kernel was launched for each case, and why."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from opgauge.harness.counting import counted
from opgauge.harness.report.columns import Column, print_columns
from opgauge.harness.result.result import Result

LEAST = 24
"""Width down to which plans wrap."""


def show(results: Iterable[Result], console: Console) -> None:
    """Print the plans of each result that has some, and how many have none."""
    known = [(result, [str(one) for one in result.extra.get("plans") or ()]) for result in results]
    lines = [
        (f"{result.trial.case.op} · {result.trial.case.name}", result.trial.implementation, plan)
        for result, plans in known
        for plan in plans
    ]
    if lines:
        names, implementations, plans = zip(*lines, strict=True)
        print_columns(
            [
                Column("op · case", names, 0, False, LEAST),
                Column("implementation", implementations, 1, False, 0),
                Column("kernel and reason", plans, 0, False, LEAST),
            ],
            console,
        )
    without = sum(not plans for _, plans in known)
    if without or not known:
        where = counted(without, "result")
        text = f"no plan for {where}: only opgauge's CUDA kernels record them" if known else "no results"
        console.print(text, highlight=False, markup=False)
