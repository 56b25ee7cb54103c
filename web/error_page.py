"""Errors as answers: a page, and for the API JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from opgauge.web.commits import CommitBook
from opgauge.web.view import render

TITLES = {
    404: "Not found",
    405: "Not allowed",
    422: "Invalid request",
    503: "The database does not answer",
    507: "The disk of the database is full",
}
"""Headings of error pages by status."""


def is_api(request: Request) -> bool:
    """Whether an error is answered as JSON."""
    return "/api/" in request.url.path


def error_answer(
    request: Request, status: int, text: str, headers: Mapping[str, str] | None = None, *, has_data: bool = True
) -> Response:
    """An error as a page; for the API as JSON. has_data: the page may read the database."""
    given = dict(headers or {})
    if is_api(request):
        return JSONResponse({"detail": text}, status, headers=given)
    data: dict[str, Any] = {} if has_data else {"commits": CommitBook(), "projects": []}
    title = TITLES.get(status, "Something went wrong")
    body = render("error.html", request, title=title, text=text, status=status, **data)
    return Response(body.encode("utf-8", "replace"), status, media_type="text/html", headers=given)
