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
        code = error.exit_code if isinstance(error, HarnessError) else int(ExitCode.NOTHING)
        is_told = code in {ExitCode.USAGE, ExitCode.BROKEN}
        run = GateRun(
            base=Tree(Path(), "", base or "the fork point"),
            head=Tree(head, commit(head), "this tree"),
            found=(),
            outcome=GateOutcome(ExitCode(code) if is_told else ExitCode.NOTHING, {}),
            records={},
            conditions=Conditions(),
            notes=(str(error) or type(error).__name__,),
        )
        write(run, reports)
        raise


def write(run: GateRun, reports: Reports) -> None:
    """Write the files, in GitHub Actions the step summary and the annotations, and print the JSON."""
    for target, render in ((reports.junit, junit), (reports.markdown, markdown)):
        if target is not None:
            _write_file(target, render(run))
    if reports.as_json:
        typer.echo(json.dumps(as_plain(run), indent=1, allow_nan=False))
    actions = load_actions()
    if actions is None:
        return
    if actions.summary is not None:
        _write_file(actions.summary, markdown(run), mode="a")
    if actions.output is not None:
        _write_file(actions.output, f"counts={json.dumps(dict(run.outcome.counts))}\n", mode="a")
    for line in annotate(run):
        typer.echo(line, err=reports.as_json)


def _write_file(target: Path, text: str, mode: str = "w") -> None:
    """Write or extend a report; one that cannot be written is told, and does not take the verdict with it."""
    try:
        with target.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        typer.echo(f"opgauge: {target} cannot be written: {error.strerror}", err=True)


def print_table(run: GateRun, reports: Reports) -> None:
    """Print the table, unless JSON was printed."""
    if not reports.as_json:
        show(run, open_console())
