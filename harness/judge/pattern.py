"""Patterns that choose subjects: `p_norm/seed-*`, `lerp`, `*/large*`."""

from __future__ import annotations

import re
from functools import lru_cache

from opgauge.harness.judge.verdict import Subject


def matches(pattern: str, subject: Subject) -> bool:
    """Whether a pattern chooses the subject's case.

    A pattern is an op, `op/case`, or the 16 digits of a case's id; `*` stands for any
    text and `?` for one character. Brackets stand for themselves, for names have them.
    """
    if pattern == subject.case_id:
        return True
    return matches_text(pattern if "/" in pattern else f"{pattern}/*", subject.path)


def matches_text(pattern: str, text: str) -> bool:
    """Whether a pattern with `*` and `?` is the whole of a text."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(one) or re.escape(one) for one in pattern), re.DOTALL)
