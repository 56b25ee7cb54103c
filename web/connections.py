"""Limits of connections: how many in all and from one address, and how long a client may take for a request.

uvicorn waits without end for the rest of a request. `Guarded` closes a connection whose request is not complete in
time, refuses connections beyond the limits before it reads from them, and logs a summary instead of a line each.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from time import monotonic
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from opgauge.web.observe import REFUSED, log

HEADER_S = 10.0
"""Time for a complete request line and headers, from the first byte or the connection."""
BODY_S = 120.0
"""Time for a complete body, from the end of the headers."""
WRITE_S = 30.0
READ_BYTES = 32 << 10
"""Time in which a client reads so many bytes of an answer, or all that is left of it."""
END_S, LAST_READ_S = 6, 4.0
"""Time that requests have when the service ends, and that a client then has to read an answer, in seconds."""
SPARE_FILES = 128
"""File descriptors that connections leave for the database and everything else."""
SUMMARY_S = 10.0
"""Seconds between two lines of the log about refused connections."""


class ConnectionLimits:
    """Connections of a process: at most `total`, and `per_address` from one address that is no trusted proxy."""

    def __init__(self, total: int = 1000, per_address: int = 100, trusted: frozenset[str] = frozenset()) -> None:
        self.total = total
        self.per_address = per_address
        self.trusted = trusted
        self._open: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._logged = float("-inf")

    def admit(self, address: str) -> bool:
        """Count a connection if it is within the limits."""
        cause = ""
        if self._open.total() >= self.total:
            cause = "total"
        elif address not in self.trusted and self._open[address] >= self.per_address:
            cause = "address"
        if cause:
            self.refuse(cause)
            return False
        self._open[address] += 1
        return True

    def release(self, address: str) -> None:
        """Count a connection that was closed."""
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]

    def refuse(self, cause: str) -> None:
        """Count a connection closed without an answer; the log has one line every `SUMMARY_S`."""
        REFUSED.labels(cause).inc()
        self._refused[cause] += 1
        if monotonic() - self._logged >= SUMMARY_S:
            self._logged = monotonic()
            log.warning("connections refused", **dict(self._refused))
            self._refused.clear()


class Guarded(H11Protocol):
    """HTTP/1.1 with the limits of `limits`, which the process sets before it serves."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    _counted: str | None = None
    _timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or abort it."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self.limits.admit(address):
            self.transport = transport
            transport.abort()
            return
        self._counted = address
        super().connection_made(transport)
        self._expect("header", HEADER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what was counted."""
        self._stop()
        self._stop_reading()
        if self._counted is None:
            return
        self.limits.release(self._counted)
        self._counted = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and expect the rest of the request in time."""
        if self._counted is None:
            return
        waiting = self._state()
        super().data_received(data)
        now = self._state()
        if now == "answer":
            self._stop()
        elif now != waiting or self._timer is None:
            self._expect(now, BODY_S if now == "body" else HEADER_S)

    def on_response_complete(self) -> None:
        """Expect the client to read the answer, and the body of a next request that has begun.

        The keep-alive timeout of uvicorn follows. It closes the connection only after the answer was read.
        """
        self._stop()
        super().on_response_complete()
        self._expect_reading()
        if self._state() == "body":
            self._expect("body", BODY_S)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP; one whose answer has begun can only be closed."""
        if str(self.conn.our_state) in {"IDLE", "SEND_RESPONSE"}:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Expect the client to read on."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Expect the client to read the rest, too."""
        super().resume_writing()
        self._expect_reading()

    def shutdown(self) -> None:
        """End after the answer, and without it where the client does not read it in time."""
        super().shutdown()
        self._stop_reading()
        if self.transport.get_write_buffer_size():
            self._read_timer = self.loop.call_later(LAST_READ_S, self._expire, "read")

    def _state(self) -> str:
        """Next thing that the client owes: the header, the body, or nothing, as the answer is due."""
        state = str(self.conn.their_state)
        return {"IDLE": "header", "SEND_BODY": "body"}.get(state, "answer")

    def _expect(self, what: str, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._expire, what)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expect_reading(self) -> None:
        self._stop_reading()
        if left := self.transport.get_write_buffer_size():
            self._read_timer = self.loop.call_later(WRITE_S, self._check_reading, left)

    def _stop_reading(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _check_reading(self, before: int) -> None:
        """Close the connection unless the client has read on since `before` bytes were left."""
        left = self.transport.get_write_buffer_size()
        if left > max(0, before - READ_BYTES):
            self._expire("read")
        else:
            self._expect_reading()

    def _expire(self, what: str) -> None:
        self._stop()
        self._stop_reading()
        self.limits.refuse(f"{what} timeout")
        self.transport.abort()


def raise_file_limit() -> int:
    """Raise the limit of open files to what the system permits; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connection_limits(trusted: frozenset[str] = frozenset()) -> ConnectionLimits:
    """Limits that fit the open files of this process."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    total = max(16, min(1000, files - SPARE_FILES))
    return ConnectionLimits(total, max(8, min(100, total // 4)), trusted)


def protocol_options(trusted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Options of uvicorn for a service that other machines reach."""
    Guarded.limits = connection_limits(trusted)
    return {"http": Guarded, "ws": "none", "timeout_keep_alive": 5, "timeout_graceful_shutdown": END_S, "backlog": 256}
