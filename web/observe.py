"""Structured logs and metrics of the service: one JSON line and one observation per request.

A line has time, level, request id, method, route, status, duration in milliseconds and the name of the token, never its
secret. The route is the pattern (`/cases/{case_id}`), so that neither logs nor metrics grow with the addresses.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from opgauge.web.rate import RateLimit

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
REQUEST_HEADER = b"x-request-id"
"""Header of the request id."""
REFUSALS = (401, 403, 429)
"""Statuses of requests that are refused for their token, or as too many."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the latency histogram, in seconds."""
REGISTRY = CollectorRegistry()
REQUESTS = Counter("opgauge_http_requests", "Requests by route and status.", ("route", "status"), registry=REGISTRY)
DURATION = Histogram(
    "opgauge_http_request_seconds", "Duration of requests by route.", ("route",), buckets=BUCKETS, registry=REGISTRY
)
OPEN = Gauge(
    "opgauge_http_open_requests", "Requests that are being answered.", multiprocess_mode="livesum", registry=REGISTRY
)
REFUSED = Counter(
    "opgauge_connections_refused", "Connections closed unanswered, by cause.", ("cause",), registry=REGISTRY
)
DATABASE_ERRORS = Counter("opgauge_database_errors", "Requests that failed in the database.", registry=REGISTRY)
POOL = Gauge(
    "opgauge_database_connections",
    "Connections to the database in use.",
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
DELIVERIES = Counter("opgauge_webhook_deliveries", "Messages to webhooks by outcome.", ("outcome",), registry=REGISTRY)
"""Metrics of the service."""
_shared: list[Path] = []
_context: ContextVar[dict[str, str] | None] = ContextVar("request", default=None)
log = structlog.wrap_logger(logging.getLogger("opgauge"), wrapper_class=structlog.stdlib.BoundLogger)
"""Logger of the service, silent below warnings until `configure_logs`."""


def configure_logs(level: str = "INFO") -> None:
    """Write JSON lines to standard error, including those of uvicorn and SQLAlchemy."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("httpx").setLevel(logging.WARNING)


def request_id() -> str:
    """Id of the current request; empty outside one."""
    return (_context.get() or {}).get("id", "")


def note_token(name: str) -> None:
    """Record which token the current request has, for its log line."""
    found = _context.get()
    if found is not None:
        found["token"] = name


class Observer:
    """Middleware that logs and counts every request, and gives it an id, which the answer repeats.

    Of refused requests, after a few, one in ten seconds is logged, with the number of those before it that were not: a
    flood of them must not fill the disk.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], *, log_requests: bool = True) -> None:
        self.app = app
        self._log_requests = log_requests
        self._refusals = RateLimit(per_s=0.1, burst=20)
        self._unlogged = 0

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        known = {"id": secrets.token_hex(8), "token": ""}
        context = _context.set(known)
        status, began = 500, perf_counter()

        async def watch(message: _Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_HEADER, known["id"].encode())]
            await send(message)

        OPEN.inc()
        try:
            await self.app(scope, receive, watch)
        finally:
            OPEN.dec()
            _context.reset(context)
            self._observe(scope, known, status, perf_counter() - began)

    def _observe(self, scope: _Message, known: dict[str, str], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        REQUESTS.labels(route, str(status)).inc()
        DURATION.labels(route).observe(seconds)
        if not self._log_requests:
            return
        refused: dict[str, int] = {}
        if status in REFUSALS:
            if self._refusals.take(""):
                self._unlogged += 1
                return
            refused = {"unlogged": self._unlogged}
            self._unlogged = 0
        log.info(
            "request",
            request=known["id"],
            method=scope["method"],
            route=route,
            status=status,
            duration_ms=round(1000 * seconds, 2),
            token=known["token"],
            client=(scope.get("client") or ("",))[0],
            **refused,
        )


def share_metrics(folder: Path) -> None:
    """Sum the metrics of all processes that share `folder`, which `PROMETHEUS_MULTIPROC_DIR` names."""
    _shared.append(folder)


def service_metrics() -> bytes:
    """Metrics of the service in Prometheus' text format, summed over its processes."""
    if not _shared:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(_shared[-1]))  # type: ignore[no-untyped-call]
    return generate_latest(registry)
