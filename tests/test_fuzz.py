"""Mutated files of every kind that is read: refused with an error of the harness, never with a traceback."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS, attempt, corpus, mutations

COUNT = 500
"""Mutated files a target; coverage-guided fuzzing of a minute is `python -m tests.fuzz TARGET`."""


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_are_refused_with_a_reason(target: str) -> None:
    """Pieces removed, repeated, moved or replaced: success, or an error that names the mistake."""
    for content in mutations(target, COUNT, seed=1):
        attempt(target, content)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_read(target: str) -> None:
    """At least one file to begin with is valid, else mutations would only test the first check."""
    read = 0
    for content in corpus(target):
        try:
            TARGETS[target](content)
        except Exception:  # noqa: BLE001, S112  counted below
            continue
        read += 1
    assert read or target == "submissions"


FOUND = [
    ("cases", b"op: p_norm\ncases: [{name: a, dtype: float32, shapes: {x: [" + b"9" * 300 + b"]}}]\n"),
    ("imports", b"[" * 5000 + b"]" * 5000),
    ("imports", b'{"benchmarks": [{"name": "a", "stats": null}]}'),
    ("submissions", b"[" * 200_000),
    ("messages", b"[" * 5000),
    ("messages", b'{"kind": [], "content": {}, "to": []}'),
    ("policy", b"? [a]\n: b\n"),
    ("waivers", b"- &a [*a]\n"),
]
"""Inputs that once broke a reader, or are of such a kind."""


@pytest.mark.parametrize(("target", "content"), FOUND)
def test_known_troublemakers_are_refused(target: str, content: bytes) -> None:
    """Deep nesting, huge numbers, wrong kinds, self references."""
    attempt(target, content)
