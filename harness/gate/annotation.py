"""Annotations: the gate's verdicts as GitHub's workflow commands, which mark the case's line in the diff."""

from __future__ import annotations

from pathlib import Path

from opgauge.harness.gate import report
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Comparison
from opgauge.harness.project.revision import repository_top

MOST = 10
"""Annotations of a kind that GitHub displays for a step."""


def annotate(run: GateRun) -> list[str]:
    """A line for each of the gravest failures, warnings for what the policy allows, and for waivers in disorder."""
    top = repository_top(run.head.path)
    lines = [_flag(run, one, top, "error") for one in report.failures(run)[:MOST]]
    lines += [_flag(run, one, top, "warning") for one in report.tolerated(run)[:MOST]]
    lines += [_command("error", "opgauge: demand", str(one)) for one in run.outcome.breaches[:MOST]]
    stale = [str(one) for one in run.outcome.waivers if str(one.state) not in {"used", "its cases were not compared"}]
    return lines + [_command("warning", "opgauge: waiver", text) for text in stale[:MOST]]


def _flag(run: GateRun, found: Comparison, top: Path, level: str) -> str:
    record = run.records.get(found.subject)
    place = {}
    if record is not None:
        file = Path(str(record.job.trial["case"].get("file", "")))
        if file.is_absolute() and file.is_relative_to(top):
            place = {"file": file.relative_to(top).as_posix(), "line": str(record.job.trial["case"]["line"])}
    change = f" {report.percent(found.ratio)} ({report.interval(found)})" if found.interval else ""
    text = f"{found.subject}: {report.word(found)}{change}: {report.why(found)}\n{report.reproduce(run, found)}"
    return _command(level, f"opgauge: {report.word(found)}", text, **place)


def _command(level: str, title: str, text: str, **properties: str) -> str:
    given = ",".join(f"{name}={_property(value)}" for name, value in {**properties, "title": title}.items())
    return f"::{level} {given}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
