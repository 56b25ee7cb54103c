"""Bringing a database to the schema that this code knows. Alembic is loaded only where something is to be changed."""

from __future__ import annotations

from pathlib import Path

from opgauge.harness.errors import StoreError
from opgauge.harness.store.tables import Table
from sqlalchemy import Engine, func, inspect, select, text

HEAD = "0005"
KNOWN = ("0001", "0002", "0003", "0004", "0005")
FIRST = {"run", "ceiling", "case", "result", "sample"}
"""Tables that every version has."""
LOCK = 0x6F7067
"""One process at a time brings a PostgreSQL database up to date."""
MIGRATIONS = Path(__file__).parent / "migrations"


def version(engine: Engine) -> str | None:
    """The schema's version: None for an empty database. Raises StoreError for one that is not ours."""
    names = set(inspect(engine).get_table_names())
    if not names:
        return None
    if "alembic_version" not in names or not names >= FIRST:
        msg = f"{_shown(engine)} holds other tables ({', '.join(sorted(names)[:5])}): it is not an opgauge database"
        raise StoreError(msg)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return str(found) if found else None


def upgrade(engine: Engine) -> str:
    """Create or migrate the schema; gives its version. Raises StoreError for a schema newer than this code."""
    found = version(engine)
    if found == HEAD:
        return HEAD
    if found is not None and found not in KNOWN:
        msg = f"{_shown(engine)} has schema {found}, newer than this opgauge knows ({HEAD}): upgrade opgauge"
        raise StoreError(msg)
    if found is None and engine.dialect.name == "sqlite":
        _create(engine)
        return version(engine) or HEAD
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        # where another process was first, Alembic finds nothing left to do
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return HEAD


def _create(engine: Engine) -> None:
    """A new database at once, as the migrations would leave it: a test holds the two against each other."""
    with engine.begin() as connection:
        # so that of two processes one makes all tables, and the other then finds them
        connection.execute(text("BEGIN IMMEDIATE"))
        if inspect(connection).get_table_names():
            return
        Table.metadata.create_all(connection)
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        )
        connection.execute(text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": HEAD})


def _shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)
