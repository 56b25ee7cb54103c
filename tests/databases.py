"""Databases for tests: SQLite files, or databases of the PostgreSQL server that `OPGAUGE_TEST_DATABASE` names.

For example `OPGAUGE_TEST_DATABASE=postgresql+psycopg://postgres@127.0.0.1/postgres pytest tests/web`. The user
must be allowed to create databases; each is dropped when its test ends. tests/postgresql.py starts a server for that.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

SERVER = os.environ.get("OPGAUGE_TEST_DATABASE", "")


@contextmanager
def database(folder: Path, template: str = "") -> Iterator[str]:
    """The URL of a database that is empty, or a copy of `template`, which nobody may be using."""
    name = f"test_{uuid.uuid4().hex}"
    if not SERVER:
        path = folder / f"{name}.db"
        if template:
            shutil.copy(template.removeprefix("sqlite:///"), path)
        yield f"sqlite:///{path}"
        return
    _order(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{make_url(template).database}"' if template else ""))
    try:
        yield make_url(SERVER).set(database=name).render_as_string(hide_password=False)
    finally:
        _order(f'DROP DATABASE "{name}" WITH (FORCE)')


def _order(statement: str) -> None:
    engine = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()
