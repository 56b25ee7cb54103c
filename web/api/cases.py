"""`/cases` and `/ops`: which there are, the series of a case, badges."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from opgauge.harness.store import listing
from opgauge.harness.store.listing import Filters
from opgauge.web.api.answer import MOST, CaseId, Limit, Name, Offset, OpName, json_answer, page, problems
from opgauge.web.api.badge import case_badge, op_badge
from opgauge.web.api.models import CaseModel, CasePage, OpPage, PointPage
from opgauge.web.api.records import case_record, point_records
from opgauge.web.deps import ReaderOf
from opgauge.web.unknown import refuse_unknown_values

router = APIRouter(tags=["cases"])
LARGEST = 2**63 - 1
BADGE_S = 300
"""Largest key of a database; seconds that a badge may be cached."""
After = Annotated[int, Query(ge=0, le=LARGEST, description="What `next` said.")]
_SVG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}, "description": "The badge."}
}


@router.get("/ops", response_model=OpPage, responses=problems(422))
def list_ops(reader: ReaderOf, limit: Limit = MOST, offset: Offset = 0) -> Response:
    """Ops of which cases are stored."""
    found = reader.cache.get("api-ops", lambda: listing.count_cases(reader.engine, reader.project))
    return json_answer(page([{"op": op, "cases": count} for op, count in found], limit, offset))


@router.get("/cases", response_model=CasePage, responses=problems(404, 422))
def list_cases(
    reader: ReaderOf, limit: Limit = 100, after: After = 0, op: Name | None = None, dtype: Name | None = None
) -> Response:
    """Cases, each as it was written last. An op or a dtype that no case has is 404."""
    found = listing.page_cases(reader.engine, op=op, dtype=dtype, after=after, limit=limit, project=reader.project)
    if not found:
        refuse_unknown_values(reader, Filters(op=op, dtype=dtype))
    more, found = len(found) > limit, found[:limit]
    return json_answer({"items": [case_record(one) for one in found], "next": found[-1].key if more else None})


@router.get("/cases/{case_id}", response_model=CaseModel, responses=problems(404, 422))
def get_case(reader: ReaderOf, case_id: CaseId) -> Response:
    """One case."""
    found = reader.forms_of(case_id)
    if not found:
        raise HTTPException(404, f"no case {case_id}")
    return json_answer(case_record(found[-1]))


@router.get("/cases/{case_id}/series", response_model=PointPage, responses=problems(404, 422))
def get_series(
    reader: ReaderOf,
    case_id: CaseId,
    limit: Limit = 100,
    offset: Offset = 0,
    implementation: Name | None = None,
    device: Name | None = None,
) -> Response:
    """Results of a case by run, the latest first. Points with the same fingerprint may be compared in time.

    An implementation or a device that no result of any case has is 404.
    """
    if not reader.forms_of(case_id):
        raise HTTPException(404, f"no case {case_id}")
    filters = Filters(None, case_id, implementation=implementation, device=device, project=reader.project)
    found = listing.page_series(reader.engine, filters, limit=limit, offset=offset)
    if not found:
        refuse_unknown_values(reader, filters)
    more, found = len(found) > limit, found[:limit]
    return json_answer({"items": point_records(reader, found), "next": offset + limit if more else None})


@router.get("/cases/{case_id}/badge.svg", responses={**_SVG, **problems(422)}, response_class=Response)
def get_case_badge(reader: ReaderOf, case_id: CaseId, device: Name | None = None) -> Response:
    """Speedup of a case over its baseline in the latest run, as a picture; grey where nothing is known."""
    return _svg(reader.cache.get(("badge", case_id, device), lambda: case_badge(reader, case_id, device)))


@router.get("/ops/{op}/badge.svg", responses={**_SVG, **problems(422)}, response_class=Response)
def get_op_badge(reader: ReaderOf, op: OpName, device: Name | None = None) -> Response:
    """Speedup of an op over its baseline, the mean over cases of the latest run, as a picture."""
    return _svg(reader.cache.get(("badge", op, device), lambda: op_badge(reader, op, device)))


def _svg(picture: str) -> Response:
    headers = {"Cache-Control": f"max-age={BADGE_S}"}
    return Response(picture.encode("utf-8", "replace"), headers=headers, media_type="image/svg+xml")
