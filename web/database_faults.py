"""Faults of the database as answers: 507 for a full disk, 503 for what passes, 500 for the rest.

A middleware gives them, for every route and for the middlewares inside it alike.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Request
from sqlalchemy import exc
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from opgauge.harness.errors import StoreError
from opgauge.harness.store.engine import is_full, is_read_only
from opgauge.web.error_page import error_answer
from opgauge.web.observe import DATABASE_ERRORS

RETRY = {"Retry-After": "5"}
"""Header of an answer that asks the sender to try again."""
FULL = "the disk of the database is full: nothing of this request was stored"
READ_ONLY = "the database of this service is open for reading only"
BUSY = "the database is busy or does not answer: try again in a moment; the log of the service says more"
BROKEN = "the database refused a statement; the log of the service says more"
"""Texts of the answers."""
_PASSING = (exc.OperationalError, exc.InterfaceError, exc.IntegrityError, exc.TimeoutError, StoreError)
"""Errors that may pass: locks, lost connections, two writers of one row after all tries, an exhausted pool."""
_log = logging.getLogger("opgauge")
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class DatabaseFaults:
    """Middleware that answers, logs and counts errors of the database."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """ASGI."""
        is_begun = False

        async def watch(message: _Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except (StoreError, SQLAlchemyError) as error:
            if scope["type"] != "http":
                raise
            DATABASE_ERRORS.inc()
            status, text, headers = _judged(error)
            _log.error("%s %s: %s", scope["method"], scope["path"], getattr(error, "orig", None) or error)
            if is_begun:
                raise
            await error_answer(Request(scope), status, text, headers, has_data=False)(scope, receive, send)


def _judged(error: Exception) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of the answer to an error."""
    if isinstance(error, DatabaseError) and is_full(error):
        return 507, FULL, {}
    if isinstance(error, DatabaseError) and is_read_only(error):
        return 500, READ_ONLY, {}
    return (503, BUSY, RETRY) if isinstance(error, _PASSING) else (500, BROKEN, {})
