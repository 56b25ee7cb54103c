"""Whether a kernel is bound for a single call: nothing is compiled for its sizes then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SINGLE = ContextVar("single call", default=False)


@contextmanager
def single_call() -> Iterator[None]:
    """Context in which kernels are bound for a single call."""
    token = _SINGLE.set(True)
    try:
        yield
    finally:
        _SINGLE.reset(token)


def is_single_call() -> bool:
    """Whether this is such a context."""
    return _SINGLE.get()
