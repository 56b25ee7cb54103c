"""Helpers that write case files, and list the mistakes that reading them reports."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from opgauge.harness.case.file import load_cases
from opgauge.harness.errors import CaseFileError

HEAD = "op: p_norm\ncases:\n"
LERP = "op: lerp\ncases:\n"


def write_cases(folder: Path, text: str, name: str = "cases.yaml") -> Path:
    """A case file with `text`."""
    file = folder / name
    file.write_text(dedent(text), encoding="utf-8")
    return file


def mistakes_of(*paths: Path) -> list[tuple[int, int, str]]:
    """Line, column and text of every mistake in the files."""
    with pytest.raises(CaseFileError) as caught:
        load_cases(paths)
    return [(one.place.line, one.place.column, one.text) for one in caught.value.mistakes]
