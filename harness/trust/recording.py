"""Recording of process medians of the same code on both sides, as plain JSON: real noise for tests.

`opgauge aa --record FILE` writes one; tests draw from those in tests/harness/recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opgauge.harness.gate.evidence import evidence_of
from opgauge.harness.gate.run import GateRun
from opgauge.harness.judge.verdict import Pair, Subject
from opgauge.harness.result.result import Environment

DIGITS = 6
"""Significant digits of a time: finer than any clock here."""
LEFT_OUT = frozenset({"host", "branch"})
"""Facts of an environment that do not affect the noise."""


def as_recording(runs: Sequence[GateRun], environment: Environment, command: str) -> dict[str, Any]:
    """Pairs of process medians by case, in the order in which they were measured, and the environment.

    method: how pairs were measured, with its version. Cases of older recordings, which lack it, are `blocks/1`.
    """
    conditions = runs[0].conditions
    facts = {key: value for key, value in {**environment.hard, **environment.soft}.items() if key not in LEFT_OUT}
    return {
        "about": "Block medians in nanoseconds of the same code on both sides, in pairs of neighbouring blocks",
        "command": command,
        "environment": dict(sorted(facts.items())),
        "block_s": conditions.block_s,
        "seconds": round(sum(run.seconds for run in runs), 1),
        "cases": [
            {**_case(subject, found), "method": runs[0].records[subject].method}
            for subject, found in _by_subject(runs).items()
        ],
    }


def _case(subject: Subject, found: Mapping[str, Sequence[Pair]]) -> dict[str, Any]:
    lists = {name: [[_short(one) for one in pair] for pair in pairs] for name, pairs in found.items()}
    return {**asdict(subject), **lists}


def _by_subject(runs: Sequence[GateRun]) -> dict[Subject, dict[str, list[Pair]]]:
    seen: dict[Subject, dict[str, list[Pair]]] = {}
    for run in runs:
        for subject, record in run.records.items():
            evidence = evidence_of(record, {})
            lists = seen.setdefault(subject, {"pairs": [], "ruler": []})
            lists["pairs"] += evidence.pairs
            lists["ruler"] += evidence.calibration
    return {subject: lists for subject, lists in seen.items() if lists["pairs"]}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
