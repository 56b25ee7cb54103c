"""Submission of runs: at once, or in parts that stay invisible until all have arrived.

A run has the form that `opgauge export --samples` writes. The same run sent again changes nothing; other content under
its id is refused, except the continuation of a run that was interrupted.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response
from sqlalchemy import Engine

from opgauge.harness.counting import counted
from opgauge.harness.errors import HarnessError
from opgauge.harness.result.submission import FORMAT, STATUSES, Submission, join, parse, read_run_id, read_submission
from opgauge.harness.scope import Scope
from opgauge.harness.store import bulk
from opgauge.harness.store.bulk import Entered, FullError, PartError, SubmissionPart
from opgauge.harness.store.stored_run import OtherRunError
from opgauge.harness.store.tokens import Token
from opgauge.web.api.answer import MOST, Limit, Offset, json_answer, problems
from opgauge.web.api.models import PartPage, SubmittedModel
from opgauge.web.auth import audit, check_project, require
from opgauge.web.body import Body, body_of, unpack
from opgauge.web.database_faults import RETRY
from opgauge.web.deps import StoreOf

router = APIRouter(tags=["submissions"])
PARTS = 1000
RUN_BYTES = 256 << 20
"""Limit of all parts of a run together, unpacked."""
FINISH_BYTES = 72 << 10
SUBMISSIONS = 2
"""Bodies that are parsed at the same time; each may need some hundred megabytes."""
_readers: RunVar[CapacityLimiter] = RunVar("readers")

Submitter = Annotated[Token, Depends(require(Scope.SUBMIT))]
NewRunId = Annotated[
    str,
    Path(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", description="The run's UUID."),
]
Number = Annotated[int, Path(ge=0, lt=PARTS, description="Parts are joined in the order of their numbers.")]
_RUN = {
    "type": "object",
    "required": ["opgauge", "run", "ceilings", "results"],
    "properties": {
        "opgauge": {"const": FORMAT, "description": "Version of the format."},
        "run": {
            "type": "object",
            "required": ["id", "started", "status", "environment"],
            "properties": {
                "id": {"type": "string", "format": "uuid"},
                "started": {"type": "string", "format": "date-time"},
                "finished": {"type": ["string", "null"], "format": "date-time"},
                "status": {"enum": list(STATUSES)},
                "command": {"type": "string"},
                "environment": {"type": "object", "description": "Mappings `hard` and `soft` of texts."},
            },
        },
        "ceilings": {"type": "array", "items": {"type": "object"}},
        "results": {"type": "array", "items": {"type": "object"}},
    },
    "description": "The JSON of `opgauge export --samples`; every field is checked.",
}
_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": _RUN}}}}
_WRITING = problems(400, 401, 403, 408, 409, 413, 415, 422, 429, 503, 507)


_FINISH = {
    "type": "object",
    "required": ["parts"],
    "additionalProperties": False,
    "properties": {
        "parts": {"type": "integer", "minimum": 1, "maximum": PARTS, "description": "Number of parts."},
        "digests": {
            "type": "array",
            "items": {"type": "string"},
            "description": "SHA-256 of each part, unpacked, by number: others are refused with 409.",
        },
    },
}


@router.put(
    "/runs/{run_id}",
    status_code=201,
    response_model=SubmittedModel,
    responses={200: {"model": SubmittedModel, "description": "The same run or part is stored already."}, **_WRITING},
    openapi_extra=_BODY,
)
async def put_run(request: Request, token: Submitter, run_id: NewRunId) -> Response:
    """Send a whole run, plain or gzip. The same run again changes nothing; other content under its id is 409."""
    async with body_of(request) as body:
        return await _apart(lambda: _enter(request, token, run_id, body))


@router.put(
    "/runs/{run_id}/parts/{number}",
    status_code=201,
    response_model=SubmittedModel,
    responses={200: {"model": SubmittedModel, "description": "The same run or part is stored already."}, **_WRITING},
    openapi_extra=_BODY,
)
async def put_part(request: Request, store: StoreOf, token: Submitter, run_id: NewRunId, number: Number) -> Response:
    """Send a part of a run: the same form, with some of the results; invisible until the run is complete."""
    async with body_of(request) as body:
        return await _apart(lambda: _keep(store.engine, token, run_id, number, body))


@router.get("/runs/{run_id}/parts", response_model=PartPage, responses=problems(401, 403, 409, 422, 429))
def list_parts(store: StoreOf, token: Submitter, run_id: NewRunId, limit: Limit = MOST, offset: Offset = 0) -> Response:
    """Parts of a run that have arrived; none once it is complete, 409 while another token sends it."""
    found = bulk.list_parts(store.engine, run_id)
    _check_owner(token, found)
    end = offset + limit
    items = [{"number": one.number, "results": one.results, "digest": one.digest} for one in found[offset:end]]
    return json_answer({"run": run_id, "items": items, "next": end if end < len(found) else None})


@router.post(
    "/runs/{run_id}/finish",
    status_code=201,
    response_model=SubmittedModel,
    responses={200: {"model": SubmittedModel, "description": "The same run or part is stored already."}, **_WRITING},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _FINISH}}}},
)
async def finish_run(request: Request, token: Submitter, run_id: NewRunId) -> Response:
    """Complete a run whose parts have all arrived."""
    # FastAPI would read a body before it checks the token, and without a limit
    async with body_of(request, FINISH_BYTES) as body:
        return await _apart(lambda: _join(request, token, run_id, body))


@router.delete("/runs/{run_id}/parts", status_code=204, responses=problems(401, 403, 409, 422, 429, 503, 507))
def drop_parts(store: StoreOf, token: Submitter, run_id: NewRunId) -> Response:
    """Drop the parts of a run that is not complete."""
    _check_owner(token, bulk.list_parts(store.engine, run_id))
    bulk.drop_parts(store.engine, run_id)
    return Response(status_code=204)


async def _apart(work: Callable[[], Response]) -> Response:
    """Run `work` in a thread, in at most `SUBMISSIONS` at a time."""
    try:
        limiter = _readers.get()
    except LookupError:
        limiter = CapacityLimiter(SUBMISSIONS)
        _readers.set(limiter)
    return await to_thread.run_sync(_explained, work, limiter=limiter)


def _enter(request: Request, token: Token, run_id: str, body: Body) -> Response:
    return _store(request, token, _read(run_id, body.read()))


def _store(request: Request, token: Token, run: Submission) -> Response:
    """Store a run in the name of a token, and say so in the audit log."""
    engine: Engine = request.app.state.store.engine
    check_project(token, run.environment.soft.get("project", ""))
    outcome = bulk.add_run(engine, run, token.name, may_continue=token.scope is Scope.ADMIN)
    if outcome is not Entered.SAME:
        audit(request, token.name, "submit", f"run {run.id}", f"{counted(len(run.results), 'result')}, {outcome}")
    created = outcome is not Entered.SAME
    return _submitted(run.id, len(run.results) if created else 0, created=created)


def _keep(engine: Engine, token: Token, run_id: str, number: int, body: Body) -> Response:
    _check_owner(token, bulk.list_parts(engine, run_id))
    text = body.read()
    run = _read(run_id, text)
    check_project(token, run.environment.soft.get("project", ""))
    if not bulk.accepts_parts(engine, run):
        return _submitted(run_id, 0, created=False)
    part = SubmissionPart(run_id, number, token.name, len(run.results), hashlib.sha256(text).hexdigest())
    return _submitted(run_id, len(run.results), created=bulk.add_part(engine, part, gzip.compress(text, 1)))


def _join(request: Request, token: Token, run_id: str, body: Body) -> Response:
    engine: Engine = request.app.state.store.engine
    wanted, digests = _wanted_parts(body.read())
    try:
        return _store(request, token, join(_whole(engine, token, run_id, wanted, digests)))
    except PartError:
        # another request may have completed the run, and taken the parts, since this one began
        if bulk.list_parts(engine, run_id) or not bulk.has_run(engine, run_id, token.project):
            raise
        return _submitted(run_id, 0, created=False)


def _whole(engine: Engine, token: Token, run_id: str, wanted: int, digests: list[str]) -> list[Submission]:
    """All parts of a run in their order. Raises PartError if they are not those that are wanted."""
    parts = bulk.list_parts(engine, run_id)
    _check_owner(token, parts)
    missing = sorted(set(range(wanted)) - {part.number for part in parts})
    if missing or len(parts) != wanted:
        shown = ", ".join(map(str, missing[:10])) or "none"
        msg = f"{len(parts)} of {wanted} parts have arrived; missing: {shown}"
        raise PartError(msg)
    if digests and digests != [part.digest for part in parts]:
        msg = "parts with other content have arrived: another client sends this run, divided otherwise"
        raise PartError(msg)
    return list(_read_parts(engine, parts))


def _wanted_parts(text: bytes) -> tuple[int, list[str]]:
    """Number of the parts of a run, and their digests where the sender names them."""
    found = parse(text)
    given = found if isinstance(found, dict) and set(found) - {"digests"} == {"parts"} else {}
    wanted, digests = given.get("parts"), given.get("digests", [])
    if type(wanted) is not int or not 1 <= wanted <= PARTS:
        raise HTTPException(422, f'the body should be {{"parts": N}}, N from 1 to {PARTS}')
    if not isinstance(digests, list) or (digests and len(digests) != wanted):
        raise HTTPException(422, "digests should be one SHA-256 for each part")
    return wanted, digests


def _read_parts(engine: Engine, parts: Sequence[SubmissionPart]) -> Iterator[Submission]:
    """Read parts one after the other, so that memory is bounded by the results."""
    size = 0
    for part in parts:
        text = unpack(bulk.part_body(engine, part))
        size += len(text)
        if size > RUN_BYTES:
            raise HTTPException(413, f"the run is larger than {RUN_BYTES >> 20} MiB; drop its parts")
        yield _read(part.run, text)


def _read(run_id: str, body: bytes) -> Submission:
    run = read_submission(parse(body))
    if read_run_id(run_id) != run.id:
        raise HTTPException(422, f"run.id: the address says {run_id}, the body {run.id}")
    return run


def _check_owner(token: Token, parts: list[SubmissionPart]) -> None:
    """409 for parts of another token, whose project is not known; an admin's token of all projects may have them."""
    is_for_all = token.scope is Scope.ADMIN and token.project is None
    if any(part.owner != token.name for part in parts) and not is_for_all:
        raise HTTPException(409, "another token is sending this run")


def _submitted(run_id: str, results: int, *, created: bool) -> Response:
    return json_answer({"id": run_id, "created": created, "results": results}, 201 if created else 200)


def _explained(work: Callable[[], Response]) -> Response:
    """Translate the faults of a submission into one message each."""
    try:
        return work()
    except (PartError, OtherRunError) as error:
        raise HTTPException(409, str(error)) from error
    except FullError as error:
        raise HTTPException(503, str(error), RETRY) from error
    except HarnessError as error:
        raise HTTPException(422, str(error)[:1000]) from error
