"""Patterns that choose subjects: `p_norm/seed-*`, `lerp`, `*/large*`."""

from __future__ import annotations

from opgauge.harness.case.filters import matches_case
from opgauge.harness.judge.verdict import Subject


def matches(pattern: str, subject: Subject) -> bool:
    """Whether a pattern, as filters for cases are, selects the subject's case."""
    return matches_case(pattern, subject.path, subject.case_id)
