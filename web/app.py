"""The service: pages and API over one store, with headers that permit no foreign script."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from starlette.exceptions import HTTPException

from opgauge.harness.errors import CaseError, NothingError
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store, queries
from opgauge.harness.store.engine import CONNECTIONS
from opgauge.web import assets, pages
from opgauge.web.auth import ReadGuard
from opgauge.web.cache import Cache, WriteSignal
from opgauge.web.database_faults import DatabaseFaults
from opgauge.web.error_page import error_answer, is_api
from opgauge.web.head import HeadAsGet
from opgauge.web.notify import follow
from opgauge.web.observe import Observer
from opgauge.web.reader import Reader
from opgauge.web.scope import LatestProject, ProjectScope, WholePath
from opgauge.web.waivers import mark

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
REQUESTS = {"sqlite": 2}
"""Requests that are processed at the same time. Queries of SQLite run in this process, so further threads would only
contend for the interpreter, at half the cost again; a database server computes elsewhere, on `CONNECTIONS`."""
NOTIFY_S, END_S = 15.0, 2.0
"""Interval between looks for events, and time that all threads have to end, in seconds."""
_log = logging.getLogger("opgauge")
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


class SecurityHeaders:
    """Adds `HEADERS` to every response that does not set them itself."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""

        async def add(message: _Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in present)]
            await send(message)

        await self.app(scope, receive, add if scope["type"] == "http" else send)


def create_app(
    settings: Settings,
    *,
    lag_s: float = 0.0,
    guarded: bool = False,
    waivers: Path | None = None,
    writes: WriteSignal | None = None,
    base_url: str = "",
) -> FastAPI:
    """The service over the database of `settings`. Raises StoreError if that cannot be used.

    lag_s: interval at which a thread loads new data and sends notifications, so that no request waits for that; 0 looks
    at every request and sends none. guarded: reading needs a token too. waivers: the gate's file, shown on a page.
    writes: signal of writes, shared by the processes of the service. base_url: public address, for notifications.
    """
    store = Store.open(settings.database)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        cache: Cache = app.state.cache
        stop = Event()
        threads = [
            Thread(target=cache.follow, args=(lag_s,), daemon=True),
            Thread(target=follow, args=(reader, stop, NOTIFY_S, base_url), daemon=True),
        ]
        for thread in threads if lag_s else ():
            thread.start()
        to_thread.current_default_thread_limiter().total_tokens = REQUESTS.get(store.engine.dialect.name, CONNECTIONS)
        yield
        cache.stop()
        stop.set()
        _join(threads if lag_s else [])
        store.close()

    app = FastAPI(title="opgauge", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json", lifespan=lifespan)
    app.state.settings = settings
    app.state.store = store
    cache = Cache(
        lambda: (queries.data_version(reader.engine), mark(waivers)), warm=lambda: pages.warm(reader), writes=writes
    )
    reader = Reader(store, cache, waivers)
    app.state.cache, app.state.reader = cache, reader
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=4)
    app.add_middleware(LatestProject, reader=reader)
    if guarded:
        app.add_middleware(ReadGuard, engine=store.engine)
    app.add_middleware(ProjectScope)
    app.add_middleware(DatabaseFaults)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Observer)
    app.add_middleware(WholePath)
    app.include_router(assets.router)
    app.include_router(pages.router)
    if find_spec("opgauge.web.api") is not None:
        app.include_router(importlib.import_module("opgauge.web.api").router)
    _add_error_pages(app)
    return app


def _join(threads: Sequence[Thread]) -> None:
    """Wait `END_S` for all of them together; whatever they do then ends with the process."""
    ends = monotonic() + END_S
    for thread in threads:
        thread.join(max(0.0, ends - monotonic()))


def _add_error_pages(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        is_bare = error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase
        text = f"There is nothing at {request.url.path}" if is_bare else str(error.detail)
        given = (request, error.status_code, text, dict(error.headers or {}))
        # a page may read the database; JSON needs no thread, for which a flood of bad tokens would wait
        return error_answer(*given) if is_api(request) else await to_thread.run_sync(error_answer, *given)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        found = [f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}" for one in error.errors()]
        return error_answer(request, 422, "; ".join(found[:5]))

    @app.exception_handler(NothingError)
    @app.exception_handler(CaseError)
    def nothing(request: Request, error: Exception) -> Response:
        return error_answer(request, 404 if isinstance(error, NothingError) else 422, str(error))

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> Response:
        _log.error("%s %s", request.method, request.url.path, exc_info=error)
        # this one is answered outside of all middleware
        headers = {name.decode(): value.decode() for name, value in HEADERS}
        return error_answer(request, 500, "The log of the service says more.", headers)
