"""Authentication: writing always needs a token; reading needs one where it is not open.

A route that writes takes `Depends(require(Scope.SUBMIT))`. A service on more than loopback that is not public adds
`ReadGuard`. Limits count per token after authentication, so that no client uses up another's; requests without a valid
token count per address.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from opgauge.harness.scope import Scope
from opgauge.harness.store.audit import add_audit
from opgauge.harness.store.tokens import Token, find_token, note_use
from opgauge.web.observe import log, note_token, request_id
from opgauge.web.rate import RateLimits
from opgauge.web.scope import select_project

LONGEST = 200
OPEN_PATHS = ("/healthz",)
"""Longest token in characters; paths that need no token."""
_bearer = HTTPBearer(auto_error=False, description="`opgauge token create NAME --scope submit`")
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


def limits_of(request: Request) -> RateLimits:
    """The app's limits."""
    state = request.app.state
    if not hasattr(state, "limits"):
        state.limits = RateLimits()
    found: RateLimits = state.limits
    return found


def require(scope: Scope) -> Callable[..., Token]:
    """A dependency: the token of the request, which must permit `scope`; otherwise 401, 403 or 429."""

    def allowed(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None
    ) -> Token:
        limits, address = limits_of(request), address_of(request)
        if given is None:
            _slow_down(limits.address.take(address))
            raise _unauthorized("writing needs a token: Authorization: Bearer …")
        token = check_token(request.app.state.store.engine, limits, address, given.credentials)
        _slow_down(limits.token.take(token.name))
        note_token(token.name)
        if not token.allows(scope):
            if not limits.refusal.take(token.name):
                audit(request, token.name, "refuse", request.url.path, f"scope {token.scope}, not {scope}")
            raise HTTPException(403, f"the token {token.name} is for {token.scope}, not for {scope}")
        return token

    return allowed


def check_token(engine: Engine, limits: RateLimits, address: str, secret: str) -> Token:
    """The token with this secret; 401 if there is none, 429 for an address that guesses too often."""
    token = find_token(engine, secret) if len(secret) <= LONGEST else None
    if token is None:
        _slow_down(limits.wrong.take(address))
        raise _unauthorized("no such token, or it is revoked or expired")
    note_use(engine, token)
    return token


def check_project(token: Token, project: str) -> None:
    """403 for a token that is valid for another project only."""
    if not token.covers(project):
        raise HTTPException(403, f"the token {token.name} is for the project {token.project!r}, not for {project!r}")


def audit(request: Request, actor: str, action: str, subject: str, detail: str = "") -> None:
    """Append to the audit log; a database that is busy loses the entry, not the request."""
    engine: Engine = request.app.state.store.engine
    try:
        add_audit(engine, actor, action, subject, detail, address=address_of(request), request=request_id())
    except SQLAlchemyError as error:
        log.warning("an entry of the audit log was lost", actor=actor, action=action, subject=subject, fault=str(error))


def address_of(request: Request) -> str:
    """Address of the client: of the connection, or what a trusted proxy forwards."""
    return request.client.host if request.client else ""


class ReadGuard:
    """Middleware that requires a token for reading: `Authorization: Bearer`, or the password of a browser.

    A token of a project reads that project: an address without one is taken for the project's.

    The password permits reading only, as a browser also sends it with requests that other sites cause.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], engine: Engine, limits: RateLimits | None = None) -> None:
        self.app = app
        self._engine = engine
        self._limits = limits or RateLimits()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN_PATHS:
            try:
                await run_in_threadpool(self._check, scope)
            except HTTPException as error:
                answer = JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: _Message) -> None:
        headers = dict(scope["headers"])
        secret = secret_of(headers.get(b"authorization", b""))
        address = (scope.get("client") or ("",))[0]
        if not secret:
            raise _unauthorized("reading needs a token here", browser=True)
        token = check_token(self._engine, self._limits, address, secret)
        note_token(token.name)
        scope.setdefault("state", {})["token"] = token
        if token.project is not None:
            selected = scope.get("project")
            check_project(token, token.project if selected is None else selected)
            if selected is None:
                select_project(scope, token.project)


def secret_of(header: bytes) -> str:
    """The token in an Authorization header, Bearer or Basic; empty if there is none."""
    kind, _, rest = header.decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        return rest.strip()
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _slow_down(wait_s: float) -> None:
    if wait_s:
        raise HTTPException(429, "too many requests", {"Retry-After": str(math.ceil(wait_s))})


def _unauthorized(text: str, *, browser: bool = False) -> HTTPException:
    kind = 'Basic realm="opgauge: any name, a token as password"' if browser else "Bearer"
    return HTTPException(401, text, {"WWW-Authenticate": kind})
