"""The service as several processes on one address, as Python computes on one core in each.

Each process has its own connections, cached answers and limits of rate and memory. They share the database, the
socket, a lock for writing, metrics, and a file that signals writes: all processes then reload before they next answer.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from opgauge.harness.settings import Settings, load_settings, tell_workers, worker_orders
from opgauge.harness.store.writer_lock import WRITER
from opgauge.web.app import create_app
from opgauge.web.cache import WriteSignal
from opgauge.web.connections import protocol_options, raise_file_limit
from opgauge.web.observe import configure_logs, share_metrics

HEALTHY_S = 60
"""Time without an answer after which a process counts as dead."""
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker process. parent: id of its supervisor. writes, turns: files. metrics: folder."""

    database: str
    lag_s: float
    guarded: bool
    waivers: str
    parent: int
    trusted: tuple[str, ...]
    writes: str
    turns: str
    metrics: str
    base_url: str


class ConnectionSharing:
    """Middleware that closes a connection after its answer while others wait, so that an idle process gets the next."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self._open = 0

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def close(message: _Message) -> None:
            if message["type"] == "http.response.start" and self._open > 1:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        self._open += 1
        try:
            await self.app(scope, receive, close)
        finally:
            self._open -= 1


def serve_by(
    workers: int,
    settings: Settings,
    *,
    lag_s: float,
    guarded: bool,
    waivers: Path,
    host: str,
    port: int,
    trusted: frozenset[str] = frozenset(),
    root_path: str = "",
    base_url: str = "",
) -> None:
    """Serve with this number of processes until a signal ends it.

    trusted: addresses of proxies whose X-Forwarded headers count. root_path: path below which a proxy serves this.
    base_url: address by which others reach it, for links in notifications.
    """
    raise_file_limit()
    configure_logs()
    options = {
        **protocol_options(trusted),
        "host": host,
        "port": port,
        "root_path": root_path,
        "server_header": False,
        "log_config": None,
        "proxy_headers": bool(trusted),
        "forwarded_allow_ips": ",".join(sorted(trusted)) or None,
    }
    if workers == 1:
        app = create_app(settings, lag_s=lag_s, guarded=guarded, waivers=waivers, base_url=base_url)
        uvicorn.run(_preloaded(app), **options)
        return
    with TemporaryDirectory(prefix="opgauge-") as folder:
        writes, turns, metrics = (Path(folder) / name for name in ("writes", "turns", "metrics"))
        writes.touch()
        metrics.mkdir()
        rest = {"writes": str(writes), "turns": str(turns), "metrics": str(metrics), "base_url": base_url}
        given = WorkerSettings(settings.database, lag_s, guarded, str(waivers), os.getpid(), tuple(trusted), **rest)
        tell_workers(json.dumps(asdict(given)), metrics)
        config = uvicorn.Config(
            "opgauge.web.workers:worker",
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=HEALTHY_S,
            **options,
        )
        with listen(config) as listener:
            Multiprocess(config, sockets=[listener]).run()


def listen(config: uvicorn.Config) -> socket.socket:
    """The socket from which all processes accept.

    asyncio sets TCP_NODELAY only on sockets of its own. Without it an answer on a reused connection waits 40 ms for the
    acknowledgement of the client.
    """
    found = config.bind_socket()
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def worker() -> FastAPI:
    """App of a process that `serve_by` started."""
    given = WorkerSettings(**json.loads(worker_orders()))
    configure_logs()
    share_metrics(Path(given.metrics))
    protocol_options(frozenset(given.trusted))
    app = create_app(
        Settings(database=given.database, scheduler=load_settings().scheduler),
        lag_s=given.lag_s,
        guarded=given.guarded,
        waivers=Path(given.waivers),
        writes=WriteSignal(Path(given.writes)),
        base_url=given.base_url,
    )
    WRITER.share(Path(given.turns))
    app.add_middleware(ConnectionSharing)
    Thread(target=_end_after, args=(given.parent,), daemon=True).start()
    return _preloaded(app)


def _preloaded(app: FastAPI) -> FastAPI:
    """The app with its expensive answers cached, and its objects exempt from garbage collection, which is slow."""
    gc.disable()
    app.state.cache.advance()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    return app


def _end_after(parent: int) -> None:
    """End this process when its parent is gone, so that the address is free."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
