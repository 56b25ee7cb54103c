"""Signals that ask a process to end: SIGTERM and SIGHUP unwind the stack as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Signals by which CI systems, service managers and closed terminals end a process."""

_ASKED: list[int] = []
"""Signals that arrived in `interruptible`."""


class TerminatedError(KeyboardInterrupt):
    """A signal asked this process to end. number: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(error: KeyboardInterrupt) -> int:
    """Exit code that shells expect after a signal: 128 plus its number."""
    return 128 + (error.number if isinstance(error, TerminatedError) else signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise TerminatedError on SIGTERM and SIGHUP; a signal that was ignored before (`nohup`) stays ignored."""
    heard = [number for number in ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    with _handled(heard, _raise) as is_main:
        try:
            yield
        finally:
            if is_main:
                _ASKED.clear()


def raise_if_asked() -> None:
    """Raise TerminatedError again if a signal arrived where exceptions are ignored, as in a finalizer."""
    if _ASKED:
        raise TerminatedError(_ASKED[-1])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore further requests to end while results are being finalized."""
    with _handled((signal.SIGINT, *ENDINGS), signal.SIG_IGN):
        yield


@contextmanager
def _handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[bool]:
    """Handle signals by `handler` in the main thread, and yield whether this is the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers} if is_main else {}
    try:
        yield is_main
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    _ASKED.append(number)
    raise TerminatedError(number)
