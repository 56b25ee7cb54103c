"""The store: begin a run, add its results, read them back as plain values.

Only the process that planned a run writes it. Each result is committed when it is added, so that finished results
survive however the process ends.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import unquote

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from opgauge.harness.case.case import Case
from opgauge.harness.case.casejson import case_to_json, read_stored_case
from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.figures import check_ceilings, check_measured
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Environment, Profile, Result, Status, Trial
from opgauge.harness.run.runner import Finished
from opgauge.harness.store.abandoned import mark_abandoned, with_process, without_process
from opgauge.harness.store.engine import explained, make_engine, reading
from opgauge.harness.store.result_rows import SAMPLES, has_samples, packed_samples, result_of, result_values, unpack
from opgauge.harness.store.run_columns import run_columns
from opgauge.harness.store.schema import prepare, upgrade
from opgauge.harness.store.tables import CaseRow, CeilingRow, ResultRow, RunRow, SampleRow
from opgauge.harness.store.writer_lock import order_numbers

LATEST = "last"
"""Name of the latest run."""
LEAST_ID = 4
"""Characters from which the beginning of an id is enough: `1` is more likely a mistake than the only such run."""
RETRIED = (str(Status.TIMEOUT), str(Status.OUT_OF_MEMORY))
"""Statuses that a resumed run measures again: they may be due to the machine at that moment."""


@dataclass(frozen=True)
class Run:
    """A run without its results. status: running, finished, interrupted or imported. results: their number."""

    id: str
    started: datetime
    finished: datetime | None
    status: str
    commit: str
    command: str
    environment: Environment
    results: int


class Store:
    """A database of runs; `Store.open` opens one, to be used in a `with` statement."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cases: dict[str, int] = {}
        self._runs: dict[str, int] = {}

    @classmethod
    def open(cls, url: str, *, migrate: bool = False) -> Self:
        """Open `url`; an empty database gets its schema, an older one only with `migrate`.

        A SQLite file that is not writable is opened for reading. Raises StoreError, which names the fault.
        """
        with explained(url):
            engine = make_engine(url)
            (upgrade if migrate else prepare)(engine)
            mark_abandoned(engine)
            return cls(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        """Connection pool, for queries of harness.store and the service."""
        return self._engine

    @property
    def reading(self) -> Engine:
        """The same connections, for queries that write nothing."""
        return reading(self._engine)

    @property
    def url(self) -> str:
        """URL of the database, without the password."""
        return self._engine.url.render_as_string(hide_password=True)

    @property
    def place(self) -> str:
        """The file of the database as messages name it, or the URL of a server's."""
        url = self._engine.url
        if url.get_backend_name() != "sqlite" or not url.database:
            return self.url
        return unquote(url.database.removeprefix("file:")) if "uri" in url.query else url.database

    def begin_run(self, environment: Environment, *, command: str = "", run_id: str | None = None) -> str:
        """Add a run; returns its id, a UUID. Raises StoreError if `run_id` is taken."""
        now = datetime.now(UTC)
        row = RunRow(
            uuid=run_id or str(uuid.uuid4()),
            started=now,
            seen=now,
            status="running",
            commit=environment.commit,
            command=command,
            environment=with_process(to_json(environment)),
            **run_columns(environment),
        )
        with Session(self._engine) as session, session.begin():
            taken = session.scalar(select(RunRow.id).where(RunRow.uuid == row.uuid))
            if taken is not None:
                msg = f"run {row.uuid} is stored already"
                raise StoreError(msg)
            session.add(row)
            session.flush()
            self._runs[row.uuid] = row.id
            return row.uuid

    def resume_run(self, run: str, host: str) -> None:
        """Resume a run on `host`: its environment names every host that it ran on."""
        with Session(self._engine) as session, session.begin():
            row = session.get_one(RunRow, self._key(run))
            begun = from_json(Environment, row.environment)
            hosts = dict.fromkeys((*begun.soft.get("host", "").split(", "), host))
            soft = {**begun.soft, "host": ", ".join(filter(None, hosts))}
            row.environment = with_process(to_json(replace(begun, soft=soft)))
            row.status, row.seen = "running", datetime.now(UTC)

    def finish_run(self, run: str, status: str = "finished") -> None:
        """Record how a run ended."""
        with Session(self._engine) as session, session.begin():
            row = session.get_one(RunRow, self._key(run))
            row.status = status
            row.environment = without_process(row.environment)
            row.seen = datetime.now(UTC)
            row.finished = max(row.seen, row.started)  # the clock may have been set back since

    def add_ceilings(self, run: str, ceilings: Ceilings) -> None:
        """Store the achieved peaks of a device; a later measurement of the same run replaces them.

        Raises SubmissionError for impossible ones.
        """
        check_ceilings([ceilings])
        with Session(self._engine) as session, session.begin():
            key = self._key(run)
            found = session.scalar(
                select(CeilingRow).where(CeilingRow.run_id == key, CeilingRow.device == ceilings.device)
            )
            if found is None:
                session.add(CeilingRow(run_id=key, device=ceilings.device, data=to_json(ceilings)))
            else:
                found.data = to_json(ceilings)

    def add_result(self, run: str, result: Result) -> None:
        """Store one result, committed at once; one of the same trial and process is replaced.

        Raises SubmissionError for figures that no measurement can give, such as NaN or a time below 0.
        """
        check_measured(result)
        trial = result.trial
        with Session(self._engine) as session, session.begin():
            order_numbers(session.connection())
            key = self._key(run)
            session.execute(update(RunRow).where(RunRow.id == key).values(seen=datetime.now(UTC)))
            case_key = self._case_key(session, trial.case)
            same = session.scalar(
                select(ResultRow).where(
                    ResultRow.run_id == key,
                    ResultRow.case_key == case_key,
                    ResultRow.implementation == trial.implementation,
                    ResultRow.device == trial.device,
                    ResultRow.block == result.block,
                )
            )
            if same is not None:
                session.delete(same)
                session.flush()
            row = ResultRow(run_id=key, case_key=case_key, **result_values(result))
            session.add(row)
            session.flush()
            if result.measurement is not None and has_samples(result):
                session.add(SampleRow(result_id=row.id, **packed_samples(result.measurement)))

    def add_profile(self, run: str, trial: Trial, profile: Profile) -> None:
        """Store the kernel list of a trial with its results of every process."""
        with Session(self._engine) as session, session.begin():
            found = session.scalars(
                select(ResultRow).where(
                    ResultRow.run_id == self._key(run),
                    ResultRow.case_key == self._case_key(session, trial.case),
                    ResultRow.implementation == trial.implementation,
                    ResultRow.device == trial.device,
                )
            )
            for row in found:
                row.data = {**row.data, "profile": to_json(profile)}

    def runs(self, limit: int = 50) -> list[Run]:
        """The latest runs, newest first."""
        query = select(RunRow).order_by(RunRow.started.desc(), RunRow.id.desc()).limit(limit)
        count = select(ResultRow.run_id, func.count()).group_by(ResultRow.run_id)
        with Session(self._engine) as session:
            found = session.scalars(query).all()
            chosen = count.where(ResultRow.run_id.in_(query.with_only_columns(RunRow.id)))
            counts: dict[int, int] = {row[0]: row[1] for row in session.execute(chosen)}
            return [_run(row, counts.get(row.id, 0)) for row in found]

    def find_run(self, name: str | None = None) -> Run:
        """The run with an id that begins so; if None or `last`, the latest with results. Raises NothingError."""
        name = None if name == LATEST else name
        query = select(RunRow).order_by(RunRow.started.desc(), RunRow.id.desc())
        if name is not None:
            is_short = len(name) < LEAST_ID
            query = query.where(RunRow.uuid == name if is_short else RunRow.uuid.startswith(name, autoescape=True))
        else:
            query = query.where(RunRow.id.in_(select(ResultRow.run_id)))
        with Session(self._engine) as session:
            found = session.scalars(query.limit(2)).all()
            if not found:
                wanted = f"no run {name}" if name else "no run yet"
                msg = f"{wanted} in {self.place}; measure one with: opgauge run"
                raise NothingError(msg)
            if name is not None and len(found) > 1:
                msg = f"several runs begin with {name}: {found[0].uuid}, {found[1].uuid}, …"
                raise NothingError(msg)
            count = session.scalar(select(func.count()).where(ResultRow.run_id == found[0].id)) or 0
            return _run(found[0], count)

    def ceilings(self, run: str) -> dict[str, Ceilings]:
        """Achieved peaks of a run, by device."""
        with Session(self._engine) as session:
            rows = session.scalars(select(CeilingRow).where(CeilingRow.run_id == self._key(run)))
            return {row.device: from_json(Ceilings, row.data) for row in rows}

    def results(self, run: str, *, samples: bool = False) -> list[Result]:
        """The results of a run in the order in which they were added.

        Without `samples` a measurement has its median as its only sample: lists never load the rest.
        """
        query = (
            select(ResultRow, CaseRow)
            .join(CaseRow, CaseRow.id == ResultRow.case_key)
            .where(ResultRow.run_id == self._key(run))
            .order_by(ResultRow.id)
        )
        with Session(self._engine) as session:
            found = session.execute(query).all()
            raw = self._samples(session, run) if samples else {}
        cases: dict[int, Case] = {}
        for _, case in found:
            if case.id not in cases:
                cases[case.id] = read_stored_case(case.data)
        return [result_of(row, cases[case.id], raw.get(row.id)) for row, case in found]

    def finished_trials(self, run: str) -> set[Finished]:
        """Trials that a resumed run skips: those with a result, unless killed or timed out."""
        query = (
            select(CaseRow.case_id, ResultRow.implementation, ResultRow.device)
            .join(CaseRow, CaseRow.id == ResultRow.case_key)
            .where(ResultRow.run_id == self._key(run), ResultRow.status.not_in(RETRIED))
        )
        with Session(self._engine) as session:
            return {(case_id, implementation, device) for case_id, implementation, device in session.execute(query)}

    def _samples(self, session: Session, run: str) -> dict[int, dict[str, tuple[float, ...]]]:
        query = (
            select(SampleRow)
            .join(ResultRow, ResultRow.id == SampleRow.result_id)
            .where(ResultRow.run_id == self._key(run))
        )
        return {row.result_id: {name: unpack(getattr(row, name)) for name in SAMPLES} for row in session.scalars(query)}

    def _key(self, run: str) -> int:
        if run not in self._runs:
            with Session(self._engine) as session:
                found = session.scalar(select(RunRow.id).where(RunRow.uuid == run))
            if found is None:
                msg = f"no run {run} in {self.place}"
                raise NothingError(msg)
            self._runs[run] = found
        return self._runs[run]

    def _case_key(self, session: Session, case: Case) -> int:
        digest, data = case_entry(case)
        if digest not in self._cases:
            found = session.scalar(select(CaseRow.id).where(CaseRow.digest == digest))
            if found is None:
                row = CaseRow(case_id=case.id, digest=digest, op=case.op, dtype=case.dtype, data=data)
                session.add(row)
                session.flush()
                found = row.id
            self._cases[digest] = found
        return self._cases[digest]


def case_entry(case: Case) -> tuple[str, dict[str, Any]]:
    """Digest of a case with its names and notes, and its JSON."""
    data = case_to_json(case)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest(), data


def _run(row: RunRow, results: int) -> Run:
    environment = from_json(Environment, row.environment)
    return Run(row.uuid, row.started, row.finished, row.status, row.commit, row.command, environment, results)
