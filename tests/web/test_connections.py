"""Connections: limits in all and per address, timeouts for slow clients, and an end to a service that is stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from opgauge.web import connections
from opgauge.web.connections import READ_BYTES, ConnectionLimits, Guarded, connection_limits, protocol_options

PATIENCE_S = 60
LARGE = 32 << 20
"""Bytes of an answer that no buffer of the system holds."""


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An answer after the whole body; `/slow` never ends by itself, `/early` reads no body, `/large` is long."""
    if scope["type"] != "http":
        return
    while scope["path"] != "/early" and (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(3600)
    body = b"ok" if scope["path"] != "/large" else bytes(LARGE)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(
    monkeypatch: pytest.MonkeyPatch, limits: ConnectionLimits, **options: Any
) -> Iterator[tuple[uvicorn.Server, int]]:
    """A server of `app` with these limits, on a port."""
    given = protocol_options() | {"lifespan": "off", "log_level": "critical"} | options
    monkeypatch.setattr(Guarded, "limits", limits)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **given))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        sleep(0.01)
    yield server, port
    server.should_exit = True
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def ask(port: int, request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") -> bytes:
    """Everything that comes back to a request."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(request)
        found = b""
        try:
            while piece := connection.recv(4096):
                found += piece
        except ConnectionResetError:
            pass
        return found


def test_half_open_connections_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond the limit of an address are closed at once; when those before end, others are served."""
    with serving(monkeypatch, ConnectionLimits(total=50, per_address=5)) as (_, port):
        held = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(5)]
        for connection in held:
            connection.sendall(b"GET / HT")
        while len(Guarded.limits._open) == 0 or Guarded.limits._open.total() < 5:
            sleep(0.01)
        assert ask(port) == b""
        for connection in held:
            connection.close()
        while Guarded.limits._open.total():
            sleep(0.01)
        assert ask(port).endswith(b"ok")


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("HEADER_S", b""),
        ("HEADER_S", b"GET / HTTP/1.1\r\nHost: x\r\nX-"),
        ("BODY_S", b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"),
    ],
    ids=["nothing", "headers", "body"],
)
def test_a_request_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, name: str, sent: bytes
) -> None:
    """A client that sends nothing, half of its headers or half of its body is cut off, also if it drips."""
    monkeypatch.setattr(connections, name, 0.2)
    with serving(monkeypatch, ConnectionLimits()) as (_, port):
        assert b"ok" not in ask(port, sent)
        assert ask(port).endswith(b"ok")


def test_a_slow_drip_does_not_extend_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes one by one do not restart the clock."""
    monkeypatch.setattr(connections, "HEADER_S", 0.5)
    with (
        serving(monkeypatch, ConnectionLimits()) as (_, port),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        began = monotonic()
        try:
            while monotonic() - began < PATIENCE_S:
                connection.sendall(b"a")
                sleep(0.05)
        except OSError:
            pass
        assert monotonic() - began < PATIENCE_S


def test_a_kept_connection_serves_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a request stops with its answer."""
    monkeypatch.setattr(connections, "HEADER_S", 0.5)
    with (
        serving(monkeypatch, ConnectionLimits()) as (_, port),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        for _ in range(3):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while not found.endswith(b"ok"):
                found += connection.recv(4096)
            sleep(0.3)


def closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection from which nothing is read, before patience ends."""
    ends = monotonic() + PATIENCE_S
    while Guarded.limits._open.total() and monotonic() < ends:
        sleep(0.01)
    connection.close()
    return not Guarded.limits._open.total()


def test_an_answer_that_is_not_read_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is complete for the service long before its client has read it: the clock goes on until then."""
    monkeypatch.setattr(connections, "WRITE_S", 0.5)
    with serving(monkeypatch, ConnectionLimits()) as (_, port):
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1) == b"H"
        assert closed(connection)


def test_an_answer_that_is_read_slowly_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is expected in the time, not the whole answer; the least progress is not enough."""
    waited: list[int] = []
    left = [4 * READ_BYTES, 3 * READ_BYTES, 2 * READ_BYTES, 2 * READ_BYTES - 1]
    connection = object.__new__(Guarded)

    def call_later(_: float, __: Any, size: int) -> Any:
        waited.append(size)
        return SimpleNamespace(cancel=lambda: None)

    monkeypatch.setattr(connection, "loop", SimpleNamespace(call_later=call_later), raising=False)
    transport = SimpleNamespace(get_write_buffer_size=lambda: left[len(waited)], abort=lambda: waited.append(-1))
    monkeypatch.setattr(connection, "transport", transport, raising=False)
    connection._expect_reading()
    while waited[-1] > 0:
        connection._check_reading(waited[-1])
    assert waited == [*left[:3], -1]


def test_half_a_body_behind_another_request_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that came with the one before it has the same time."""
    monkeypatch.setattr(connections, "BODY_S", 0.2)
    sent = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nPUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"
    with serving(monkeypatch, ConnectionLimits()) as (_, port):
        assert ask(port, sent).endswith(b"ok")


def test_garbage_after_an_early_answer_closes_the_connection_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be answered any more; a traceback for each would fill the log."""
    with (
        serving(monkeypatch, ConnectionLimits()) as (_, port),
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
    ):
        connection.sendall(b"PUT /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        found = b""
        while not found.endswith(b"ok"):
            found += connection.recv(4096)
        connection.sendall(b"no chunk\r\n")
        assert closed(connection)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_stalled_client_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that never ends is given up after the time for a graceful end."""
    with serving(monkeypatch, ConnectionLimits(), timeout_graceful_shutdown=1) as (_, port):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        while not Guarded.limits._open.total():
            sleep(0.01)
    connection.close()


def test_an_unread_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has less time than the requests, so that none is cancelled with a traceback."""
    assert protocol_options()["timeout_graceful_shutdown"] > connections.LAST_READ_S
    monkeypatch.setattr(connections, "WRITE_S", 3600.0)
    monkeypatch.setattr(connections, "LAST_READ_S", 0.1)
    with serving(monkeypatch, ConnectionLimits(), timeout_graceful_shutdown=3600) as (_, port):
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1) == b"H"
    connection.close()


def test_limits_fit_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some descriptors are left for everything else; a trusted proxy has no limit of its own."""
    monkeypatch.setattr("opgauge.web.connections.resource.getrlimit", lambda _: (256, 256))
    limits = connection_limits(frozenset({"10.0.0.1"}))
    assert (limits.total, limits.per_address) == (128, 32)
    assert [limits.admit("10.0.0.1") for _ in range(40)] == [True] * 40
    assert [limits.admit("10.0.0.2") for _ in range(40)] == [True] * 32 + [False] * 8
    for _ in range(32):
        limits.release("10.0.0.2")
    assert limits.admit("10.0.0.2")
