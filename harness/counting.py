"""Counted things in messages: `1 case`, `2 cases`."""

from __future__ import annotations

HISSING = ("s", "x", "ch", "sh")
"""Endings of nouns that take `es` in the plural."""


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless the number is one."""
    return f"{number:,} {noun if number == 1 else noun + ('es' if noun.endswith(HISSING) else 's')}"
