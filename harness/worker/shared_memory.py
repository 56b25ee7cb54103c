"""Shared memory: buffers of a case in a file that two processes map, so that both use the same pages.

The physical pages of an array decide which of them share a cache set. Two processes with arrays of their own differ by
that alone, by up to a factor of two for arrays that just fit the last cache.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

PAGE = 4096
"""Bytes of a page."""


class SharedMemory:
    """A mapped file from which arrays are allocated in order: the same requests give the same offsets."""

    def __init__(self, path: str) -> None:
        """Map the whole file; raises OSError if it cannot be opened."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._bytes = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), np.uint8)
        finally:
            os.close(descriptor)
        self._used = 0

    def allocate(self, nbytes: int) -> Any:
        """Array of `nbytes` that starts at a page; None if the file is full."""
        start, self._used = self._used, self._used + -(-nbytes // PAGE) * PAGE
        return self._bytes[start : start + nbytes] if self._used <= self._bytes.size else None


_current: ContextVar[SharedMemory | None] = ContextVar("shared memory", default=None)


@contextmanager
def allocating_in(path: str | None) -> Iterator[None]:
    """Context in which host arrays of a kernel's inputs and outputs are allocated in this file; None.

    In private memory.
    """
    token = _current.set(None if path is None else SharedMemory(path))
    try:
        yield
    finally:
        _current.reset(token)


def allocate_shared(nbytes: int) -> Any:
    """Array of `nbytes` in the current file; None if there is none, or it is full."""
    memory = _current.get()
    return None if memory is None else memory.allocate(nbytes)
