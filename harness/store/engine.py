"""Engines of databases: SQLite with its settings, or another by URL; a driver's errors become one StoreError."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import POLLIN, poll
from sqlite3 import SQLITE_FULL, SQLITE_READONLY
from time import monotonic
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InvalidatePoolError, OperationalError

from opgauge.harness import json_text
from opgauge.harness.errors import StoreError

_JSON: dict[str, Any] = {"json_serializer": json_text.write, "json_deserializer": json_text.read}
BUSY_MS = 10_000
"""Milliseconds to wait for another writer."""
CONNECTIONS = 16
"""Connections to a server that a process keeps, which is also the number of requests that it processes at the same
time: a connection beyond that starts a process of the server and prepares its statements for a single request."""
WAIT_S = 60.0
"""Seconds after which a waiting connection to a server may have been dropped on its way, without a word."""
PRIMARY, POSTGRESQL_FULL, POSTGRESQL_READ_ONLY = 0xFF, "53100", "25006"
"""Bits of SQLite's code of an error without its details; PostgreSQL's codes of a full disk and of no writing."""
PRAGMAS = (
    f"busy_timeout={BUSY_MS}",
    "journal_mode=WAL",
    "foreign_keys=ON",
    "synchronous=NORMAL",
    # a run of 500 results changes as many pages of an index; the cache lets each be written once
    "cache_size=-16000",
    # pages up to this offset are read from the system's cache without a copy
    "mmap_size=2147418112",
    "wal_autocheckpoint=8000",
)
"""Settings of each SQLite connection."""


def make_engine(url: str) -> Engine:
    """An engine for `url`; a SQLite file that is not writable is opened for reading. Raises StoreError."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        # the connection used last has its statements prepared
        return _tested(create_engine(parsed, pool_size=CONNECTIONS, pool_use_lifo=True, **_JSON))
    file = Path(parsed.database) if parsed.database else None
    if file and not file.parent.is_dir():
        msg = f"{url}: there is no folder {file.parent}"
        raise StoreError(msg)
    if file and file.is_file() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
        return _reading_engine(file)
    engine = create_engine(parsed, **_JSON)

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _: object) -> None:
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _tested(engine: Engine) -> Engine:
    """The engine of a server, whose pool replaces connections that were lost while they waited.

    A waiting connection is readable once the server has ended it. It is asked then, or after a long wait, and not each
    time: a question takes as long as a short query.
    """

    @event.listens_for(engine, "checkin")
    def note(_: object, record: Any) -> None:
        record.info["waits"] = monotonic()

    @event.listens_for(engine, "checkout")
    def test(connection: Any, record: Any, _: object) -> None:
        since = record.info.get("waits")
        if since is None or (monotonic() - since < WAIT_S and not _is_readable(connection)):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    return engine


def _is_readable(connection: Any) -> bool:
    waiting = poll()
    waiting.register(connection.fileno(), POLLIN)
    return bool(waiting.poll(0))


def reading(engine: Engine) -> Engine:
    """The pool of an engine for reading: a server gets statements alone, but those of `begin` in a transaction."""
    if engine.dialect.name == "sqlite":
        return engine
    found = engine.execution_options(isolation_level="AUTOCOMMIT")
    found.begin = engine.begin  # type: ignore[method-assign]
    return found


def _reading_engine(file: Path) -> Engine:
    """An engine on a SQLite file in a read-only place: without locks and write-ahead log."""
    # an immutable database would ignore the commits in a log beside the file
    mode = "ro" if file.with_name(f"{file.name}-wal").exists() else "ro&immutable=1"
    return create_engine(f"sqlite:///file:{quote(str(file.resolve()))}?mode={mode}&uri=true", **_JSON)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Translate a driver's errors into one StoreError."""
    try:
        yield
    except ArgumentError as error:
        msg = f"{url!r} is not a database that can be opened: {error}. For example sqlite:///opgauge.db"
        raise StoreError(msg) from error
    except ModuleNotFoundError as error:
        msg = f"{_shown(url)} needs a driver: {error}. For PostgreSQL install opgauge[postgres]"
        raise StoreError(msg) from error
    except DatabaseError as error:
        what = "cannot be opened" if isinstance(error, OperationalError) else "is not a usable database"
        msg = f"{_shown(url)} {what}: {error.orig}"
        raise StoreError(msg) from error


def is_full(error: DatabaseError) -> bool:
    """Whether a database could not write as its disk, or its largest size, is full."""
    return _has_code(error, SQLITE_FULL, POSTGRESQL_FULL)


def is_read_only(error: DatabaseError) -> bool:
    """Whether a database was asked to write that is open for reading only."""
    return _has_code(error, SQLITE_READONLY, POSTGRESQL_READ_ONLY)


def _has_code(error: DatabaseError, sqlite: int, postgresql: str) -> bool:
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & PRIMARY == sqlite or getattr(error.orig, "sqlstate", "") == postgresql


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)
