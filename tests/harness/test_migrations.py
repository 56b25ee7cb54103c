"""Migrations: a database of an older opgauge is brought up to date, and keeps what it holds."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text

from opgauge.harness.errors import StoreError
from opgauge.harness.store import Store, listing, queries
from opgauge.harness.store.schema import HEAD, MIGRATIONS, upgrade, version
from tests.databases import database

_RUN = """INSERT INTO run (id, uuid, started, status, "commit", command, environment)
VALUES (1, 'r', '2026-01-01 00:00:00', 'finished', '', '', '{}')"""
_CASE = """INSERT INTO "case" (id, case_id, digest, op, dtype, data)
VALUES (1, '0123456789abcdef', 'd', 'add', 'float32', '{}')"""
_RESULT = """INSERT INTO result
(run_id, case_key, implementation, backend, device, block, status, reason, median_ns, bytes, flops, data)
VALUES (1, 1, 'optimized', 'cpu', 'cpu', :block, :status, '', :median_ns, 0, 0, :data)"""


def upgrade_to(revision: str, connection: Connection) -> None:
    """Migrate to an older schema."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def test_a_database_of_the_first_schema_is_upgraded(tmp_path: Path) -> None:
    """A database of schema 0001 is refused until it is upgraded on purpose; its runs stay."""
    url = f"sqlite:///{tmp_path}/old.db"
    engine = create_engine(url)
    with engine.begin() as connection:
        upgrade_to("0001", connection)
        insert = 'INSERT INTO run (uuid, started, status, "commit", command, environment) VALUES '
        connection.execute(
            text(insert + "('r', '2026-01-01 00:00:00', 'finished', '', '', '{\"hard\":{},\"soft\":{}}')")
        )
    assert version(engine) == "0001"
    with pytest.raises(StoreError, match="opgauge db upgrade"):
        Store.open(url)
    assert version(engine) == "0001"
    with Store.open(url, migrate=True) as store:
        assert store.find_run("r").status == "finished"
    assert version(engine) == HEAD
    assert {"acknowledgement", "self_test"} <= set(inspect(engine).get_table_names())
    engine.dispose()


def test_quartiles_are_taken_out_of_the_json_of_older_results(tmp_path: Path) -> None:
    """A result of schema 0004 has its quartiles as columns afterwards; one that failed has none."""
    with database(tmp_path) as url:
        engine = create_engine(url)
        rows = [(1, "ok", 2.5, '{"quantiles_ns": [1.0, 2.0, 3.25, 40]}'), (2, "error", None, "{}")]
        with engine.begin() as connection:
            upgrade_to("0004", connection)
            connection.execute(text(_RUN))
            connection.execute(text(_CASE))
            for block, status, median_ns, data in rows:
                given = {"block": block, "status": status, "median_ns": median_ns, "data": data}
                connection.execute(text(_RESULT), given)
        with Store.open(url, migrate=True) as store, store.engine.connect() as connection:
            query = text("SELECT block, low_ns, high_ns FROM result ORDER BY block")
            assert connection.execute(query).all() == [(1, 2.0, 3.25), (2, None, None)]
        engine.dispose()


def test_an_interrupted_migration_changes_nothing(tmp_path: Path) -> None:
    """Wherever it ends: the schema is the old one, the results are there, and a later migration goes through."""
    with database(tmp_path) as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            upgrade_to("0001", connection)
            connection.execute(text(_RUN))
        seen = [0, 0]

        def interrupt(*_: object) -> None:
            seen[0] += 1
            if seen[0] > seen[1]:
                raise KeyboardInterrupt

        before = _tables(engine)
        event.listen(engine, "before_cursor_execute", interrupt)
        while True:
            seen[0] = 0
            with suppress(KeyboardInterrupt):
                upgrade(engine)
                break
            limit, seen[1] = seen[1] + 1, 10**9
            assert (version(engine), _tables(engine)) == ("0001", before)
            seen[1] = limit
        event.remove(engine, "before_cursor_execute", interrupt)
        assert seen[1] > 20
        assert version(engine) == HEAD
        with engine.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM run")).scalar() == 1
        engine.dispose()


def _tables(engine: Engine) -> dict[str, list[str]]:
    """Columns and indexes by table."""
    found = inspect(engine)
    return {
        table: sorted(str(one["name"]) for one in (*found.get_columns(table), *found.get_indexes(table)))
        for table in found.get_table_names()
    }


def test_times_that_are_none_become_errors(tmp_path: Path) -> None:
    """Results of schema 0006 with NaN, infinite or negative times are errors afterwards, in JSON that is valid.

    PostgreSQL never took NaN in JSON.
    """
    with database(tmp_path) as url:
        engine = create_engine(url)
        is_sqlite = engine.dialect.name == "sqlite"
        numbers = ("[NaN, 1.0, 2.0, 40]", "[1.0, 2.0, Infinity, 40]") if is_sqlite else ("[1]", "[2]")
        quantiles = [f'{{"quantiles_ns": {text}, "extra": {{"log": "NaN"}}}}' for text in (*numbers, "[3]", "[4]")]
        with engine.begin() as connection:
            upgrade_to("0006", connection)
            connection.execute(text(_RUN))
            connection.execute(text(_CASE))
            for block, (median_ns, data) in enumerate(zip((None, math.inf, -1.0, 2.5), quantiles, strict=True)):
                given = {"block": block, "status": "ok", "median_ns": median_ns, "data": data}
                connection.execute(text(_RESULT), given)
            connection.execute(
                text("INSERT INTO sample SELECT id, :packed, :packed, :packed FROM result"), {"packed": b"12345678"}
            )
        with Store.open(url, migrate=True) as store:
            found = queries.list_details(store.engine, 1)
            wrong = [one for one in found if one.point.status == "error"]
            assert [one.point.block for one in wrong] == ([0, 1, 2] if is_sqlite else [1, 2])
            assert {(one.point.median_ns, one.data["measurement"]) for one in wrong} == {(None, None)}
            assert all(one.data["extra"] == {"log": "NaN"} and "quantiles_ns" not in one.data for one in wrong)
            assert list(queries.load_samples(store.engine, [one.point.key for one in wrong])) == []
            assert found[-1].point.median_ns == 2.5
            assert listing.list_judged(store.engine, 1, 10)
        engine.dispose()
