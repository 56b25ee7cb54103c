"""The gate's verdicts as self-contained Markdown, for a pull request or a step summary."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from opgauge.harness.counting import counted
from opgauge.harness.gate import report
from opgauge.harness.gate.evidence import clock_of, median_of, metrics_of
from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.gate.record import BASE, HEAD, SIDES, JobRecord
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Comparison
from opgauge.harness.report.render import ceilings_line
from opgauge.harness.result.result import Profile
from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.contract import VERSION

SAFE = frozenset(string.ascii_letters + string.digits + " .,:;/=+-()%–…→×µ·")
"""Characters that have no meaning in Markdown."""
SHOWN = 20
"""Flagged cases with all details."""
LISTED = 200
"""Most lines of the table."""
MARKS = {ExitCode.PASSED: "✅", ExitCode.UNDECIDED: "❔", ExitCode.NOTHING: "⚠️"}
"""Symbol of each exit code."""


def text(value: object) -> str:
    """Any text as Markdown without markup, links, mentions or HTML."""
    shown = "".join(char if char in SAFE else _entity(char) for char in " ".join(str(value).split()))
    return re.sub(r"(?i)(www)\.", r"\1&#46;", shown.replace("://", "&#58;//"))


def markdown(run: GateRun) -> str:
    """The whole report."""
    parts = [
        f"## {MARKS.get(run.outcome.code, '❌')} opgauge gate: {text(report.headline(run))}",
        _method(run),
        *_details(run),
        *_listing("Demands of the policy that are not met", run.outcome.breaches),
        *_listing("Excused", _waived(run)),
        *_listing("Waivers", run.outcome.waivers),
        *_listing("Notes", run.notes),
        _table(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _waived(run: GateRun) -> Iterable[str]:
    return (f"{one.subject}: {by.reason} ({by.owner}, until {by.until})" for one, by in run.outcome.excused)


def _method(run: GateRun) -> str:
    how = (
        f"Exit code {int(run.outcome.code)}. Both trees were measured by one harness (contract {VERSION}) in "
        f"{run.clock.blocks} fresh processes, in random order within balance; {run.seconds:.0f} s in all, "
        f"{report.spent(run)}. A change is the ratio of head to base, its interval holds it in 99 of 100 "
        "runs, and of the cases called slower at most 1 in 100 is a false alarm. *undecided* is not a pass: neither "
        "could be shown."
    )
    lines = [how]
    if run.ceilings:
        lines.append(text(ceilings_line(run.ceilings)))
    return "\n\n".join(lines)


def _details(run: GateRun) -> list[str]:
    flagged = report.flagged(run)
    if not flagged:
        return []
    shown = [_detail(run, one) for one in flagged[:SHOWN]]
    rest = len(flagged) - len(shown)
    return ["### Flagged", *shown, *([f"… and {rest} more, in the table below."] if rest > 0 else [])]


def _detail(run: GateRun, found: Comparison) -> str:
    record = run.records.get(found.subject)
    astray = f", {found.left_out} excluded as outliers" if found.left_out else ""
    lines = [
        f"**{text(report.word(found))}** {text(found.subject)}: {text(report.why(found))}",
        "",
        (
            f"- change {text(report.percent(found.ratio))}, interval {text(report.interval(found))}, "
            f"{counted(found.pairs, 'pair')}{astray}; detectable: {text(report.sees(found, record))}"
        ),
    ]
    if record is not None:
        lines += _sides(run, found, record)
    commands = [_code(one) for one in (report.reproduce(run, found), report.bisect(run, found)) if one]
    lines += ["", "<pre>" + "\n".join(commands) + "</pre>"]
    return "\n".join(lines)


def _sides(run: GateRun, found: Comparison, record: JobRecord) -> list[str]:
    lines = []
    for side in SIDES:
        blocks = ", ".join(time_text(time) for time in record.medians_ns(side).values())
        clock = clock_of(record, side)
        at = f" at {clock:.0f} MHz" if clock else ""
        lines.append(f"- {side}: {text(time_text(median_of(record, side)))}{at}; blocks: {text(blocks or 'none')}")
    if found.is_bimodal:
        modes = (f"{side} {' and '.join(time_text(one) for one in values)}" for side, values in _modes(found))
        lines.append(f"- two modes: {text('; '.join(modes))}")
    calibration = report.calibration_lines(found, run.records)
    if calibration:
        moved = " – **the host moved**" if found.host_moved else ""
        lines.append(f"- calibration workload: {text(calibration)} from base to head{moved}")
    profiled = run.profiles.get(found.subject)
    return lines + (_profiled(profiled) if profiled else _kernels(record))


def _modes(found: Comparison) -> Iterable[tuple[str, Sequence[float]]]:
    return ((BASE, found.base_modes_ns), (HEAD, found.head_modes_ns))


def _kernels(record: JobRecord) -> list[str]:
    """Kernels of one call, A against B, by how often they are launched."""
    base, head = (Counter(metrics_of(record.outcomes[side].values()).kernels or ()) for side in SIDES)
    names = [*base, *(name for name in head if name not in base)]
    return [f"- kernel {text(name)}: {base[name]} → {counted(head[name], 'launch')}" for name in names[:SHOWN]]


def _profiled(profiles: Mapping[str, Profile]) -> list[str]:
    """Kernels of one call, A against B, longest first: launches and time."""
    reasons = [f"- kernels of {side}: {text(found.reason)}" for side, found in profiles.items() if found.reason]
    by_side = {side: {one.name: one for one in found.kernels} for side, found in profiles.items()}
    names = dict.fromkeys(name for side in by_side.values() for name in side)
    lines = []
    for name in list(names)[:SHOWN]:
        used = [by_side.get(side, {}).get(name) for side in SIDES]
        times = " → ".join("none" if one is None else f"{one.launches} × {time_text(one.time_ns)}" for one in used)
        lines.append(f"- kernel {text(name)}: {text(times)}")
    return reasons + lines


def _listing(title: str, items: Iterable[object]) -> list[str]:
    lines = [f"- {text(item)}" for item in items]
    return ["\n".join((f"**{title}**", "", *lines))] if lines else []


def _table(run: GateRun) -> str:
    found = report.in_order(run)
    rows = [
        "<details><summary>All cases</summary>",
        "",
        "| verdict | op/case | implementation | device | base | head | change | 99 % interval | sees | why |",
        "|---|---|---|---|--:|--:|--:|---|---|---|",
    ]
    for one in found[:LISTED]:
        record = run.records.get(one.subject)
        times = [time_text(median_of(record, side)) if record else "–" for side in SIDES]
        cells = [report.word(one), one.subject.path, one.subject.implementation, one.subject.device, *times]
        cells += [report.percent(one.ratio), report.interval(one), report.sees(one, record), report.why(one)]
        rows.append(f"| {' | '.join(text(cell) for cell in cells)} |")
    rest = len(found) - LISTED
    return "\n".join((*rows, "", *([f"… and {rest} more", ""] if rest > 0 else []), "</details>"))


def _code(command: str) -> str:
    return "".join(char if char in SAFE or char in "_'\"" else _entity(char) for char in command)


def _entity(char: str) -> str:
    if char == "@":
        # GitHub resolves entities before mentions; this character separates the sign from the name
        return "&#64;&#8203;"
    return f"&#{ord(char)};" if char.isprintable() else "\N{REPLACEMENT CHARACTER}"
