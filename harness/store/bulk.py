"""Bulk storage of submitted runs, each written in one transaction or not at all.

The parts of a run wait in the table `part`, which no query of results reads, until all have arrived: however a
submission ends, no incomplete run is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, delete, func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from opgauge.harness.case.case import Case
from opgauge.harness.errors import StoreError
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Result
from opgauge.harness.result.submission import Submission
from opgauge.harness.store.result_rows import has_samples, packed_samples, result_values
from opgauge.harness.store.run_columns import run_columns
from opgauge.harness.store.store import case_entry
from opgauge.harness.store.stored_run import OtherRunError, check_continues, is_part, is_same, stored_run
from opgauge.harness.store.tables import CaseRow, CeilingRow, DeletionRow, PartRow, ResultRow, RunRow, SampleRow
from opgauge.harness.store.writer_lock import WRITER, order_numbers

KEEP_PARTS = timedelta(days=1)
"""Age at which parts of a run that was never finished are dropped."""
PART_BYTES = 512 << 20
"""Space in the database for the parts of all runs that are being submitted."""
CHUNK = 500
"""Rows of one insert, and keys in one IN list."""
KEPT_ENTRIES = 2_000
"""Cached entries of cases."""
DEADLOCK = "40P01"
"""SQLSTATE of a deadlock in PostgreSQL."""
_TRIES = 5
_UNIQUE = ("case_key", "implementation", "device", "block")
_Answer = TypeVar("_Answer")


class PartError(StoreError):
    """A part with the number of another part."""


class FullError(StoreError):
    """Too many parts are waiting."""


@dataclass(frozen=True)
class SubmissionPart:
    """A part that has arrived. owner: name of the token that sent it. digest: SHA-256 of the body."""

    run: str
    number: int
    owner: str
    results: int
    digest: str


class Entered(StrEnum):
    """Outcome of a submission."""

    CREATED = "created"
    SAME = "same"
    CONTINUED = "continued"


def add_run(engine: Engine, run: Submission, submitter: str = "", *, may_continue: bool = True) -> Entered:
    """Store a run with all its results.

    Sending the same run again changes nothing. A run that was interrupted when it was stored is replaced by its
    continuation if `may_continue`, or if the same submitter sends it. Raises OtherRunError for any other content
    under a known id.
    """
    cases = {id(result.trial.case): result.trial.case for result in run.results}
    entries = {key: _entry(case) for key, case in cases.items()}
    digests = [entries[id(result.trial.case)][0] for result in run.results]
    rows = [result_values(result) for result in run.results]
    written = {entries[key][0]: _case_values(case, *entries[key]) for key, case in cases.items()}
    head = _run_values(run) | {"submitter": submitter}

    def write(connection: Connection) -> Entered:
        stored = stored_run(connection, run.id)
        outcome = Entered.CREATED
        if stored is not None:
            if is_same(connection, stored, run):
                connection.execute(delete(PartRow).where(PartRow.run == run.id))
                return Entered.SAME
            check_continues(connection, stored, run, may_continue=may_continue or stored.submitter in {"", submitter})
            connection.execute(delete(RunRow).where(RunRow.id == stored.id))
            connection.execute(insert(DeletionRow).values(created=datetime.now(UTC), run=run.id))
            outcome = Entered.CONTINUED
        run_key = connection.execute(insert(RunRow).values(head).returning(RunRow.id)).scalar_one()
        ceilings = [{"run_id": run_key, "device": item.device, "data": to_json(item)} for item in run.ceilings]
        if ceilings:
            connection.execute(insert(CeilingRow), ceilings)
        keys = _enter_cases(connection, written)
        whole = [{**row, "run_id": run_key, "case_key": keys[one]} for row, one in zip(rows, digests, strict=True)]
        _enter_results(connection, run_key, whole, run.results)
        connection.execute(delete(PartRow).where(PartRow.run == run.id))
        return outcome

    return _write(engine, write)


def has_run(engine: Engine, run_id: str, project: str | None = None) -> bool:
    """Whether a run of this id is stored, in a project if one is given."""
    with engine.connect() as connection:
        stored = stored_run(connection, run_id)
        return stored is not None and project in {None, stored.project}


def accepts_parts(engine: Engine, part: Submission) -> bool:
    """Whether parts of a run are accepted: it is not stored, or was interrupted and may be continued.

    Raises OtherRunError if the run is stored, complete, and `part` does not belong to it.
    """
    with engine.connect() as connection:
        stored = stored_run(connection, part.id)
        if stored is None or stored.status == "interrupted":
            return True
        if not is_part(connection, stored, part):
            msg = f"run {part.id} is stored with other content"
            raise OtherRunError(msg)
    return False


def add_part(engine: Engine, part: SubmissionPart, body: bytes) -> bool:
    """Store a part; False if it, or meanwhile its whole run, is stored already. Raises PartError, FullError."""

    def write(connection: Connection) -> bool:
        connection.execute(delete(PartRow).where(PartRow.received < datetime.now(UTC) - KEEP_PARTS))
        stored = stored_run(connection, part.run)
        if stored is not None and stored.status != "interrupted":
            return False
        here = select(PartRow.digest).where(PartRow.run == part.run, PartRow.number == part.number)
        found = connection.execute(here).scalar()
        if found is not None and found != part.digest:
            msg = f"part {part.number} of run {part.run} is stored with other content"
            raise PartError(msg)
        if found is not None:
            return False
        taken = connection.execute(select(func.coalesce(func.sum(PartRow.size), 0))).scalar_one()
        if taken + len(body) > PART_BYTES:
            msg = "too many runs are being submitted: try again later"
            raise FullError(msg)
        values = {**vars(part), "received": datetime.now(UTC), "size": len(body), "body": body}
        connection.execute(insert(PartRow).values(values))
        return True

    return _write(engine, write)


def list_parts(engine: Engine, run_id: str) -> list[SubmissionPart]:
    """Parts of a run that have arrived, by number."""
    row = PartRow
    query = select(row.run, row.number, row.owner, row.results, row.digest).where(row.run == run_id)
    with engine.connect() as connection:
        return [SubmissionPart(*found) for found in connection.execute(query.order_by(row.number))]


def part_body(engine: Engine, part: SubmissionPart) -> bytes:
    """Body of a part as it was sent. Raises PartError if it was dropped or replaced."""
    row = PartRow
    query = select(row.body).where(row.run == part.run, row.number == part.number, row.digest == part.digest)
    with engine.connect() as connection:
        found = connection.execute(query).scalar()
    if found is None:
        msg = f"part {part.number} of run {part.run} was dropped meanwhile"
        raise PartError(msg)
    return found


def drop_parts(engine: Engine, run_id: str) -> int:
    """Drop the parts of a run; returns how many."""
    return _write(engine, lambda connection: connection.execute(delete(PartRow).where(PartRow.run == run_id)).rowcount)


def _write(engine: Engine, work: Callable[[Connection], _Answer]) -> _Answer:
    """Run `work` in one transaction, and again if another process stored the same case or run meanwhile."""
    for rest in reversed(range(_TRIES)):
        try:
            with WRITER.taken(), engine.begin() as connection:
                order_numbers(connection)
                return work(connection)
        except DBAPIError as error:
            if not rest or not _may_pass(error):
                raise
    msg = "unreachable"
    raise StoreError(msg)


def _may_pass(error: DBAPIError) -> bool:
    """Whether the error is due to another process: it stored the same row, or both deadlocked."""
    return isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) == DEADLOCK


def _enter_cases(connection: Connection, written: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Keys of cases by digest; new cases are inserted."""
    digests = list(written)
    keys: dict[str, int] = {}
    for start in range(0, len(digests), CHUNK):
        query = select(CaseRow.digest, CaseRow.id).where(CaseRow.digest.in_(digests[start : start + CHUNK]))
        keys.update((digest, key) for digest, key in connection.execute(query))
    for digest in digests:
        if digest not in keys:
            keys[digest] = connection.execute(
                insert(CaseRow).values(written[digest]).returning(CaseRow.id)
            ).scalar_one()
    return keys


