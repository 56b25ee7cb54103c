"""Reports of one run of the gate: files, step summary, annotations, JSON and table; also of a run that failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from opgauge.harness.errors import HarnessError
from opgauge.harness.gate.annotation import annotate
from opgauge.harness.gate.gate import ExitCode, GateOutcome
from opgauge.harness.gate.junit import junit
from opgauge.harness.gate.markdown import markdown
from opgauge.harness.gate.report import as_plain
from opgauge.harness.gate.run import Conditions, GateRun
from opgauge.harness.gate.table import show
from opgauge.harness.report.columns import open_console
from opgauge.harness.run.environment import commit
from opgauge.harness.run.tree import Tree
from opgauge.harness.settings import load_actions


@dataclass(frozen=True, slots=True)
class Reports:
    """Requested reports. as_json: print JSON instead of a table. junit, markdown: files to write."""

    as_json: bool = False
    junit: Path | None = None
    markdown: Path | None = None


@contextmanager
def reported(head: Path, base: str, reports: Reports) -> Iterator[None]:
    """Write the reports of a run that ended with an error, with the error as a note; the error is raised."""
    try:
        yield
    except Exception as error:
        is_usage = isinstance(error, HarnessError) and error.exit_code == ExitCode.USAGE
        run = GateRun(
            base=Tree(Path(), "", base or "the fork point"),
            head=Tree(head, commit(head), "this tree"),
            found=(),
            outcome=GateOutcome(ExitCode.USAGE if is_usage else ExitCode.NOTHING, {}),
            records={},
            conditions=Conditions(),
            notes=(str(error) or type(error).__name__,),
        )
        write(run, reports)
        raise


def write(run: GateRun, reports: Reports) -> None:
    """Write the files, in GitHub Actions the step summary and the annotations, and print the JSON."""
    if reports.junit is not None:
        reports.junit.write_text(junit(run), encoding="utf-8")
    if reports.markdown is not None:
        reports.markdown.write_text(markdown(run), encoding="utf-8")
    if reports.as_json:
        typer.echo(json.dumps(as_plain(run), indent=1, allow_nan=False))
    actions = load_actions()
    if actions is None:
        return
    if actions.summary is not None:
        with actions.summary.open("a", encoding="utf-8") as file:
            file.write(markdown(run))
    if actions.output is not None:
        with actions.output.open("a", encoding="utf-8") as file:
            file.write(f"counts={json.dumps(dict(run.outcome.counts))}\n")
    for line in annotate(run):
        typer.echo(line, err=reports.as_json)


def print_table(run: GateRun, reports: Reports) -> None:
    """Print the table, unless JSON was printed."""
    if not reports.as_json:
        show(run, open_console())
