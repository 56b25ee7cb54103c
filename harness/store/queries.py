"""What pages and routes ask of the store: selects of plain columns, limited, and none per row.

Lists leave the raw samples and, but for a few that say so, the JSON of a result where they are: a run
of 500 results is read in a few milliseconds. Cases come as they were stored, not as `Case`
values, so that one of an op that this version does not know can be shown.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine, func, insert
from sqlalchemy import select as typed_select

from harness.result.result import Ceilings, Environment, from_json
from harness.store.tables import AcknowledgementRow, CaseRow, CeilingRow, ResultRow, RunRow, SampleRow, SelfTestRow

CHUNK = 500
"""Keys in one IN list."""
RUNS = 2000
"""Runs in an index of runs."""
UUID_LENGTH = 36


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run without its results. key: its number in this database; id: its UUID."""

    key: int
    id: str
    started: datetime
    finished: datetime | None
    status: str
    commit: str
    command: str
    environment: Environment

    @property
    def branch(self) -> str:
        """Branch of the measured tree; empty when unknown."""
        return self.environment.soft.get("branch", "")


@dataclass(frozen=True, slots=True)
class CaseInfo:
    """A case as it was stored; `data` is what `harness.case.casejson` wrote."""

    key: int
    case_id: str
    op: str
    dtype: str
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name, the id where it has none."""
        return str(self.data.get("name") or self.case_id)


@dataclass(frozen=True, slots=True)
class Point:
    """One result without its JSON."""

    key: int
    run_key: int
    case_key: int
    implementation: str
    backend: str
    device: str
    block: int
    status: str
    median_ns: float | None
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Detail:
    """One result with its JSON: check, measurement without samples, quantiles, extra."""

    point: Point
    reason: str
    data: Mapping[str, Any]


class Past(NamedTuple):
    """One result in the history of a case. low_ns, high_ns: quartiles of its samples."""

    run_key: int
    implementation: str
    status: str
    median_ns: float | None
    low_ns: float | None
    high_ns: float | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody answers for a regression until a day."""

    case_id: str
    implementation: str
    device: str
    verdict: str
    owner: str
    reason: str
    until: date
    expected_ratio: float | None
    created: datetime


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What a self-test of the gate found."""

    kind: str
    created: datetime
    commit: str
    device: str
    data: Mapping[str, Any]


_RUN: tuple[Any, ...] = (
    RunRow.id,
    RunRow.uuid,
    RunRow.started,
    RunRow.finished,
    RunRow.status,
    RunRow.commit,
    RunRow.command,
    RunRow.environment,
)
_POINT: tuple[Any, ...] = (
    ResultRow.id,
    ResultRow.run_id,
    ResultRow.case_key,
    ResultRow.implementation,
    ResultRow.backend,
    ResultRow.device,
    ResultRow.block,
    ResultRow.status,
    ResultRow.median_ns,
    ResultRow.bytes,
    ResultRow.flops,
)


def select(*columns: Any) -> Any:
    """A select whose rows are of any type: their columns are named where they are read."""
    return typed_select(*columns)


def data_version(engine: Engine) -> tuple[int | None, ...]:
    """Something that changes whenever runs, results, acknowledgements or self-tests come or end."""
    running = select(func.count()).where(RunRow.status == "running").scalar_subquery()
    keys = (RunRow.id, ResultRow.id, AcknowledgementRow.id, SelfTestRow.id)
    parts = [select(func.max(key)).scalar_subquery() for key in keys]
    with engine.connect() as connection:
        return tuple(connection.execute(select(running, *parts)).one())


def list_runs(
    engine: Engine,
    *,
    limit: int = RUNS,
    offset: int = 0,
    status: str | None = None,
    commit: str | None = None,
    before: datetime | None = None,
    keys: Collection[int] | None = None,
) -> list[RunInfo]:
    """Runs, newest first; `commit` is the beginning of one, `keys` keeps those with such a number."""
    query = select(*_RUN).order_by(RunRow.started.desc(), RunRow.id.desc()).limit(limit).offset(offset)
    query = _chosen(query, status, commit)
    if before is not None:
        query = query.where(RunRow.started < before)
    if keys is not None:
        query = query.where(RunRow.id.in_(keys))
    with engine.connect() as connection:
        return [_run(row) for row in connection.execute(query).all()]


def count_runs(engine: Engine, *, status: str | None = None, commit: str | None = None) -> int:
    """How many there are."""
    with engine.connect() as connection:
        return int(connection.execute(_chosen(select(func.count(RunRow.id)), status, commit)).scalar_one())


def find_runs(engine: Engine, beginning: str, limit: int = 2) -> list[RunInfo]:
    """Runs whose id begins so."""
    # no index leads to a beginning: whole ids, which pages and machines ask for, need not wait for that
    is_whole = len(beginning) == UUID_LENGTH
    same = RunRow.uuid == beginning if is_whole else RunRow.uuid.startswith(beginning, autoescape=True)
    query = select(*_RUN).where(same).limit(limit)
    with engine.connect() as connection:
        return [_run(row) for row in connection.execute(query).all()]


def count_statuses(engine: Engine, run_keys: Collection[int]) -> dict[int, dict[str, int]]:
    """Results by status, of each run."""
    found: dict[int, dict[str, int]] = {key: {} for key in run_keys}
    with engine.connect() as connection:
        for keys in _chunks(run_keys):
            query = select(ResultRow.run_id, ResultRow.status, func.count()).where(ResultRow.run_id.in_(keys))
            for run_key, status, count in connection.execute(query.group_by(ResultRow.run_id, ResultRow.status)).all():
                found[run_key][status] = count
    return found


def count_results(engine: Engine, run_keys: Collection[int]) -> dict[int, tuple[int, int]]:
    """How many results each run has, and the number of its last: both change when results come."""
    found = {}
    with engine.connect() as connection:
        for keys in _chunks(run_keys):
            query = select(ResultRow.run_id, func.count(), func.max(ResultRow.id)).where(ResultRow.run_id.in_(keys))
            for run_key, count, last in connection.execute(query.group_by(ResultRow.run_id)).all():
                found[run_key] = (count, last)
    return found


def list_points(engine: Engine, run_key: int, case_keys: Collection[int] | None = None) -> list[Point]:
    """The results of a run, in order; of some cases only where given."""
    query = select(*_POINT).where(ResultRow.run_id == run_key).order_by(ResultRow.id)
    if case_keys is not None:
        query = query.where(ResultRow.case_key.in_(case_keys))
    with engine.connect() as connection:
        return [Point(*row) for row in connection.execute(query).all()]


def list_case_keys(engine: Engine, run_key: int, op: str) -> list[int]:
    """The cases of an op that a run has results of, by number."""
    of_op = select(CaseRow.id).where(CaseRow.op == op)
    query = select(ResultRow.case_key).where(ResultRow.run_id == run_key, ResultRow.case_key.in_(of_op)).distinct()
    with engine.connect() as connection:
        return list(connection.execute(query).scalars())


def list_details(
    engine: Engine,
    run_key: int,
    *,
    case_keys: Collection[int] | None = None,
    statuses: Collection[str] | None = None,
    limit: int = 2000,
    offset: int = 0,
) -> list[Detail]:
    """Results of a run with their JSON, those of some cases or of some statuses only."""
    query = select(*_POINT, ResultRow.reason, ResultRow.data).where(ResultRow.run_id == run_key)
    if case_keys is not None:
        query = query.where(ResultRow.case_key.in_(list(case_keys)[:limit]))
    if statuses is not None:
        query = query.where(ResultRow.status.in_(statuses))
    query = query.order_by(ResultRow.id).limit(limit).offset(offset)
    with engine.connect() as connection:
        return [Detail(Point(*row[:-2]), row[-2], row[-1]) for row in connection.execute(query).all()]


def list_places(engine: Engine, after: int = 0) -> tuple[Sequence[tuple[int, str, int]], int]:
    """Case, device and run of the results with numbers above `after`, each once, and the last number of all."""
    query = select(ResultRow.case_key, ResultRow.device, ResultRow.run_id).distinct()
    with engine.connect() as connection:
        last = connection.execute(select(func.max(ResultRow.id))).scalar() or 0
        # an index has all of them in order: it is not left for numbers that all are above
        chosen = query.where(ResultRow.id > after, ResultRow.id <= last) if after else query
        return connection.execute(chosen).all(), last


def list_history(
    engine: Engine, case_keys: Collection[int], run_keys: Collection[int], device: str, limit: int = 6000
) -> list[Past]:
    """The results of a case in some runs on one device, by run and in order."""
    quartiles = [ResultRow.data[("quantiles_ns", place)].as_float() for place in (1, 2)]
    columns = (ResultRow.run_id, ResultRow.implementation, ResultRow.status, ResultRow.median_ns, *quartiles)
    found: list[Past] = []
    with engine.connect() as connection:
        for keys in _chunks(run_keys):
            query = (
                select(*columns)
                .where(ResultRow.case_key.in_(list(case_keys)[:CHUNK]), ResultRow.run_id.in_(keys))
                .where(ResultRow.device == device)
                .order_by(ResultRow.run_id, ResultRow.id)
                .limit(limit - len(found))
            )
            found += [Past(*row) for row in connection.execute(query).all()]
    return found


def load_samples(engine: Engine, result_keys: Collection[int], limit: int = 64) -> dict[int, list[float]]:
    """Raw samples of a few results, in nanoseconds and in order."""
    query = select(SampleRow.result_id, SampleRow.samples_ns).where(SampleRow.result_id.in_(list(result_keys)[:limit]))
    with engine.connect() as connection:
        return {key: _unpack(packed) for key, packed in connection.execute(query)}


def list_ceilings(engine: Engine, run_keys: Collection[int]) -> dict[int, dict[str, Ceilings]]:
    """What devices reached, by run and device."""
    found: dict[int, dict[str, Ceilings]] = {key: {} for key in run_keys}
    with engine.connect() as connection:
        for keys in _chunks(run_keys):
            query = select(CeilingRow.run_id, CeilingRow.device, CeilingRow.data).where(CeilingRow.run_id.in_(keys))
            for run_key, device, data in connection.execute(query).all():
                found[run_key][device] = from_json(Ceilings, data)
    return found


def load_cases(engine: Engine, keys: Collection[int]) -> dict[int, CaseInfo]:
    """Cases by their number."""
    found = {}
    with engine.connect() as connection:
        for some in _chunks(keys):
            for row in connection.execute(_cases().where(CaseRow.id.in_(some))).all():
                found[row[0]] = CaseInfo(*row)
    return found


def find_case(engine: Engine, case_id: str) -> list[CaseInfo]:
    """Every way in which a case was written, the latest last; empty for none."""
    query = _cases().where(CaseRow.case_id == case_id).order_by(CaseRow.id).limit(CHUNK)
    with engine.connect() as connection:
        return [CaseInfo(*row) for row in connection.execute(query).all()]


def list_series(engine: Engine, case_keys: Collection[int], run_keys: Collection[int]) -> list[Point]:
    """The times of some cases in some runs, on every device and of every block, without any JSON."""
    found: list[Point] = []
    with engine.connect() as connection:
        for keys in _chunks(run_keys):
            for cases in _chunks(case_keys):
                query = select(*_POINT).where(ResultRow.case_key.in_(cases), ResultRow.run_id.in_(keys))
                query = query.where(ResultRow.median_ns.is_not(None)).order_by(ResultRow.run_id, ResultRow.id)
                found += [Point(*row) for row in connection.execute(query).all()]
    return found


def list_cases(engine: Engine) -> list[CaseInfo]:
    """Every way in which a case was written, in order of coming."""
    with engine.connect() as connection:
        return [CaseInfo(*row) for row in connection.execute(_cases().order_by(CaseRow.id))]


def list_acknowledgements(engine: Engine, limit: int = 1000) -> list[Acknowledgement]:
    """The latest, newest first."""
    row = AcknowledgementRow
    query = select(
        row.case_id,
        row.implementation,
        row.device,
        row.verdict,
        row.owner,
        row.reason,
        row.until,
        row.expected_ratio,
        row.created,
    )
    with engine.connect() as connection:
        return [Acknowledgement(*one) for one in connection.execute(query.order_by(row.id.desc()).limit(limit))]


def add_acknowledgement(engine: Engine, given: Acknowledgement) -> None:
    """Keep it."""
    values = {name: getattr(given, name) for name in Acknowledgement.__slots__}
    with engine.begin() as connection:
        connection.execute(insert(AcknowledgementRow).values(values))


def list_self_tests(engine: Engine, kind: str, limit: int = 20) -> list[SelfTest]:
    """The latest of a kind (aa, inject, agree), newest first."""
    row = SelfTestRow
    query = select(row.kind, row.created, row.commit, row.device, row.data).where(row.kind == kind)
    with engine.connect() as connection:
        found = connection.execute(query.order_by(row.created.desc(), row.id.desc()).limit(limit))
        return [SelfTest(one[0], _utc(one[1]), *one[2:]) for one in found]


def add_self_test(engine: Engine, given: SelfTest) -> None:
    """Keep it."""
    values = {name: getattr(given, name) for name in SelfTest.__slots__}
    with engine.begin() as connection:
        connection.execute(insert(SelfTestRow).values(values))


def _cases() -> Any:
    return select(CaseRow.id, CaseRow.case_id, CaseRow.op, CaseRow.dtype, CaseRow.data)


def _chosen(query: Any, status: str | None, commit: str | None) -> Any:
    if status:
        query = query.where(RunRow.status == status)
    if commit:
        query = query.where(RunRow.commit.startswith(commit, autoescape=True))
    return query


def _chunks(keys: Iterable[int]) -> Iterable[Sequence[int]]:
    known = list(keys)
    return (known[start : start + CHUNK] for start in range(0, len(known), CHUNK))


def _run(row: Any) -> RunInfo:
    key, uuid, started, finished, status, commit, command, environment = row
    ended = None if finished is None else _utc(finished)
    return RunInfo(key, uuid, _utc(started), ended, status, commit, command, from_json(Environment, environment))


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _unpack(packed: bytes) -> list[float]:
    values = array("d")
    values.frombytes(packed)
    return values.tolist()
