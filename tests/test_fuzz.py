"""Mutated files of every kind that is read: refused with an error of the harness, never with a traceback."""

from __future__ import annotations

from contextlib import suppress

import pytest

from opgauge.harness.errors import HarnessError
from tests.fuzz.targets import TARGETS, attempt, kept, mutations, valid

COUNT = 500
"""Mutated files a target; coverage-guided fuzzing of a minute is `python -m tests.fuzz TARGET`."""
SLOW = {"bodies": 25}
"""Counts of targets that take longer than a reader does; `test_api_fuzz.py` sends more of those."""


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_are_refused_with_a_reason(target: str) -> None:
    """Pieces removed, repeated, moved or replaced: success, or an error that names the mistake."""
    for content in mutations(target, SLOW.get(target, COUNT), seed=1):
        attempt(target, content)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_refused_with_a_reason_or_read(target: str) -> None:
    """Inputs that reached new code in earlier fuzzing; at least one file to begin with is valid."""
    for content in kept(target):
        attempt(target, content)
    read = 0
    for content in valid(target):
        with suppress(HarnessError):
            TARGETS[target](content)
            read += 1
    assert read, "mutations of no valid file would only test the first check"


FOUND = [
    ("cases", b"op: p_norm\ncases: [{name: a, dtype: float32, shapes: {x: [" + b"9" * 300 + b"]}}]\n"),
    ("imports", b"[" * 5000 + b"]" * 5000),
    ("imports", b'{"benchmarks": [{"name": "a", "stats": null}]}'),
    ("submissions", b"[" * 200_000),
    ("messages", b"[" * 5000),
    ("messages", b'{"kind": [], "content": {}, "to": []}'),
    ("policy", b"? [a]\n: b\n"),
    ("waivers", b"- &a [*a]\n"),
    ("configuration", b"ops = " + b"[" * 5000),
    ("configuration", b"a = " + b"{b=" * 5000),
    ("configuration", b"[tool.opgauge]\ntool = 1\n"),
    ("configuration", b"tool = 1\n"),
    ("tuning", b"[" * 100_000),
    ("tuning", b"\xff\xfe"),
]
"""Inputs that once broke a reader, or are of such a kind."""


@pytest.mark.parametrize(("target", "content"), FOUND)
def test_known_troublemakers_are_refused(target: str, content: bytes) -> None:
    """Deep nesting, huge numbers, wrong kinds, self references."""
    attempt(target, content)
