"""Columns of the tables, and selects of them in chunks of keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import JSON, Dialect, Text, bindparam, column, func
from sqlalchemy import select as typed_select
from sqlalchemy.types import UserDefinedType

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


class _Keys(UserDefinedType[Collection[int]]):
    """A list of numbers, as a part of the statement in one piece.

    As parameters of their own, or as expressions of SQLAlchemy, a thousand keys take longer than their query.
    """

    cache_ok = True

    def literal_processor(self, dialect: Dialect) -> Callable[[Collection[int]], str]:  # noqa: ARG002
        """The list in parentheses, NULL for none: nothing is among them."""
        return lambda keys: f"({','.join([f'{key:d}' for key in keys]) or 'NULL'})"


def is_among(column: Any, name: str = "keys") -> Any:
    """The condition that a column is one of the numbers of the parameter `name`."""
    return column.bool_op("IN")(bindparam(name, type_=_Keys(), literal_execute=True))


RUN, CASE, RESULT = (row.__table__.c for row in (RunRow, CaseRow, ResultRow))
"""Columns of the tables of runs, cases and results."""
CEILING, SAMPLE = CeilingRow.__table__.c, SampleRow.__table__.c
"""Columns of the tables of achieved peaks and raw samples."""


def json_texts(dialect: str, *paths: tuple[str, ...]) -> list[Any]:
    """Parts of the JSON of a result, as text, to be selected after columns of its table.

    PostgreSQL parses the whole text again for each path; a record of the first names of all takes one time.
    """
    if dialect != "postgresql":
        return [RESULT.data[path].as_string() for path in paths]
    types = {name: JSON() if rest else Text() for name, *rest in paths}
    named = func.json_to_record(RESULT.data).table_valued(
        *(column(name, kind) for name, kind in types.items()), joins_implicitly=True
    )
    parts = named.render_derived(name="parts", with_types=True).c
    return [parts[name][tuple(rest)].as_string() if rest else parts[name] for name, *rest in paths]


def chunks(keys: Iterable[int]) -> Iterable[Sequence[int]]:
    """The keys in parts of at most `CHUNK`, each for one IN list."""
    known = list(keys)
    return (known[start : start + CHUNK] for start in range(0, len(known), CHUNK))
