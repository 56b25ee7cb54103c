"""Search: a page of hits, and the list below the search box while a person types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from opgauge.web.deps import CacheOf, ReaderOf
from opgauge.web.pages.query import Text
from opgauge.web.scope import is_of_one_project
from opgauge.web.search import KINDS, search
from opgauge.web.view import page

LISTED, WHOLE = 5, 50
"""Hits of each kind in the list below the search box, and on the page."""
router = APIRouter()


@router.get("/search")
def search_page(request: Request, cache: CacheOf, reader: ReaderOf, q: Text = "") -> Response:
    """Everything that has the words of `q`."""

    def values() -> Mapping[str, Any]:
        return {"q": q, "found": search(reader, q, WHOLE, _kinds(request)), "most": WHOLE}

    return page(request, cache, "search.html", values)


@router.get("/search/hits")
def hits(request: Request, cache: CacheOf, reader: ReaderOf, q: Text = "") -> Response:
    """The best hits, as a part of a page."""
    return page(request, cache, "hits.html", lambda: {"q": q, "found": search(reader, q, LISTED, _kinds(request))})


def _kinds(request: Request) -> Sequence[str]:
    """Kinds of hits; no projects for who reads one only."""
    return KINDS[:-1] if is_of_one_project(request.scope) else KINDS
