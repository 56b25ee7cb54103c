"""The service as several processes on one address: Python computes on one core in each.

Each has its own connections, kept answers and limits of rate and memory; what they share is the database, the
socket, turns at entering runs, and a bell: who writes by a form rings it, and all look anew before they next answer.
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
from opgauge.harness.settings import Settings, tell_workers, worker_orders
from opgauge.harness.store.bulk import TURNS
from opgauge.web.app import create_app
from opgauge.web.cache import Bell
from uvicorn.supervisors import Multiprocess

HEALTHY_S = 60
"""A process that is busy is not taken for dead."""
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


@dataclass(frozen=True)
class Orders:
    """What each process is told. parent: the process that watches over it. bell, turns: files."""

    database: str
    lag_s: float
    guarded: bool
    waivers: str
    parent: int
    bell: str
    turns: str


class Sharing:
    """Closes a connection after its answer where others wait here meanwhile: the next goes to whoever is free."""

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


def serve_by(workers: int, settings: Settings, *, lag_s: float, guarded: bool, waivers: Path, **listening: Any) -> None:
    """Serve with so many processes until a signal ends it; `listening` is what uvicorn is told."""
    if workers == 1:
        app = create_app(settings, lag_s=lag_s, guarded=guarded, waivers=waivers)
        uvicorn.run(_warmed(app), **listening)
        return
    with TemporaryDirectory(prefix="opgauge-") as folder:
        bell, turns = Path(folder) / "bell", Path(folder) / "turns"
        bell.touch()
        orders = Orders(settings.database, lag_s, guarded, str(waivers), os.getpid(), str(bell), str(turns))
        tell_workers(json.dumps(asdict(orders)))
        config = uvicorn.Config(
            "opgauge.web.workers:worker",
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=HEALTHY_S,
            **listening,
        )
        with listen(config) as listener:
            Multiprocess(config, sockets=[listener]).run()


def listen(config: uvicorn.Config) -> socket.socket:
    """The socket that all processes accept from.

    asyncio lets small packets go at once for sockets that it made itself, not for one that is handed to it: answers
    on a connection that is used again would wait 40 ms for the other side's acknowledgement.
    """
    found = config.bind_socket()
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def worker() -> FastAPI:
    """The service in a process that `serve_by` started."""
    orders = Orders(**json.loads(worker_orders()))
    app = create_app(
        Settings(database=orders.database),
        lag_s=orders.lag_s,
        guarded=orders.guarded,
        waivers=Path(orders.waivers),
        bell=Bell(Path(orders.bell)),
    )
    TURNS.share(Path(orders.turns))
    app.add_middleware(Sharing)
    Thread(target=_end_with, args=(orders.parent,), daemon=True).start()
    return _warmed(app)


def _warmed(app: FastAPI) -> FastAPI:
    """With the dear answers made. What is in memory by now stays there: looking through it would hold up requests."""
    app.state.cache.advance()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    return app


def _end_with(parent: int) -> None:
    """Whatever ends the parent, nobody goes on holding its address."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
