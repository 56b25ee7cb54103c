"""`/results`: filtered, of all runs or of one; and one with its raw samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Response

from opgauge.harness.result.result import Status
from opgauge.harness.store import listing
from opgauge.harness.store.listing import Filters
from opgauge.web.api.answer import Limit, Name, RunId, json_answer, problems
from opgauge.web.api.models import ResultPage, WholeResultModel
from opgauge.web.api.records import result_records
from opgauge.web.api.runs import find_run
from opgauge.web.deps import ReaderOf
from opgauge.web.reader import Reader
from opgauge.web.unknown import refuse_unknown_values

router = APIRouter(tags=["results"])
LARGEST = 2**63 - 1
"""Largest key of a database."""
Before = Annotated[int | None, Query(ge=1, le=LARGEST, description="Only results with smaller numbers.")]
Number = Annotated[int, Path(ge=1, le=LARGEST)]
Case = Annotated[str | None, Query(pattern=r"^[0-9a-f]{16}$", description="A case's id.")]


def filters_of(
    case_id: Case = None,
    op: Name | None = None,
    dtype: Name | None = None,
    implementation: Name | None = None,
    device: Name | None = None,
    status: Status | None = None,
) -> Filters:
    """Filters by the query parameters that all lists of results share."""
    return Filters(None, case_id, op, dtype, implementation, device, status)


FiltersOf = Annotated[Filters, Depends(filters_of)]


@router.get("/results", response_model=ResultPage, responses=problems(404, 422))
def list_results(reader: ReaderOf, filters: FiltersOf, limit: Limit = 100, before: Before = None) -> Response:
    """Results of all runs, the latest first. A page may have fewer than `limit`: continue while `next` is a number.

    A filter with a value that no result of any run has is 404, and the answer lists those that there are.
    """
    return json_answer(_page(reader, filters, before, limit))


@router.get("/runs/{run_id}/results", response_model=ResultPage, responses=problems(404, 422))
def list_results_of_run(
    reader: ReaderOf, run_id: RunId, filters: FiltersOf, limit: Limit = 100, before: Before = None
) -> Response:
    """Results of a run, the latest first. A filter with a value that no result of any run has is 404."""
    of_run = replace(filters, run=find_run(reader, run_id).key)
    return json_answer(_page(reader, of_run, before, limit))


@router.get("/results/{number}", response_model=WholeResultModel, responses=problems(404, 422))
def get_result(reader: ReaderOf, number: Number) -> Response:
    """One result with its raw samples."""
    found = listing.find_result(reader.engine, number, project=reader.project)
    records = [] if found is None else result_records(reader, [found])
    if found is None or not records:
        raise HTTPException(404, f"no result {number}")
    samples = listing.first_samples(reader.engine, number)
    return json_answer(records[0] | {"samples_ns": samples, "extra": found.data.get("extra") or {}})


def _page(reader: Reader, filters: Filters, before: int | None, limit: int) -> dict[str, Any]:
    filters = replace(filters, project=reader.project)
    found, rest = listing.page_results(reader.engine, filters, before=before, limit=limit)
    if not found:
        refuse_unknown_values(reader, filters)
    return {"items": result_records(reader, found), "next": rest}
