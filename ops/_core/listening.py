"""Listeners: what hears, in a context, of everything that a module hands out meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Heard = TypeVar("Heard")


@contextmanager
def listening(listeners: list[Heard], heard: Heard) -> Iterator[Heard]:
    """Context in which `heard` is one of the listeners; contexts may be nested and end in any order."""
    listeners.append(heard)
    try:
        yield heard
    finally:
        listeners[:] = [other for other in listeners if other is not heard]
