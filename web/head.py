"""HEAD wherever there is GET: what watches services and links asks so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


class HeadAsGet:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: _Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, send_head)
