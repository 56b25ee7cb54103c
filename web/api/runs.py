"""`/runs`: which there are, and one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BeforeValidator

from opgauge.harness.result.record_json import to_json
from opgauge.harness.store import queries, run_queries
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.api.answer import Limit, Name, Offset, RunId, json_answer, problems
from opgauge.web.api.models import RunPage, WholeRunModel
from opgauge.web.api.records import run_record
from opgauge.web.deps import ReaderOf
from opgauge.web.known_runs import find_runs
from opgauge.web.reader import Reader

router = APIRouter(tags=["runs"])
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def _no_number(value: str) -> str:
    """A number would be taken for seconds since 1970."""
    if not _DAY.match(value):
        msg = "should be a moment as 2026-01-31T12:00:00Z"
        raise ValueError(msg)
    return value


Moment = Annotated[datetime, BeforeValidator(_no_number)]


@router.get("/runs", response_model=RunPage, responses=problems(404, 422))
def list_runs(
    reader: ReaderOf,
    limit: Limit = 50,
    offset: Offset = 0,
    status: Literal["running", "finished", "interrupted", "imported"] | None = None,
    project: Name | None = None,
    commit: Annotated[Name | None, Query(description="The beginning of a commit.")] = None,
    before: Annotated[
        Moment | None, Query(description="Only runs that started before this; UTC where no zone is given.")
    ] = None,
) -> Response:
    """Runs, newest first."""
    until = None if before is None else _in_utc(before)
    is_outside = reader.project not in {None, project}
    if project is not None and (is_outside or not reader.of_project(project).is_there()):
        raise HTTPException(404, f"there is no project {project}" + (f" below {reader.project}" if is_outside else ""))
    found = run_queries.list_runs(
        reader.engine,
        limit=limit + 1,
        offset=offset,
        status=status,
        commit=commit,
        before=until,
        project=reader.project if project is None else project,
    )
    more, found = len(found) > limit, found[:limit]
    counts = queries.count_statuses(reader.engine, [run.key for run in found])
    items = [run_record(run, counts[run.key]) for run in found]
    return json_answer({"items": items, "next": offset + limit if more else None})


@router.get("/runs/{run_id}", response_model=WholeRunModel, responses=problems(404, 422))
def get_run(reader: ReaderOf, run_id: RunId) -> Response:
    """One run, and what its devices reached. A part of the id will do where it is the beginning of one run only."""
    run = find_run(reader, run_id)
    counts = queries.count_statuses(reader.engine, [run.key])[run.key]
    ceilings = queries.list_ceilings(reader.engine, [run.key])[run.key]
    return json_answer(run_record(run, counts) | {"ceilings": [to_json(one) for one in ceilings.values()]})


def _in_utc(when: datetime) -> datetime:
    try:
        return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    except OverflowError as error:
        raise HTTPException(422, f"before: {when} is out of range") from error


def find_run(reader: Reader, run_id: str) -> RunInfo:
    """The run that is meant; 404 where there is none, or several."""
    found = find_runs(reader, run_id)
    if len(found) > 1:
        raise HTTPException(404, f"several runs begin with {run_id}")
    if not found:
        raise HTTPException(404, f"no run {run_id}")
    return found[0]
