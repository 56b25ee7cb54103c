"""Columns of the tables, and selects of them in chunks of keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import select as typed_select

from opgauge.harness.store.tables import (
    CaseRow,
    CeilingRow,
    ResultRow,
    RunRow,
    SampleRow,
)

CHUNK = 1000
"""Keys in one IN list."""


def select(*columns: Any) -> Any:
    """A select whose rows have any type; their columns are named where they are read."""
    return typed_select(*columns)


def keys_named(name: str) -> Any:
    """A list of numbers that is part of the statement.

    As parameters of their own, a thousand keys take longer to process in the driver than the query takes.
    """
    return bindparam(name, expanding=True, literal_execute=True)


RUN, CASE, RESULT = (row.__table__.c for row in (RunRow, CaseRow, ResultRow))
"""Columns of the tables of runs, cases and results."""
CEILING, SAMPLE = CeilingRow.__table__.c, SampleRow.__table__.c
"""Columns of the tables of achieved peaks and raw samples."""


def chunks(keys: Iterable[int]) -> Iterable[Sequence[int]]:
    """The keys in parts of at most `CHUNK`, each for one IN list."""
    known = list(keys)
    return (known[start : start + CHUNK] for start in range(0, len(known), CHUNK))
