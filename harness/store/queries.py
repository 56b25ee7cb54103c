"""Queries of results and cases for pages and routes: selects of plain columns, limited, and none per row.

Lists read no raw samples and, with few exceptions, no JSON of results: 500 results take a few milliseconds. Cases are
returned as stored, not as `Case` values, so that those of an unknown op can be displayed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Engine, bindparam, func

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.record_json import from_json
from opgauge.harness.store.columns import CASE, CEILING, CHUNK, RESULT, SAMPLE, chunks, is_among, select
from opgauge.harness.store.project_state import ProjectStateRow
from opgauge.harness.store.result_rows import unpack
from opgauge.harness.store.tables import (
    AcknowledgementRow,
    CaseRow,
    CommitRow,
    DeletionRow,
    ProjectRow,
    ResultRow,
    RunRow,
    SelfTestRow,
)


@dataclass(frozen=True, slots=True)
class CaseInfo:
    """A case as it was stored; `data` is what `opgauge.harness.case.casejson` wrote."""

    key: int
    case_id: str
    op: str
    dtype: str
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the case, or its id."""
        return str(self.data.get("name") or self.case_id)


class StoredPoint(NamedTuple):
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


class Detail(NamedTuple):
    """One result with its JSON: check, measurement without samples, quantiles, extra."""

    point: StoredPoint
    reason: str
    data: Mapping[str, Any]


class StoredLine(NamedTuple):
    """One result with its JSON, for a flat table."""

    case_key: int
    implementation: str
    backend: str
    device: str
    block: int
    status: str
    reason: str
    median_ns: float | None
    bytes: int
    flops: int
    data: Mapping[str, Any]


# Frequent queries are built once, since building a query takes longer than running it
_MOST: Any = bindparam("most")
_CASES = select(CASE.id, CASE.case_id, CASE.op, CASE.dtype, CASE.data)
_CASES_OF_KEYS = _CASES.where(is_among(CASE.id))
_CASES_OF_ID = _CASES.where(CASE.case_id == bindparam("case_id")).order_by(CASE.id)
_NAMES = {"key": "id", "run_key": "run_id"}
POINT = tuple(RESULT[_NAMES.get(name, name)] for name in StoredPoint._fields)
"""Columns of a `StoredPoint`."""
_POINTS = select(*POINT).where(RESULT.run_id == bindparam("run")).order_by(RESULT.id)
_POINTS_OF_CASES = _POINTS.where(is_among(RESULT.case_key))
_SERIES = (
    select(*POINT)
    .where(is_among(RESULT.case_key, "cases"), is_among(RESULT.run_id))
    .where(RESULT.median_ns.is_not(None))
    .order_by(RESULT.run_id, RESULT.id)
)
_DETAILS = (
    select(*POINT, RESULT.reason, RESULT.data).where(RESULT.run_id == bindparam("run")).order_by(RESULT.id).limit(_MOST)
)
_DETAILS_OF_CASES = _DETAILS.where(is_among(RESULT.case_key))
_DETAILS_OF_STATUSES = _DETAILS.where(RESULT.status.in_(bindparam("statuses", expanding=True)))
_LINES = (
    select(*(RESULT[name] for name in StoredLine._fields)).where(RESULT.run_id == bindparam("run")).order_by(RESULT.id)
)
_STATUSES = (
    select(RESULT.run_id, RESULT.status, func.count())
    .where(is_among(RESULT.run_id))
    .group_by(RESULT.run_id, RESULT.status)
)
_COUNTS = (
    select(RESULT.run_id, func.count(), func.max(RESULT.id)).where(is_among(RESULT.run_id)).group_by(RESULT.run_id)
)
_WRITTEN = select(RESULT.id, RESULT.data["extra", "written_share"].as_string()).where(is_among(RESULT.id))
_SAMPLES = select(SAMPLE.result_id, SAMPLE.samples_ns).where(is_among(SAMPLE.result_id))
_CEILINGS = select(CEILING.run_id, CEILING.device, CEILING.data).where(is_among(CEILING.run_id))


