"""Patterns that choose subjects: `p_norm/seed-*`, `lerp`, `*/large*`."""

from __future__ import annotations

from opgauge.harness.case.filters import is_expression, matches_text
from opgauge.harness.case.filters import matches as matches_name
from opgauge.harness.judge.verdict import Subject


def matches(pattern: str, subject: Subject) -> bool:
    """Whether a pattern selects the subject's case.

    A pattern is an op, `op/case`, or the 16 digits of a case's id; `*` matches any text and `?` one character.
    Brackets are literal, because names contain them. `/…/` is a regular expression for `op/case`.
    """
    if pattern == subject.case_id:
        return True
    if is_expression(pattern):
        return matches_name(pattern, subject.path)
    return matches_text(pattern if "/" in pattern else f"{pattern}/*", subject.path)
