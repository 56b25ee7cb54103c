"""Views: pages from templates, rendered once for each address and state of the data, with an ETag."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import HTTPException, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from opgauge.web import text
from opgauge.web.assets import address, style_ids
from opgauge.web.cache import Cache
from opgauge.web.charts import slot
from opgauge.web.commits import CommitBook, known_commits
from opgauge.web.figure_csv import figure_csv
from opgauge.web.scope import is_of_one_project, reader_for

TEMPLATES = Path(__file__).parent / "templates"
PAGE = 50
"""Folder of the templates; rows of a page."""
_LINK = re.compile(r' (href|src|action|hx-get)="/')
"""Links in templates. Texts cannot look like one, as quotes are escaped in them."""
ZIP_LEVEL, FILE_LEVEL = 4, 1
"""Compression levels of pages, which are cached, and of files."""


@cache
def templates() -> Environment:
    """The templates, escaping everything."""
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.lstrip_blocks = True
    made.filters.update({name: getattr(text, name) for name in text.__all__})
    made.filters.update(slot=slot, segment=lambda name: quote(name or "-", safe=""), zip=zip)
    made.globals.update(asset=address, style_ids=style_ids)
    return made


@cache
def compile_all() -> None:
    """Compile every template now: the first page of each kind need not wait for that."""
    for name in templates().list_templates():
        templates().get_template(name)


def figure(name: str, json_text: str | None, label: str, height: str = "medium", *, table: str = "") -> Markup:
    """An element for a figure, with its data. label: its text alternative. table: address of its CSV."""
    if not json_text:
        return Markup("")
    safe = json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(
        '<figure class="chart {height}" data-chart="{name}" aria-label="{label}"><div class="plot"></div>'
        '<script type="application/json" id="chart-{name}">{data}</script>'
        '<figcaption><a href="{table}" download="{name}.csv">CSV<span class="hidden"> of {label}</span></a>'
        "</figcaption>"
        "</figure>"
    ).format(name=name, label=label, height=height, table=table, data=Markup(safe))  # noqa: S704  escaped for a script


def figure_of(name: str, request: Request, figure_name: str, values: Mapping[str, Any]) -> str:
    """JSON of a figure of a page; raises HTTPException if the page has none of this name."""
    found: dict[str, str] = {}

    def collect(name: str, json_text: str | None, *_: object) -> str:
        found[name] = json_text or ""
        return ""

    render(name, request, **{**values, "figure": collect})
    if not found.get(figure_name):
        raise HTTPException(404, f"this page has no figure {figure_name}")
    return found[figure_name]


def render(name: str, request: Request, **values: Any) -> str:
    """Render a template; `link` in it is the address of this page with some parameters changed.

    Commits and projects are read from the database unless they are given.
    """
    root = str(request.scope.get("root_path", ""))
    path = request.url.path.removeprefix(root) or "/"

    def link(**changed: object) -> str:
        given = [(key, value) for key, value in request.query_params.multi_items() if key not in changed]
        left = [(key, str(value)) for key, value in (*given, *changed.items()) if value]
        return f"{path}?{urlencode(left)}" if left else path

    def linked_figure(name: str, json_text: str | None, label: str, height: str = "medium") -> Markup:
        return figure(name, json_text, label, height, table=link(csv=name))

    home = root.rpartition("/p/")[0] if project_of(request) is not None else root
    shared = {
        "link": link,
        "figure": linked_figure,
        "home": f"{home}/",
        "path": path,
        "project": project_of(request),
        "has_cluster": bool(request.app.state.settings.scheduler),
    }
    if "projects" not in values:
        shared |= {"commits": commits_of(request), "projects": projects_of(request)}
    return below(root, templates().get_template(name).render({**shared, **values}))


def below(root: str, body: str) -> str:
    """A page whose links lead below `root`: of a proxy's path, or of a project. Templates link to absolute paths."""
    return _LINK.sub(rf"\g<0>{root.strip('/')}/", body) if root else body


def commits_of(request: Request) -> CommitBook:
    """Commits of the project that the address selects; none where a page is rendered without data."""
    return known_commits(reader_for(request)) if hasattr(request.app.state, "reader") else CommitBook()


def project_of(request: Request) -> str | None:
    """The project that the address selects; None for all."""
    found: str | None = request.scope.get("project")
    return found


def projects_of(request: Request) -> list[str]:
    """Projects that have runs, for the menu; none for who reads one only, or where a page is rendered without data."""
    state = request.app.state
    if is_of_one_project(request.scope):
        return []
    return [name for name, _, _ in state.reader.projects()] if hasattr(state, "reader") else []


def page(request: Request, cache: Cache, name: str, make: Callable[[], Mapping[str, Any]]) -> Response:
    """The page at this address, or with `csv=NAME` the data of a figure; rendered once for each state of the data."""
    wanted = request.query_params.get("csv")
    if wanted:
        return cached_response(
            request, cache, "text/csv", lambda: figure_csv(figure_of(name, request, wanted, make())).encode()
        )

    def body() -> bytes:
        return render(name, request, **make()).encode("utf-8", "replace")

    return cached_response(request, cache, "text/html", body)


def cached_response(request: Request, cache: Cache, media_type: str, make: Callable[[], bytes]) -> Response:
    """The answer at this address, compressed and cached for as long as the data stay the same."""
    key = ("page", is_of_one_project(request.scope), request.url.path, request.url.query)
    zipped, tag = cache.get(key, lambda: _compressed(make()))
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(zipped, media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(gzip.decompress(zipped), media_type=media_type, headers=headers)


def sent(request: Request, media_type: str, body: bytes, headers: Mapping[str, str]) -> Response:
    """A large file, compressed in this thread rather than in that of all requests, and quickly rather than well."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=media_type, headers={**headers, "Vary": "Accept-Encoding"})
    packed = {**headers, "Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
    return Response(gzip.compress(body, FILE_LEVEL, mtime=0), media_type=media_type, headers=packed)


def _compressed(body: bytes) -> tuple[bytes, str]:
    return gzip.compress(body, ZIP_LEVEL, mtime=0), f'W/"{hashlib.sha256(body).hexdigest()[:16]}"'


class Paging:
    """Which of `total` things a page shows: `size` of them from page `number`, which counts from 1."""

    def __init__(self, number: int, total: int, size: int = PAGE) -> None:
        self.size = size
        self.total = total
        self.last = max(1, -(-total // size))
        self.number = min(max(number, 1), self.last)

    @property
    def start(self) -> int:
        """Offset of the first."""
        return (self.number - 1) * self.size

    @property
    def stop(self) -> int:
        """Offset after the last."""
        return min(self.start + self.size, self.total)
