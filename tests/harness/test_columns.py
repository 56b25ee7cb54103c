"""Parts of stored JSON and lists of keys in queries, on SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from opgauge.harness.result.submission import read_submission
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.columns import RESULT, is_among, json_texts, select
from opgauge.harness.store.tables import ResultRow
from tests.databases import database
from tests.harness.test_submission import a_run

PATHS = (("measurement", "peak_bytes"), ("measurement", "footprint", "launches"), ("ruler",), ("extra", "share"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of one run with three results."""
    with database(tmp_path) as url, Store.open(url) as opened:
        add_run(opened.engine, read_submission(a_run()))
        yield opened


def _rows(store: Store, columns: list[Any]) -> list[tuple[Any, ...]]:
    with store.reading.connect() as connection:
        return [tuple(row) for row in connection.execute(select(RESULT.id, *columns).where(RESULT.block == 1)).all()]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (
            {
                "measurement": {"peak_bytes": 4096, "footprint": {"launches": 2}},
                "ruler": "seen",
                "extra": {"share": 0.5},
            },
            ("4096", "2", "seen", "0.5"),
        ),
        ({"measurement": {"footprint": None}, "ruler": None, "extra": {"share": "0.5"}}, (None, None, None, "0.5")),
        ({"measurement": None, "ruler": {}}, (None, None, "{}", None)),
        ({"measurement": "none", "extra": [1, 2]}, (None, None, None, None)),
        ({}, (None, None, None, None)),
    ],
)
def test_parts_of_json_are_those_of_each_path(
    store: Store, data: dict[str, Any], found: tuple[str | None, ...]
) -> None:
    """Read together or one by one, also where a part is missing or of another kind."""
    with store.engine.begin() as connection:
        connection.execute(update(ResultRow).values(data=data))
    together = _rows(store, json_texts(store.engine.dialect.name, *PATHS))
    assert together == _rows(store, [RESULT.data[path].as_string() for path in PATHS])
    assert [tuple(None if one is None else str(one) for one in row) for _, *row in together] == [found]


@pytest.mark.parametrize(("keys", "found"), [([], 0), ([1], 1), (range(1, 4), 3), ([2, -5, 10**12], 1)])
def test_rows_are_found_by_a_list_of_keys(store: Store, keys: Any, found: int) -> None:
    """Also by none, and by numbers of no row."""
    with store.reading.connect() as connection:
        rows = connection.execute(select(RESULT.id).where(is_among(RESULT.id)), {"keys": keys}).all()
    assert len(rows) == found


def test_keys_are_numbers(store: Store) -> None:
    """They are part of the statement, so that a text among them is refused."""
    with store.reading.connect() as connection, pytest.raises(SQLAlchemyError, match="literal value"):
        connection.execute(select(RESULT.id).where(is_among(RESULT.id)), {"keys": ["1) OR (1=1"]})
