"""`opgauge serve`: where it listens, and who may read there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
import uvicorn
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from opgauge.harness.cli.app import app
from opgauge.harness.cli.serve import is_loopback
from opgauge.harness.errors import SettingsError
from opgauge.harness.scope import Scope
from opgauge.harness.settings import ROOT, Settings
from opgauge.harness.store import Store
from opgauge.harness.store.tokens import create_token
from opgauge.web import workers
from opgauge.web.app import create_app
from opgauge.web.workers import ConnectionSharing, listen

PATIENCE_S = 180
"""Nothing takes as long on a machine that does anything else besides."""


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.8.8.8", True), ("0.0.0.0", False), ("::", False)],  # noqa: S104
)
def test_loopback_is_told_from_the_rest(host: str, is_ours: bool) -> None:
    """Only what this machine alone reaches is loopback; a name is not trusted to be."""
    assert is_loopback(host) is is_ours
    assert not is_loopback("gpu-7.example")


def test_an_open_address_needs_tokens_or_public_read(tmp_path: Path) -> None:
    """Without either it refuses to start and says what to type."""
    url = f"sqlite:///{tmp_path}/x.db"
    done = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--db", url])  # noqa: S104
    assert isinstance(done.exception, SettingsError)
    assert "token create" in str(done.exception)


def test_the_public_address_reaches_the_notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--public-url`, in one process and in several, without its last slash."""
    given: list[Any] = []
    monkeypatch.setattr(workers, "create_app", lambda *_, **rest: given.append(rest["base_url"]))
    monkeypatch.setattr(workers, "_preloaded", lambda app: app)
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)
    orders: list[str] = []
    monkeypatch.setattr(workers, "tell_workers", lambda text, _: orders.append(text))
    monkeypatch.setattr(workers, "listen", lambda _: socket.socket())
    monkeypatch.setattr(workers, "Multiprocess", lambda *_, **__: SimpleNamespace(run=lambda: None))
    for count in ("1", "2"):
        options = ["--workers", count, "--public-url", "https://o.example/tools/", "--db", f"sqlite:///{tmp_path}/x.db"]
        assert CliRunner().invoke(app, ["serve", *options]).exit_code == 0
    assert [*given, json.loads(orders[0])["base_url"]] == ["https://o.example/tools"] * 2


def test_a_guarded_service_shows_nothing_without_a_token(tmp_path: Path) -> None:
    """401 for pages and files; with a token as Bearer or as a browser's password they open."""
    url = f"sqlite:///{tmp_path}/x.db"
    with Store.open(url) as store:
        secret = create_token(store.engine, "reader", Scope.ACK)
    with TestClient(create_app(Settings(database=url), guarded=True)) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        assert client.get("/", auth=("anyone", secret)).status_code == 200
        assert client.get("/", auth=("anyone", "wrong")).status_code == 401
        assert client.get("/healthz").status_code == 200


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`opgauge serve` with two processes, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "opgauge", "serve", "--workers", "2", "--port", str(port)]
    command += ["--db", f"sqlite:///{tmp_path}/x.db"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def test_two_processes_serve_one_address_and_end_together(served: tuple[subprocess.Popen[str], str]) -> None:
    """Both answer, also to many at once; SIGTERM to the first ends all of them."""
    process, address = served
    answers = [_patiently(f"{address}{path}") for path in ("/healthz", "/", "/runs", "/api/v1/runs")]
    assert [answer.status_code for answer in answers] == [200] * 4
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    _, left = psutil.wait_procs(family, PATIENCE_S)
    assert not left


def test_no_process_outlives_the_first(served: tuple[subprocess.Popen[str], str]) -> None:
    """Where the first is killed, which it cannot tell anybody, the others end and the address is free again."""
    process, address = served
    assert _patiently(f"{address}/healthz").status_code == 200
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    _, left = psutil.wait_procs(family, PATIENCE_S)
    assert not left


def _patiently(url: str) -> httpx.Response:
    for _ in range(10 * PATIENCE_S):
        try:
            return httpx.get(url, timeout=60)
        except httpx.TransportError:
            time.sleep(0.1)
    raise TimeoutError(url)


def test_a_busy_process_passes_its_connections_on() -> None:
    """An answer closes its connection where another request waits in this process; where none does it stays open."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["inside"].set()
        await scope["go"].wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message["headers"])

    async def receive() -> Any:
        return {}

    async def ask() -> None:
        sharing = ConnectionSharing(app)
        # each step waits for the one before it: which request is where is never left to the loop
        scopes: list[Any] = [{"type": "http", "inside": asyncio.Event(), "go": asyncio.Event()} for _ in range(3)]
        tasks = []
        for scope in scopes[:2]:
            tasks.append(asyncio.create_task(sharing(scope, receive, send)))
            await scope["inside"].wait()
        for scope, task in zip(scopes, tasks, strict=False):
            scope["go"].set()
            await task
        scopes[2]["go"].set()
        await sharing(scopes[2], receive, send)

    with start_blocking_portal() as portal:  # a loop of its own: the browser tests leave one running in this thread
        portal.call(ask)
    assert sent == [[(b"connection", b"close")], [], []]


def test_no_answer_waits_for_an_acknowledgement() -> None:
    """The socket that processes share hands on small packets at once, to every connection that it accepts."""
    with listen(uvicorn.Config("opgauge.web.workers:worker", host="127.0.0.1", port=0)) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
