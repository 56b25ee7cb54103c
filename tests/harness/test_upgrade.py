"""Upgrades: a database of every released schema, with data in each of its tables, becomes one of today's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, create_engine, insert, inspect, select

from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import Submission
from opgauge.harness.scope import Scope
from opgauge.harness.store import Store, acknowledgements, run_queries, self_tests
from opgauge.harness.store.acknowledgements import Acknowledgement
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.schema import HEAD, MIGRATIONS, version
from opgauge.harness.store.self_tests import SelfTest
from opgauge.harness.store.tokens import create_token
from tests.databases import database
from tests.web.dataset import HARD, ceilings, results

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
Rows = dict[str, list[dict[str, Any]]]


def config() -> Config:
    """Alembic over the migrations of the store."""
    found = Config()
    found.set_main_option("script_location", str(MIGRATIONS))
    return found


RELEASED = sorted(one.revision for one in ScriptDirectory.from_config(config()).walk_revisions())


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A database of the newest schema with a run, an acknowledgement, a self-test and a token."""
    with database(tmp_path_factory.mktemp("today")) as url, Store.open(url) as store:
        some = tuple(islice(results(0, np.random.default_rng(7)), 12))
        environment = Environment(HARD, {"commit": "c0ffee", "branch": "main", "project": "kernels", "dirty": "no"})
        add_run(
            store.engine,
            Submission(str(uuid4()), NOW, NOW, "finished", "opgauge run", environment, tuple(ceilings()), some),
        )
        acknowledgements.add_acknowledgement(
            store.engine,
            Acknowledgement("0" * 16, "optimized", "cpu", "slower", "Ada", "known", date(2026, 2, 1), 1.1, NOW),
        )
        self_tests.add_self_test(store.engine, SelfTest("aa", NOW, "c0ffee", "cpu", {"false_share": 0.01}))
        create_token(store.engine, "ada", Scope.SUBMIT)
        yield store


def rows_of(engine: Engine) -> Rows:
    """Every row of every table, by table."""
    metadata = MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in metadata.sorted_tables
        }


def write(engine: Engine, schema: str, rows: Rows) -> None:
    """Create the tables of a schema, and enter what it has columns for."""
    with engine.begin() as connection:
        given = config()
        given.attributes["connection"] = connection
        command.upgrade(given, schema)
    metadata = MetaData()
    metadata.reflect(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            known = [{key: row[key] for key in row if key in table.c} for row in rows.get(table.name, ())]
            if known and table.name != "alembic_version":
                connection.execute(insert(table), known)


def shape_of(engine: Engine) -> dict[str, Any]:
    """Columns and indexes by table."""
    found = inspect(engine)
    return {
        name: (
            sorted(column["name"] for column in found.get_columns(name)),
            sorted(str(index["name"]) for index in found.get_indexes(name)),
        )
        for name in found.get_table_names()
    }


@pytest.mark.parametrize("schema", RELEASED)
def test_an_upgraded_database_equals_one_of_today(today: Store, schema: str, tmp_path: Path) -> None:
    """Same tables, and every run, result, sample, ceiling, acknowledgement, self-test and token as before."""
    with database(tmp_path) as url:
        engine = create_engine(url)
        write(engine, schema, rows_of(today.engine))
        before = rows_of(engine)
        with Store.open(url, migrate=True) as store:
            assert version(store.engine) == HEAD
            assert shape_of(store.engine) == shape_of(today.engine)
            after = rows_of(store.engine)
            for table, rows in before.items():
                if table != "alembic_version":
                    assert [{key: row[key] for key in rows[0]} for row in after[table]] == rows, table
            (run,) = run_queries.list_runs(store.engine)
            (expected,) = run_queries.list_runs(today.engine)
            assert run == expected
            assert store.results(run.id) == today.results(run.id)
            columns = ("low_ns", "high_ns")
            derived = [[row[name] for name in columns] for row in after["result"]]
            assert derived == [[row[name] for name in columns] for row in rows_of(today.engine)["result"]]
        engine.dispose()
