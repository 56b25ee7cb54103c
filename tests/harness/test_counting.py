"""Numbers with nouns."""

from __future__ import annotations

import pytest

from opgauge.harness.counting import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "case", "1 case"),
        (0, "case", "0 cases"),
        (1107, "further case", "1,107 further cases"),
        (2, "launch", "2 launches"),
    ],
)
def test_a_noun_is_plural_unless_there_is_one(number: int, noun: str, text: str) -> None:
    """Those that end in a sibilant take `es`."""
    assert counted(number, noun) == text
