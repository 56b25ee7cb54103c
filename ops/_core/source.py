"""Source code of registered functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = str(Path(__file__).parents[1])
"""Folder of `ops`, whose functions register others."""


class SourceLine(NamedTuple):
    """A line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def source_line(function: Callable[..., Any]) -> SourceLine:
    """First line of a function; of one in C, or an object that can be called, the line that registers it."""
    inner: Any = function
    while not hasattr(inner, "__code__"):
        wrapped = inner.func if isinstance(inner, partial) else getattr(inner, "__wrapped__", None)
        if wrapped is None:
            return _registering_line()
        inner = wrapped
    return SourceLine(inner.__code__.co_filename, inner.__code__.co_firstlineno)


def _registering_line() -> SourceLine:
    frame = sys._getframe(1)  # noqa: SLF001  the only way to a caller's line
    while frame.f_back is not None and frame.f_code.co_filename.startswith(FOLDER):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)
