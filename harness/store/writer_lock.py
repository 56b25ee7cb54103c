"""Lock for one writer of the database at a time, among threads and processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, func, select

NUMBERS = 0x6F70676E
"""Advisory lock of PostgreSQL: one transaction at a time gives numbers to results."""


class WriterLock:
    """Lock for one writer at a time: waiting for it is fair and short, unlike waiting for SQLite's own lock."""

    def __init__(self) -> None:
        self._threads = Lock()
        self._file: int | None = None

    def share(self, path: Path) -> None:
        """Exclude writers of other processes too, with a lock on a shared file."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which no other process writes."""
        with self._threads:
            if self._file is None:
                yield
                return
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


WRITER = WriterLock()
"""The lock of this process."""


def order_numbers(connection: Connection) -> None:
    """Let the numbers of results that this transaction enters follow all committed ones, until it ends.

    Readers extend what they know by the results with larger numbers. A transaction of another host that had taken
    smaller ones, and ends later, would be overlooked. SQLite has one writer.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(NUMBERS)))
