"""Report of a gate run in words and plain values, for its table, JSON, JUnit, Markdown and annotations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from opgauge.harness.gate.bisection import bisection
from opgauge.harness.gate.evidence import clock_of, median_of, metrics_of, side_of
from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.gate.record import BASE, HEAD, MEASURING, JobRecord
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Comparison, Kind, Reason, Verdict
from opgauge.harness.result.record_json import to_json
from opgauge.harness.worker.contract import VERSION

WORDS = {
    ExitCode.PASSED: "passed",
    ExitCode.SLOWER: "slower",
    ExitCode.USAGE: "usage error",
    ExitCode.BROKEN: "broken",
    ExitCode.UNDECIDED: "undecided",
    ExitCode.NOTHING: "nothing measured",
}
"""Word for each exit code."""
FLAGGED = {Verdict.SLOWER, Verdict.BROKEN, Verdict.UNDECIDED}
"""Verdicts that need attention."""
LEAST_SHARE, MOST_SHARES = 0.1, 3
"""Least share of the time that is named beside sampling, and most of these."""
ORDER = (Verdict.BROKEN, Verdict.SLOWER, Verdict.UNDECIDED, Verdict.FASTER, Verdict.SAME)
"""Verdicts in order of gravity."""


def word(found: Comparison) -> str:
    """The verdict, or the kind of a case without one."""
    return str(found.verdict or found.kind)


def headline(run: GateRun) -> str:
    """The outcome in one line."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted(run.outcome.counts.items()))
    return f"{WORDS[run.outcome.code]}: {run.head} against {run.base}: {counts or 'no case'}"


def percent(ratio: float | None) -> str:
    """A ratio as a change: `+7.2 %`."""
    return "–" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def interval(found: Comparison) -> str:
    """The 99 % interval as changes."""
    if found.interval is None:
        return "–"
    low, high = found.interval
    return f"{100 * (low - 1):+.1f} … {100 * (high - 1):+.1f} %"


def sees(found: Comparison, record: JobRecord | None) -> str:
    """The case's detectable change, and its cost per side."""
    if found.detectable_change is None or record is None:
        return "–"
    return f"{100 * found.detectable_change:.1f} % in {record.sampling_s:.2g} s"


def why(found: Comparison) -> str:
    """The reason with its detail, in one line."""
    details = [" ".join(found.detail.split())[:300]] if found.detail else []
    details += [f"{one.metric} {_amount(one.before)} → {_amount(one.after)}" for one in found.changes]
    reason = str(found.reason)
    if found.reason is Reason.WITHIN and found.same_within is not None:
        reason = f"the 99 % interval lies within ±{100 * found.same_within:g} %"
    return f"{reason} ({'; '.join(details)})" if details else reason


def in_order(run: GateRun) -> list[Comparison]:
    """Comparisons in order of gravity; those without a verdict last."""
    return sorted(run.found, key=_place)


def _place(found: Comparison) -> int:
    return ORDER.index(found.verdict) if found.verdict in ORDER else len(ORDER)


def failures(run: GateRun) -> list[Comparison]:
    """Failing comparisons without a waiver, gravest first."""
    return sorted(run.outcome.failures, key=_place)


def tolerated(run: GateRun) -> list[Comparison]:
    """Flagged comparisons that neither fail nor have a waiver: the policy allows undecided ones, for example."""
    others = [*run.outcome.failures, *(one for one, _ in run.outcome.excused)]
    return [one for one in flagged(run) if not any(one is other for other in others)]


def flagged(run: GateRun) -> list[Comparison]:
    """Comparisons that need attention, gravest first."""
    return [one for one in in_order(run) if one.verdict in FLAGGED or one.kind is Kind.UNMEASURED]


def reproduce(run: GateRun, found: Comparison) -> str:
    """The command that compares this case alone again. Cases are named by id, since names may contain any character."""
    subject = found.subject
    if run.command:
        return f"{run.command} --case {shlex.quote(subject.case_id)} -i {shlex.quote(subject.implementation)}"
    return shlex.join(_again(run, found))


def _again(run: GateRun, found: Comparison) -> list[str]:
    subject = found.subject
    words = ["opgauge", "gate", "--base", _commit(run.base.commit) or run.base.label, "--case", subject.case_id]
    words += ["-i", subject.implementation, "--device", subject.device]
    return [*words, *(str(path) for path in run.paths)]


