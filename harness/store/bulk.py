"""Whole runs from elsewhere: all of a run in one transaction, or nothing of it.

A run that is sent in parts waits in the table `part`, where nothing that reads results looks,
until all of it is there: whatever kills a submission leaves no half run visible.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from opgauge.harness.case.case import Case
from opgauge.harness.errors import StoreError
from opgauge.harness.result.result import Result, to_json
from opgauge.harness.result.submission import Submission
from opgauge.harness.store.store import case_entry, packed_samples, result_values
from opgauge.harness.store.tables import CaseRow, CeilingRow, PartRow, ResultRow, RunRow, SampleRow
from sqlalchemy import Connection, Engine, delete, func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

KEEP_PARTS = timedelta(days=1)
"""Parts of runs that never became whole are dropped after this."""
PART_BYTES = 512 << 20
"""What the parts of all runs on their way in may take in the database."""
CHUNK = 500
KEPT_ENTRIES = 2_000
DEADLOCK = "40P01"
"""What PostgreSQL calls it."""
_TRIES = 5
_UNIQUE = ("case_key", "implementation", "device", "block")
_Answer = TypeVar("_Answer")


class Turns:
    """One writer at a time: waiting here is fair and short, waiting for SQLite's lock is neither."""

    def __init__(self) -> None:
        self._threads = Lock()
        self._file: int | None = None

    def share(self, path: Path) -> None:
        """Take turns with other processes too, by the lock of a file that they all share."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While this lasts, nobody else writes."""
        with self._threads:
            if self._file is None:
                yield
                return
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


TURNS = Turns()


class PartError(StoreError):
    """A part that cannot be kept, for another one of its number is there."""


class FullError(StoreError):
    """No room for more parts."""


@dataclass(frozen=True)
class Part:
    """A part that has come. owner: the token that sent it. digest: SHA-256 of the body."""

    run: str
    number: int
    owner: str
    results: int
    digest: str


def add_run(engine: Engine, run: Submission) -> bool:
    """Enter a run with all its results, at once; False where a run of this id is there already."""
    cases = {id(result.trial.case): result.trial.case for result in run.results}
    entries = {key: _entry(case) for key, case in cases.items()}
    digests = [entries[id(result.trial.case)][0] for result in run.results]
    rows = [result_values(result) for result in run.results]
    written = {entries[key][0]: _case_values(case, *entries[key]) for key, case in cases.items()}
    head = _run_values(run)

    def write(connection: Connection) -> bool:
        if _has_run(connection, run.id):
            return False
        run_key = connection.execute(insert(RunRow).values(head).returning(RunRow.id)).scalar_one()
        ceilings = [{"run_id": run_key, "device": item.device, "data": to_json(item)} for item in run.ceilings]
        if ceilings:
            connection.execute(insert(CeilingRow), ceilings)
        keys = _enter_cases(connection, written)
        whole = [{**row, "run_id": run_key, "case_key": keys[one]} for row, one in zip(rows, digests, strict=True)]
        _enter_results(connection, run_key, whole, run.results)
        connection.execute(delete(PartRow).where(PartRow.run == run.id))
        return True

    return _write(engine, write)


def has_run(engine: Engine, run_id: str) -> bool:
    """Whether a run of this id is there, whole."""
    with engine.connect() as connection:
        return _has_run(connection, run_id)


def add_part(engine: Engine, part: Part, body: bytes) -> bool:
    """Keep a part; False where the same one, or the whole run, is there. Raises PartError, FullError."""

    def write(connection: Connection) -> bool:
        connection.execute(delete(PartRow).where(PartRow.received < datetime.now(UTC) - KEEP_PARTS))
        if _has_run(connection, part.run):
            return False
        here = select(PartRow.digest).where(PartRow.run == part.run, PartRow.number == part.number)
        found = connection.execute(here).scalar()
        if found is not None and found != part.digest:
            msg = f"part {part.number} of run {part.run} is there already, and is another"
            raise PartError(msg)
        if found is not None:
            return False
        taken = connection.execute(select(func.coalesce(func.sum(PartRow.size), 0))).scalar_one()
        if taken + len(body) > PART_BYTES:
            msg = "too many runs are on their way in: try again later"
            raise FullError(msg)
        values = {**vars(part), "received": datetime.now(UTC), "size": len(body), "body": body}
        connection.execute(insert(PartRow).values(values))
        return True

    return _write(engine, write)


def list_parts(engine: Engine, run_id: str) -> list[Part]:
    """The parts of a run that have come, by number."""
    row = PartRow
    query = select(row.run, row.number, row.owner, row.results, row.digest).where(row.run == run_id)
    with engine.connect() as connection:
        return [Part(*found) for found in connection.execute(query.order_by(row.number))]


def part_body(engine: Engine, part: Part) -> bytes:
    """What was sent. Raises PartError where the part is there no more, or another stands in its place."""
    row = PartRow
    query = select(row.body).where(row.run == part.run, row.number == part.number, row.digest == part.digest)
    with engine.connect() as connection:
        found = connection.execute(query).scalar()
    if found is None:
        msg = f"part {part.number} of run {part.run} was dropped meanwhile"
        raise PartError(msg)
    return found


def drop_parts(engine: Engine, run_id: str) -> int:
    """Forget what has come of a run; gives how many parts."""
    return _write(engine, lambda connection: connection.execute(delete(PartRow).where(PartRow.run == run_id)).rowcount)


def _write(engine: Engine, work: Callable[[Connection], _Answer]) -> _Answer:
    """One transaction; done again where another process entered the same case or run meanwhile."""
    for rest in reversed(range(_TRIES)):
        try:
            with TURNS.taken(), engine.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if not rest or not _may_pass(error):
                raise
    msg = "unreachable"
    raise StoreError(msg)


def _may_pass(error: DBAPIError) -> bool:
    """Whether another process was in the way: it entered the same, or each waited for the other's case."""
    return isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) == DEADLOCK


def _has_run(connection: Connection, run_id: str) -> bool:
    return connection.execute(select(RunRow.id).where(RunRow.uuid == run_id)).first() is not None


def _enter_cases(connection: Connection, written: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The keys of cases by digest; those that are new are entered."""
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
    """Rows are entered many at a time, then asked for their keys: asking with each row takes twice as long."""
    if not rows:
        return
    connection.execute(insert(ResultRow), rows)
    query = select(ResultRow.id, *(getattr(ResultRow, name) for name in _UNIQUE)).where(ResultRow.run_id == run_key)
    keys = {tuple(found[1:]): found[0] for found in connection.execute(query)}
    samples = [
        {"result_id": keys[tuple(row[name] for name in _UNIQUE)], **packed_samples(result.measurement)}
        for row, result in zip(rows, results, strict=True)
        if result.measurement is not None
    ]
    if samples:
        connection.execute(insert(SampleRow), samples)


_entries: dict[int, tuple[Case, tuple[str, dict[str, Any]]]] = {}


def _entry(case: Case) -> tuple[str, dict[str, Any]]:
    """As `case_entry`, remembered: reading submissions gives the same cases for run after run."""
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
    }


def _case_values(case: Case, digest: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"case_id": case.id, "digest": digest, "op": case.op, "dtype": case.dtype, "data": data}
