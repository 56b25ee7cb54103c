"""Answers of the routes: strict JSON, pages with a maximum, errors with one message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import HTTPException, Path, Query, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from opgauge.harness.case.hint import did_you_mean

MOST = 500
PLAIN = r"^[^\x00-\x1f\x7f]*$"
NAME = r"^[A-Za-z0-9_.:+\-]*$"
"""Most items of a page; patterns of texts and of names."""

Limit = Annotated[int, Query(ge=1, le=MOST, description="Most items to give.")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="Items to pass over.")]
Name = Annotated[str, Query(max_length=64, pattern=NAME)]
Text = Annotated[str, Query(max_length=64, pattern=PLAIN)]
RunId = Annotated[str, Path(max_length=36, pattern=r"^[0-9A-Za-z-]+$", description="A run's id, or its beginning.")]
CaseId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="16 hexadecimal digits.")]
OpName = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class Problem(BaseModel):
    """An error, in one sentence or a few."""

    detail: str


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """How the errors of a route look."""
    return {code: {"model": Problem} for code in codes}


def json_answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`data` as strict JSON; numbers that JSON does not have become texts."""
    body = _written(data)
    if body is None or b"NaN" in body or b"Infinity" in body:
        text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"))
        body = text.encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json")


def _written(data: Any) -> bytes | None:
    """JSON, quickly; None for what is not text, of which the slow way makes the best."""
    try:
        return to_json(data, inf_nan_mode="constants")
    except ValueError:
        return None


def page(items: Sequence[Any], limit: int, offset: int) -> dict[str, Any]:
    """Some of `items`, and where the next ones begin."""
    end = offset + limit
    return {"items": items[offset:end], "total": len(items), "next": end if end < len(items) else None}


async def refuse_unknown(request: Request) -> None:
    """422 for a parameter that the route does not have: a misspelt filter must not look like an answer.

    A coroutine, as FastAPI runs plain functions in a thread, for which a request waits while pages take them all.
    """
    known = _query_names(request.scope["route"].dependant)
    for name in request.query_params:
        if name not in known:
            raise HTTPException(422, f"unknown parameter {name[:60]!r}{did_you_mean(name[:60], known)}")


def _query_names(dependant: Any) -> list[str]:
    """Names of the query parameters of a route and of what it depends on."""
    own = [field.alias for field in dependant.query_params]
    return own + [name for one in dependant.dependencies for name in _query_names(one)]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
