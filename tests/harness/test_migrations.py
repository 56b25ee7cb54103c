"""Migrations: a database of an older opgauge is brought up to date, and keeps what it holds."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, inspect, text

from harness.store import Store
from harness.store.schema import HEAD, MIGRATIONS, version


def test_a_database_of_the_first_schema_is_upgraded(tmp_path: Path) -> None:
    """Opening a database of schema 0001 adds what came later; its runs stay."""
    url = f"sqlite:///{tmp_path}/old.db"
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        insert = 'INSERT INTO run (uuid, started, status, "commit", command, environment) VALUES '
        connection.execute(
            text(insert + "('r', '2026-01-01 00:00:00', 'finished', '', '', '{\"hard\":{},\"soft\":{}}')")
        )
    assert version(engine) == "0001"
    with Store.open(url) as store:
        assert store.find_run("r").status == "finished"
    assert version(engine) == HEAD
    assert {"acknowledgement", "self_test"} <= set(inspect(engine).get_table_names())
    engine.dispose()