def _enter_results(
    connection: Connection, run_key: int, rows: Sequence[dict[str, Any]], results: Sequence[Result]
) -> None:
    """Insert rows in bulk, then query their keys, in half the time of one insert per row."""
    if not rows:
        return
    connection.execute(insert(ResultRow), rows)
    query = select(ResultRow.id, *(getattr(ResultRow, name) for name in _UNIQUE)).where(ResultRow.run_id == run_key)
    keys = {tuple(found[1:]): found[0] for found in connection.execute(query)}
    samples = [
        {"result_id": keys[tuple(row[name] for name in _UNIQUE)], **packed_samples(result.measurement)}
        for row, result in zip(rows, results, strict=True)
        if result.measurement is not None and has_samples(result)
    ]
    if samples:
        connection.execute(insert(SampleRow), samples)


_entries: dict[int, tuple[Case, tuple[str, dict[str, Any]]]] = {}


def _entry(case: Case) -> tuple[str, dict[str, Any]]:
    """Cached `case_entry`: submissions have the same cases run after run."""
    known = _entries.get(id(case))
    if known is None or known[0] is not case:
        if len(_entries) >= KEPT_ENTRIES:
            _entries.clear()
        known = _entries[id(case)] = (case, case_entry(case))
    return known[1]


def _run_values(run: Submission) -> dict[str, Any]:
    return {
        "uuid": run.id,
        "started": run.started,
        "finished": run.finished,
        "status": run.status,
        "commit": run.environment.commit,
        "command": run.command,
        "environment": to_json(run.environment),
        "digest": run.digest if run.head_digest else None,
        "seen": run.finished or run.started,
        **run_columns(run.environment),
    }


def _case_values(case: Case, digest: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"case_id": case.id, "digest": digest, "op": case.op, "dtype": case.dtype, "data": data}
