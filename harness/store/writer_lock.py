"""Lock for one writer of the database at a time, among threads and processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock


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
