"""What README says of commands and figures is what the commands and the committed runs say."""

from __future__ import annotations

import re

import pytest

from tools.documentation import (
    COMMANDS,
    EXPORTS,
    PERFORMANCE,
    README,
    help_texts,
    insert,
    manual,
    performance,
    sections,
)

TEXT = README.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["commands", *EXPORTS])
def test_readme_is_up_to_date(name: str) -> None:
    """`make docs` would change nothing: help texts and tables in README are today's."""
    assert insert(TEXT, {name: sections()[name]}) == TEXT, "run `make docs`"


def test_performance_is_up_to_date() -> None:
    """`make docs` would change nothing in docs/performance.md."""
    text = PERFORMANCE.read_text(encoding="utf-8")
    assert insert(text, performance()) == text, "run `make docs`"


def test_the_manual_is_up_to_date() -> None:
    """`make docs` would change nothing in docs/commands.md."""
    assert COMMANDS.read_text(encoding="utf-8") == manual(), "run `make docs`"


def test_every_command_has_an_example() -> None:
    """Each command's help shows how it is called, by its own name."""
    for name, text in help_texts():
        assert re.search(rf"Example: .*{name}\b", text), name


def test_readme_names_the_two_commands() -> None:
    """A fresh machine needs `make run` and `make test`, and README says so first."""
    assert TEXT.index("make run") < TEXT.index("make test") < TEXT.index("## A tour")


def test_a_missing_mark_is_noticed() -> None:
    """A part that README does not mark cannot be forgotten."""
    with pytest.raises(ValueError, match="no part is marked commands"):
        insert("# opgauge\n", {"commands": "x"})