def bisect(run: GateRun, found: Comparison) -> str:
    """The command that finds the commit of a change for the worse; empty if it need not be in one.

    It needs a base whose commit is known and which is right, and a head without uncommitted changes.
    """
    record = run.records.get(found.subject)
    before = None if record is None else side_of(record, BASE)
    if found.verdict not in {Verdict.BROKEN, Verdict.SLOWER} or before is None or not before.is_right:
        return ""
    base, head = _commit(run.base.commit), _commit(run.head.commit)
    if run.command or not base or not head or run.head.commit.endswith("-dirty"):
        return ""
    how = "--bisect-broken" if found.verdict is Verdict.BROKEN else "--bisect"
    return bisection(run.head.path, base, head, [*_again(run, found), how])


def as_plain(run: GateRun) -> dict[str, Any]:
    """The whole report as plain JSON."""
    return {
        "outcome": WORDS[run.outcome.code],
        "exit_code": int(run.outcome.code),
        "base": {"label": run.base.label, "commit": run.base.commit},
        "head": {"label": run.head.label, "commit": run.head.commit},
        "contract": VERSION,
        "counts": dict(run.outcome.counts),
        "cases": [_case(run, one) for one in in_order(run)],
        "breaches": [str(one) for one in run.outcome.breaches],
        "excused": [
            {"case": str(one.subject), "owner": by.owner, "reason": by.reason} for one, by in run.outcome.excused
        ],
        "waivers": [str(one) for one in run.outcome.waivers],
        "ceilings": {device: to_json(found) for device, found in run.ceilings.items()},
        "notes": list(run.notes),
        "seconds": round(run.seconds, 3),
        "measuring_share": measuring_share(run),
        "blocks": run.clock.blocks,
    }


def measuring_share(run: GateRun) -> float | None:
    """The share of wall time spent on sampling and warm-up, 0 to 1."""
    return round(run.clock.measuring_s / run.seconds, 4) if run.seconds else None


def spent(run: GateRun) -> str:
    """Shares of the wall time: of sampling, and of the activities that took most beside it."""
    shares = {name: spent_s / (run.seconds or 1) for name, spent_s in run.clock.spent_s(run.seconds).items()}
    sampling = shares.pop(MEASURING, 0.0)
    most = sorted((name for name in shares if shares[name] >= LEAST_SHARE), key=shares.__getitem__, reverse=True)
    parts = [f"{100 * sampling:.0f} % of it sampling"]
    return ", ".join(parts + [f"{100 * shares[name]:.0f} % {name}" for name in most[:MOST_SHARES]])


def _case(run: GateRun, found: Comparison) -> dict[str, Any]:
    record = run.records.get(found.subject)
    return {
        **asdict(found.subject),
        "verdict": None if found.verdict is None else str(found.verdict),
        "kind": str(found.kind),
        "reason": str(found.reason),
        "detail": found.detail,
        "ratio": found.ratio,
        "interval": found.interval,
        "detectable_change": found.detectable_change,
        "same_within": found.same_within,
        "pairs": found.pairs,
        "method": None if record is None else record.method,
        "left_out": found.left_out,
        "host_moved": found.host_moved,
        "changes": [asdict(one) for one in found.changes],
        "modes_ns": {BASE: found.base_modes_ns, HEAD: found.head_modes_ns},
        "sides": {} if record is None else {side: _side(record, side) for side in record.job.sides},
        "profiles": {side: to_json(one) for side, one in run.profiles.get(found.subject, {}).items()},
        "seconds_per_side": None if record is None else round(record.sampling_s, 3),
        "reproduce": reproduce(run, found),
        "bisect": bisect(run, found) or None,
    }


def _side(record: JobRecord, side: str) -> dict[str, Any]:
    blocks = record.outcomes[side]
    return {
        "median_ns": median_of(record, side),
        "blocks_ns": list(record.medians_ns(side).values()),
        "statuses": sorted({str(one.status) for one in blocks.values()}),
        "clock_mhz": clock_of(record, side),
        "calibrations": [to_json(one.ruler) for one in blocks.values() if one.ruler is not None],
        "metrics": asdict(metrics_of(blocks.values())),
    }


def calibration_lines(found: Comparison, records: Mapping[Any, JobRecord]) -> str:
    """Change of the calibration workload from base to head."""
    record = records.get(found.subject)
    if record is None:
        return ""
    levels = {
        side: [one.ruler.level_ns for one in blocks.values() if one.ruler is not None]
        for side, blocks in record.outcomes.items()
    }
    if not levels[BASE] or not levels[HEAD]:
        return ""
    middle = {side: sorted(values)[len(values) // 2] for side, values in levels.items()}
    return percent(middle[HEAD] / middle[BASE])


def _amount(value: int | tuple[str, ...]) -> str:
    return ", ".join(value)[:200] if isinstance(value, tuple) else str(value)


def _commit(commit: str) -> str:
    return commit.removesuffix("-dirty")[:12]
