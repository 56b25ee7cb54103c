"""Patterns that choose subjects: `p_norm/seed-*`, `lerp`, `*/large*`."""

from __future__ import annotations

from opgauge.harness.case.filters import matches_text
from opgauge.harness.judge.verdict import Subject


def matches(pattern: str, subject: Subject) -> bool:
    """Whether a pattern chooses the subject's case.

    A pattern is an op, `op/case`, or the 16 digits of a case's id; `*` stands for any
    text and `?` for one character. Brackets stand for themselves, for names have them.
    """
    if pattern == subject.case_id:
        return True
    return matches_text(pattern if "/" in pattern else f"{pattern}/*", subject.path)
