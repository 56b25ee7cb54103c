"""Static files: a fixed list, each with the hash of its content in its address, compressed once."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

STATIC = Path(__file__).parent / "static"
PLOTLY = "plotly.min.js"
FILES = {
    "style.css": STATIC / "style.css",
    "opgauge.js": STATIC / "opgauge.js",
    "theme.js": STATIC / "theme.js",
    "icon.svg": STATIC / "icon.svg",
    "htmx.min.js": STATIC / "vendor" / "htmx.min.js",
    "plotly.css": STATIC / "vendor" / "plotly.css",
}
"""Static files by name; plotly.js comes from its package."""
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
FOREVER = "public, max-age=31536000, immutable"
"""Media types by ending, and the cache header: an address changes with its content."""
_STYLE_ID = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it goes out."""

    body: bytes
    zipped: bytes
    media_type: str


@cache
def asset(name: str) -> Asset:
    """The file called `name`; raises KeyError for any other."""
    path = _plotly() if name == PLOTLY else FILES[name]
    body = path.read_bytes()
    return Asset(body, gzip.compress(body, 6, mtime=0), TYPES[path.suffix])


@cache
def address(name: str) -> str:
    """Address of `name`, with a hash of its content; plotly.js, which is large, has its version instead."""
    mark = version("plotly") if name == PLOTLY else hashlib.sha256(FILES[name].read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={mark}"


@cache
def style_ids() -> tuple[str, ...]:
    """Ids of style elements that plotly.js makes unless they are there: the pages' policy forbids those."""
    return tuple(sorted({found.decode() for found in _STYLE_ID.findall(asset(PLOTLY).body)}))


def _plotly() -> Path:
    """plotly.js of the installed package, found without importing it."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise KeyError(PLOTLY)
    return Path(found.submodule_search_locations[0]) / "package_data" / PLOTLY


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
def static(request: Request, name: str) -> Response:
    """A static file."""
    try:
        found = asset(name)
    except KeyError:
        raise HTTPException(404, f"there is no file {name}") from None
    is_current = str(request.url.query) == address(name).partition("?")[2]
    headers = {"Cache-Control": FOREVER if is_current else "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.zipped, media_type=found.media_type, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)


@router.api_route("/favicon.ico", methods=["GET", "HEAD"])
def favicon() -> Response:
    """The icon under the address that browsers request by default."""
    return Response(asset("icon.svg").body, media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})
