"""Projects in addresses: `/p/NAME/…` is the service of one project.

The middleware moves the prefix from the path into the root path, so that routes, links and redirects need not know it.
Without the prefix a service of one project shows that project; a service of several lists them at `/`, and its other
pages lead to the project that was measured last. Routes of the API are of all projects there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.reader import Reader

UNNAMED = "-"
"""A project without a name, in addresses."""
_PREFIX = re.compile(r"/p/([^/]+)(/.*)?")
_FEED = "/regressions.atom"
_OWN = ("/cases", "/compare", "/coverage", "/ops", "/regressions", "/roofline", "/search", "/trust", "/devices")
"""The feed, which is of all projects, and pages that make no sense across projects."""
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


class ProjectScope:
    """Middleware that reads the project of a request from its path into `scope["project"]`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        # as it was sent: a name may have a slash, which is quoted in addresses
        raw = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1").partition("?")[0]
        found = _PREFIX.fullmatch(raw.removeprefix(root))
        name = unquote(found[1]) if found else ""
        if found and name.isprintable():
            inner = f"{root}/p/{quote(name, safe='')}"
            # in place, so that the middleware outside sees the route
            scope.update(
                project="" if name == UNNAMED else name, root_path=inner, path=inner + unquote(found[2] or "/")
            )
        await self.app(scope, receive, send)


class WholePath:
    """Middleware for proxies that pass on the path below which they serve: it is cut off once.

    The server puts the root path before every path, as most proxies cut it off.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""
        root = scope.get("root_path", "")
        if root and f"{scope['path']}/".startswith(f"{root}{root}/"):
            raw = scope.get("raw_path")
            scope.update(path=scope["path"].removeprefix(root), raw_path=raw and raw.removeprefix(root.encode()))
            if scope["path"] == root:
                scope.update(path=f"{root}/", raw_path=raw and f"{root}/".encode())
        await self.app(scope, receive, send)


class LatestProject:
    """Middleware that leads a page of one project, asked for without it, to the project that was measured last."""

    def __init__(self, app: Callable[..., Awaitable[None]], reader: Reader) -> None:
        self.app = app
        self._reader = reader

    async def __call__(self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: _Send) -> None:
        """ASGI."""
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root) if scope["type"] == "http" else ""
        if path.startswith(_OWN) and path != _FEED and scope["method"] == "GET" and scope.get("project") is None:
            several = await run_in_threadpool(self._reader.projects)
            if len(several) > 1:
                query = scope.get("query_string", b"").decode("latin-1")
                target = f"{root}{prefix(several[0][0])}{quote(path)}" + (f"?{query}" if query else "")
                await RedirectResponse(target, 307)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def select_project(scope: _Message, project: str) -> None:
    """Make a request without a project one of this project, as if its address had the prefix."""
    root = scope.get("root_path", "")
    inner = root + prefix(project)
    scope.update(project=project, root_path=inner, path=inner + (scope["path"].removeprefix(root) or "/"))


def prefix(project: str) -> str:
    """Path of a project."""
    return f"/p/{quote(project or UNNAMED, safe='')}"


def leave_project(request: Request) -> None:
    """Take the project out of the address, as if it had none: links of an error page lead to what exists."""
    root, _, _ = str(request.scope.get("root_path", "")).rpartition("/p/")
    request.scope.update(project=None, root_path=root)


def reader_for(request: Request) -> Reader:
    """The reader of the project that the address selects."""
    reader: Reader = request.app.state.reader
    project: str | None = request.scope.get("project")
    return reader if project is None else reader.of_project(project)


def each_project(reader: Reader) -> list[Reader]:
    """Readers of the projects that `reader` reads, one each: a history and its series are of one project."""
    names = [name for name, _, _ in reader.projects()]
    if reader.project is not None or len(names) < 2:
        return [reader]
    return [reader.of_project(name) for name in names]


def reader_of_run(reader: Reader, run: RunInfo) -> Reader:
    """The reader of a run's own project: neither the run before it nor its noise is another project's."""
    return next((one for one in each_project(reader) if one.project == run.project), reader)


def is_of_one_project(scope: _Message) -> bool:
    """Whether the request's token reads one project only: it is told of no other."""
    token = scope.get("state", {}).get("token")
    return token is not None and token.project is not None
