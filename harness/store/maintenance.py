"""Maintenance of a database: backup, and retention of raw samples."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from sqlalchemy import Engine, delete, insert, select

from opgauge.harness.errors import StoreError
from opgauge.harness.settings import program_environment
from opgauge.harness.store.engine import explained, make_engine
from opgauge.harness.store.projects import find_project, list_projects
from opgauge.harness.store.schema import version
from opgauge.harness.store.tables import DeletionRow, ResultRow, RunRow, SampleRow

CHUNK = 2000
"""Results of one deletion."""


def back_up_database(url: str, target: Path) -> int:
    """Write a copy of a database of any schema, also of an older one before its upgrade; returns its size in bytes.

    Raises StoreError as `back_up` does, and where there is no database of opgauge.
    """
    with explained(url):
        engine = make_engine(url)
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        try:
            if (file and not Path(file).is_file()) or version(engine) is None:
                msg = f"{engine.url.render_as_string()} has no opgauge database to back up"
                raise StoreError(msg)
            return back_up(engine, target)
        finally:
            engine.dispose()


def back_up(engine: Engine, target: Path) -> int:
    """Write a consistent copy of the database while it is in use; returns its size in bytes.

    SQLite: a database file, by SQLite's online backup. PostgreSQL: an archive of `pg_dump` for `pg_restore`. Raises
    StoreError if the file exists, or pg_dump is missing or fails.
    """
    if target.exists():
        msg = f"{target} exists: a backup never overwrites a file"
        raise StoreError(msg)
    if not target.parent.is_dir():
        msg = f"{target} cannot be written: there is no folder {target.parent}"
        raise StoreError(msg)
    partial = target.with_name(f"{target.name}.partial")
    try:
        if engine.dialect.name == "sqlite":
            _copy_sqlite(engine, partial)
        else:
            _dump_postgresql(engine, partial)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        msg = f"{target} cannot be written: {error}"
        raise StoreError(msg) from error
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def _copy_sqlite(engine: Engine, target: Path) -> None:
    with engine.connect() as connection, sqlite3.connect(target) as copy:
        source = cast("sqlite3.Connection", connection.connection.driver_connection)
        source.backup(copy)
    copy.close()


def _dump_postgresql(engine: Engine, target: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        msg = "pg_dump is not installed: it comes with the client programs of PostgreSQL"
        raise StoreError(msg)
    url = engine.url
    # the environment passes the password, since other users can read the command line
    environment = program_environment({"PGPASSWORD": str(url.password)} if url.password else {})
    plain = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    command = [program, "--format=custom", f"--file={target}", f"--dbname={plain}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"pg_dump failed: {done.stderr.strip()[-500:]}"
        raise StoreError(msg)


def prune_samples(engine: Engine, age: timedelta | None = None, project: str | None = None) -> dict[str, int]:
    """Drop raw samples of old runs; medians, quartiles and the rest stay. Returns the number of results by project.

    age: for all runs. None: each project's own retention; projects without one keep all samples.
    """
    dropped = {}
    for name, _, _ in list_projects(engine):
        if project is not None and name != project:
            continue
        days = find_project(engine, name).samples_days
        limit = age if age is not None else None if days is None else timedelta(days=days)
        if limit is not None:
            dropped[name] = _drop_samples(engine, name, datetime.now(UTC) - limit)
    return dropped


def _drop_samples(engine: Engine, project: str, until: datetime) -> int:
    old = select(RunRow.id).where(RunRow.project == project, RunRow.started < until)
    dropped = 0
    with engine.connect() as connection:
        runs = list(connection.execute(old).scalars())
    for run in runs:
        # one run at a time, so that no writer waits for long
        with engine.begin() as connection:
            results = select(ResultRow.id).where(ResultRow.run_id == run)
            count = connection.execute(delete(SampleRow).where(SampleRow.result_id.in_(results))).rowcount
            if count:
                connection.execute(insert(DeletionRow).values(created=datetime.now(UTC), run=""))
            dropped += count
    return dropped