def data_version(engine: Engine) -> tuple[int | None, ...]:
    """A value that changes with runs, results, samples, acknowledgements, commits, self-tests and settings."""
    running = select(func.count()).where(RunRow.status == "running").scalar_subquery()
    counts = [select(func.count()).select_from(row).scalar_subquery() for row in (RunRow, ProjectRow)]
    counts.append(select(func.sum(ProjectStateRow.changes)).scalar_subquery())
    withdrawn = select(func.count(AcknowledgementRow.withdrawn)).scalar_subquery()
    rows = (RunRow, ResultRow, AcknowledgementRow, SelfTestRow, CommitRow, DeletionRow)
    parts = [select(func.max(row.id)).scalar_subquery() for row in rows]
    with engine.connect() as connection:
        return tuple(connection.execute(select(running, withdrawn, *counts, *parts)).one())


def last_deletion(engine: Engine) -> int:
    """Number of the last deletion of a run; 0 if none was deleted."""
    with engine.connect() as connection:
        return connection.execute(select(func.max(DeletionRow.id)).where(DeletionRow.run != "")).scalar() or 0


def count_statuses(engine: Engine, run_keys: Collection[int]) -> dict[int, dict[str, int]]:
    """Results by status, of each run."""
    found: dict[int, dict[str, int]] = {key: {} for key in run_keys}
    with engine.connect() as connection:
        for keys in chunks(run_keys):
            for run_key, status, count in connection.execute(_STATUSES, {"keys": keys}).all():
                found[run_key][status] = count
    return found


def count_results(engine: Engine, run_keys: Collection[int]) -> dict[int, tuple[int, int]]:
    """Number of results of each run, and the number of its last result: both change when results arrive."""
    found = {}
    with engine.connect() as connection:
        for keys in chunks(run_keys):
            for run_key, count, last in connection.execute(_COUNTS, {"keys": keys}).all():
                found[run_key] = (count, last)
    return found


def list_points(engine: Engine, run_key: int, case_keys: Collection[int] | None = None) -> list[StoredPoint]:
    """The results of a run, in order; of some cases only if given."""
    query = _POINTS if case_keys is None else _POINTS_OF_CASES
    given = {"run": run_key, **({} if case_keys is None else {"keys": list(case_keys)})}
    with engine.connect() as connection:
        return [StoredPoint._make(row) for row in connection.execute(query, given).all()]


def list_written_shares(engine: Engine, result_keys: Collection[int]) -> dict[int, float]:
    """Shares of the bytes that the cases of results write, by number of the result; without unknown ones."""
    found = {}
    with engine.connect() as connection:
        for keys in chunks(result_keys):
            for key, stored in connection.execute(_WRITTEN, {"keys": keys}).all():
                share = share_of(stored)
                if share is not None:
                    found[key] = share
    return found


def share_of(stored: str | float | None) -> float | None:
    """A share from 0 to 1 in stored JSON; None for anything else, as a run may come from anywhere."""
    try:
        found = float(stored) if stored is not None else -1.0
    except ValueError:
        return None
    return found if 0 <= found <= 1 else None


def list_case_keys(engine: Engine, run_key: int, op: str) -> list[int]:
    """Numbers of the cases of an op with results in a run."""
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
) -> list[Detail]:
    """Results of a run with their JSON, those of some cases or of some statuses only."""
    given = {"run": run_key, "most": limit, "keys": list(case_keys or ())[:limit], "statuses": list(statuses or ())}
    query = _DETAILS if statuses is None else _DETAILS_OF_STATUSES
    if case_keys is not None:
        query = _DETAILS_OF_CASES if statuses is None else query.where(is_among(RESULT.case_key))
    with engine.connect() as connection:
        found = connection.execute(query, given).all()
    return [Detail(StoredPoint._make(row[:-2]), row[-2], row[-1]) for row in found]


