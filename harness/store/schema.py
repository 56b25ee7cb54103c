"""Creation and migration of the schema. Alembic is imported only when a migration is due.

A new database is created at once. An older one is migrated only by `opgauge db upgrade`: other commands refuse it, so
that a newer opgauge on one machine does not lock out the others.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, func, inspect, select, text

from opgauge.harness.errors import StoreError
from opgauge.harness.store import project_state  # noqa: F401  its table is part of the schema
from opgauge.harness.store.tables import Table

KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010")
"""Versions of the schema, oldest first."""
HEAD = KNOWN[-1]
"""The schema of this version of opgauge."""
FIRST = {"run", "ceiling", "case", "result", "sample"}
"""Tables of every version of the schema."""
LOCK = 0x6F7067
"""Advisory lock of PostgreSQL: one process migrates at a time."""
MIGRATIONS = Path(__file__).parent / "migrations"
"""Folder of the migrations."""


def version(engine: Engine) -> str | None:
    """Version of the schema, None for an empty database. Raises StoreError for a database of another program."""
    names = set(inspect(engine).get_table_names())
    if not names:
        return None
    if "alembic_version" not in names or not names >= FIRST:
        msg = f"{_shown(engine)} has other tables ({', '.join(sorted(names)[:5])}): it is not an opgauge database"
        raise StoreError(msg)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return str(found) if found else None


def prepare(engine: Engine) -> str:
    """Create the schema in an empty database; returns its version.

    Raises StoreError for an older schema, which `opgauge db upgrade` migrates, and for a newer one.
    """
    found = version(engine)
    if found is None:
        return upgrade(engine)
    if found != HEAD:
        _refuse_newer(engine, found)
        msg = (
            f"{_shown(engine)} has schema {found}, older than this opgauge needs ({HEAD}); other machines may still "
            "need the old one. Back it up (opgauge db backup) and migrate it: opgauge db upgrade"
        )
        raise StoreError(msg)
    return HEAD


def upgrade(engine: Engine) -> str:
    """Create or migrate the schema; returns its version. Raises StoreError for a schema newer than this code."""
    found = version(engine)
    if found == HEAD:
        return HEAD
    _refuse_newer(engine, found)
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
        else:
            # SQLite's driver begins none for changes of the schema: an interrupted migration would stay half done
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        # if another process was first, Alembic finds nothing left to do
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return HEAD


def _refuse_newer(engine: Engine, found: str | None) -> None:
    if found is not None and found not in KNOWN:
        msg = (
            f"{_shown(engine)} has schema {found}, newer than this opgauge knows ({HEAD}): upgrade opgauge. "
            "There is no downgrade; a backup made before the upgrade is the way back"
        )
        raise StoreError(msg)


def _create(engine: Engine) -> None:
    """Create the tables directly, with the same result as the migrations: a test compares the two."""
    with engine.begin() as connection:
        # if two processes create them, the second finds all tables
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
