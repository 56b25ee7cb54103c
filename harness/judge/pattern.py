"""Patterns that choose subjects: `p_norm/seed-*`, `lerp`, `*/large*`."""

from __future__ import annotations

from opgauge.harness.case.filters import matches_case, matches_text
from opgauge.harness.judge.verdict import Subject


def matches(pattern: str, subject: Subject) -> bool:
    """Whether a pattern, as filters for cases are, selects the subject's case."""
    return matches_case(pattern, subject.path, subject.case_id)


def matches_all(subject: Subject, *, cases: str, device: str, implementation: str) -> bool:
    """Whether the patterns of a rule or waiver select the subject."""
    return (
        matches(cases, subject)
        and matches_text(device, subject.device)
        and matches_text(implementation, subject.implementation)
    )