def list_lines(engine: Engine, run_key: int) -> list[StoredLine]:
    """All results of a run, in order."""
    with engine.connect() as connection:
        return [StoredLine._make(row) for row in connection.execute(_LINES, {"run": run_key}).all()]


def list_places(engine: Engine, after: int = 0) -> tuple[Sequence[tuple[int, str, int]], int]:
    """Case, device and run of the results with numbers above `after`, each once, and the largest number."""
    query = select(ResultRow.case_key, ResultRow.device, ResultRow.run_id).distinct()
    with engine.connect() as connection:
        last = connection.execute(select(func.max(ResultRow.id))).scalar() or 0
        # an index has all of them in order, and covers the query if no number is excluded
        chosen = query.where(ResultRow.id > after, ResultRow.id <= last) if after else query
        return connection.execute(chosen).all(), last


def load_samples(engine: Engine, result_keys: Collection[int], limit: int = 64) -> dict[int, list[float]]:
    """Raw samples of a few results, in nanoseconds and in order."""
    with engine.connect() as connection:
        found = connection.execute(_SAMPLES, {"keys": list(result_keys)[:limit]})
        return {key: list(unpack(packed)) for key, packed in found}


def list_ceilings(engine: Engine, run_keys: Collection[int]) -> dict[int, dict[str, Ceilings]]:
    """Achieved peaks, by run and device."""
    found: dict[int, dict[str, Ceilings]] = {key: {} for key in run_keys}
    with engine.connect() as connection:
        for keys in chunks(run_keys):
            for run_key, device, data in connection.execute(_CEILINGS, {"keys": keys}).all():
                found[run_key][device] = from_json(Ceilings, data)
    return found


def load_cases(engine: Engine, keys: Collection[int]) -> dict[int, CaseInfo]:
    """Cases by their number."""
    found = {}
    with engine.connect() as connection:
        for some in chunks(keys):
            for row in connection.execute(_CASES_OF_KEYS, {"keys": some}).all():
                found[row[0]] = CaseInfo(*row)
    return found


def find_case(engine: Engine, case_id: str, project: str | None = None) -> list[CaseInfo]:
    """All stored forms of a case, the latest last; with `project`, those with results of its runs. Empty for none."""
    with engine.connect() as connection:
        found = [CaseInfo(*row) for row in connection.execute(_CASES_OF_ID, {"case_id": case_id}).all()[:CHUNK]]
        if project is None:
            return found
        query = select(CaseRow.id).where(CaseRow.id.in_([one.key for one in found]), *measured_in(project, CaseRow))
        own = set(connection.execute(query).scalars())
        return [one for one in found if one.key in own]


def measured_in(project: str | None, case: Any) -> list[ColumnElement[bool]]:
    """The condition that a case, `CaseRow` or its alias, has results of a project's runs; none without a project."""
    if project is None:
        return []
    measured = select(ResultRow.id).join(RunRow, RunRow.id == ResultRow.run_id)
    return [measured.where(ResultRow.case_key == case.id, RunRow.project == project).exists()]


def list_series(engine: Engine, case_keys: Collection[int], run_keys: Collection[int]) -> list[StoredPoint]:
    """Times of some cases in some runs, on every device and of every process, without any JSON."""
    found: list[StoredPoint] = []
    with engine.connect() as connection:
        for keys in chunks(run_keys):
            for cases in chunks(case_keys):
                rows = connection.execute(_SERIES, {"cases": cases, "keys": keys}).all()
                found += [StoredPoint._make(row) for row in rows]
    return found


def list_cases(engine: Engine) -> list[CaseInfo]:
    """All stored forms of all cases, oldest first."""
    with engine.connect() as connection:
        return [CaseInfo(*row) for row in connection.execute(_CASES.order_by(CASE.id))]
