"""Listing results, series and cases page by page for the API: bounded work for all filters, and no samples.

Filters that match few of many results would make a database scan all of them. Results that no index finds are therefore
searched in windows, latest first, for at most `PATIENCE_S`: a page may then have fewer results than requested, and
names its continuation.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, bindparam, func, select
from sqlalchemy.orm import aliased

from opgauge.harness.store.columns import CHUNK, RESULT, is_among, json_texts
from opgauge.harness.store.queries import POINT, CaseInfo, Detail, StoredPoint, measured_in
from opgauge.harness.store.run_queries import RunInfo, list_runs
from opgauge.harness.store.tables import CaseRow, ResultRow, RunRow, SampleRow

WINDOW = 4_000
"""Results of one window."""
PATIENCE_S = 0.03
"""Seconds of searching windows."""
SAMPLES = 10_000
"""Most raw samples returned of one result."""

_PARTS = (("measurement", "peak_bytes"), ("measurement", "footprint"), ("ruler",), ("extra", "written_share"))


class Judged(NamedTuple):
    """A result as a comparison reads it. Fields from peak on are JSON as stored; None if absent."""

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
    peak: str | int | None
    footprint: str | None
    calibration: str | None
    written_share: str | float | None


_DETAILS = select(*POINT, RESULT.reason, RESULT.data).where(is_among(RESULT.id))


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of results; None leaves a field open. run: its number in this database. project: of the run."""

    run: int | None = None
    case_id: str | None = None
    op: str | None = None
    dtype: str | None = None
    implementation: str | None = None
    device: str | None = None
    status: str | None = None
    project: str | None = None

    @property
    def is_selective(self) -> bool:
        """Whether an index finds the results."""
        return self.run is not None or self.case_id is not None


def page_results(
    engine: Engine, filters: Filters, *, before: int | None, limit: int
) -> tuple[list[Detail], int | None]:
    """Results with numbers below `before`, latest first, and the number before which the next page begins."""
    query = _filtered(filters)
    with engine.connect() as connection:
        top = (connection.execute(select(func.max(ResultRow.id))).scalar() or 0) + 1
        bound = top if before is None else min(before, top)
        if filters.is_selective:
            keys = _keys(connection, query.where(ResultRow.id < bound), limit + 1)
            rest = keys[limit - 1] if len(keys) > limit else None
            return _details(connection, keys[:limit]), rest
        keys, rest = _by_windows(connection, query, bound, limit)
        return _details(connection, keys), rest


def find_result(engine: Engine, number: int, *, project: str | None = None) -> Detail | None:
    """One result, without samples; None without one, or where its run is of another project."""
    query = _filtered(Filters(project=project)).where(ResultRow.id == number)
    with engine.connect() as connection:
        return next(iter(_details(connection, list(connection.execute(query).scalars()))), None)


def first_samples(engine: Engine, number: int) -> list[float]:
    """The first raw samples of a result, in nanoseconds."""
    with engine.connect() as connection:
        packed = connection.execute(select(SampleRow.samples_ns).where(SampleRow.result_id == number)).scalar()
    values = array("d")
    values.frombytes((packed or b"")[: SAMPLES * values.itemsize])
    return values.tolist()


def page_series(engine: Engine, filters: Filters, *, limit: int, offset: int) -> list[Detail]:
    """Results of a case, those of the latest runs first, one more than `limit` if there are more."""
    query = _filtered(filters)
    query = query.join(RunRow, RunRow.id == ResultRow.run_id)
    ordered = query.order_by(RunRow.started.desc(), ResultRow.id.desc()).limit(limit + 1).offset(offset)
    with engine.connect() as connection:
        return _details(connection, list(connection.execute(ordered).scalars()))


def list_judged(engine: Engine, run_key: int, limit: int) -> list[Judged]:
    """Results of a run, in order, with the fields that a comparison reads."""
    with engine.connect() as connection:
        rows = connection.execute(_judged(engine.dialect.name), {"run": run_key, "most": limit}).all()
    return [Judged._make(row) for row in rows]


@cache
def _judged(dialect: str) -> Any:
    plain = (RESULT[name] for name in Judged._fields[: -len(_PARTS)])
    ordered = select(*plain, *json_texts(dialect, *_PARTS)).where(RESULT.run_id == bindparam("run")).order_by(RESULT.id)
    return ordered.limit(bindparam("most"))


def page_cases(
    engine: Engine, *, op: str | None, dtype: str | None, after: int, limit: int, project: str | None = None
) -> list[CaseInfo]:
    """Cases in the order of their number, each in its latest form; one more than `limit` if there are more.

    project: only cases with results of its runs, in its forms.
    """
    newer = aliased(CaseRow)
    query = select(CaseRow.id, CaseRow.case_id, CaseRow.op, CaseRow.dtype, CaseRow.data).where(
        CaseRow.id > after,
        *measured_in(project, CaseRow),
        ~select(newer.id)
        .where(newer.case_id == CaseRow.case_id, newer.id > CaseRow.id, *measured_in(project, newer))
        .exists(),
    )
    if op is not None:
        query = query.where(CaseRow.op == op)
    if dtype is not None:
        query = query.where(CaseRow.dtype == dtype)
    with engine.connect() as connection:
        return [CaseInfo(*row) for row in connection.execute(query.order_by(CaseRow.id).limit(limit + 1))]


def count_cases(engine: Engine, project: str | None = None) -> list[tuple[str, int]]:
    """Ops and their number of cases, by name; of those with results of a project's runs."""
    counted = select(CaseRow.op, func.count(CaseRow.case_id.distinct())).where(*measured_in(project, CaseRow))
    query = counted.group_by(CaseRow.op).order_by(CaseRow.op)
    with engine.connect() as connection:
        return [(op, count) for op, count in connection.execute(query)]


def list_names(engine: Engine, after: int = 0) -> tuple[list[tuple[str, str, str]], int]:
    """Implementations, devices and projects of the results with numbers above `after`, and the largest number."""
    query = select(ResultRow.implementation, ResultRow.device, RunRow.project).distinct()
    query = query.join(RunRow, RunRow.id == ResultRow.run_id)
    with engine.connect() as connection:
        last = connection.execute(select(func.max(ResultRow.id))).scalar() or 0
        chosen = query.where(ResultRow.id > after, ResultRow.id <= last) if after else query
        return [(made, device, project) for made, device, project in connection.execute(chosen)], last


def list_case_names(engine: Engine, project: str | None = None) -> list[tuple[str, str]]:
    """Ops with their dtypes; of cases with results of a project's runs."""
    query = select(CaseRow.op, CaseRow.dtype).where(*measured_in(project, CaseRow)).distinct()
    with engine.connect() as connection:
        return [(op, dtype) for op, dtype in connection.execute(query)]


def load_runs(engine: Engine, keys: Collection[int]) -> list[RunInfo]:
    """Runs by their number, in any order."""
    wanted = list(keys)
    chunks = [wanted[start : start + CHUNK] for start in range(0, len(wanted), CHUNK)]
    return [run for chunk in chunks for run in list_runs(engine, keys=chunk)]


def _filtered(filters: Filters) -> Any:
    query: Any = select(ResultRow.id)
    cases = {name: value for name in ("case_id", "op", "dtype") if (value := getattr(filters, name)) is not None}
    if cases:
        query = query.where(ResultRow.case_key.in_(select(CaseRow.id).filter_by(**cases)))
    if filters.run is not None:
        query = query.where(ResultRow.run_id == filters.run)
    if filters.project is not None:
        query = query.where(ResultRow.run_id.in_(select(RunRow.id).where(RunRow.project == filters.project)))
    for name in ("implementation", "device", "status"):
        value = getattr(filters, name)
        if value is not None:
            query = query.where(getattr(ResultRow, name) == value)
    return query


def _keys(connection: Connection, query: Any, limit: int) -> list[int]:
    return list(connection.execute(query.order_by(ResultRow.id.desc()).limit(limit)).scalars())


def _by_windows(connection: Connection, query: Any, bound: int, limit: int) -> tuple[list[int], int | None]:
    keys: list[int] = []
    until = monotonic() + PATIENCE_S
    while bound > 1 and len(keys) < limit:
        low = max(1, bound - WINDOW)
        window = query.where(ResultRow.id >= low, ResultRow.id < bound)
        found = _keys(connection, window, limit - len(keys))
        keys += found
        bound = found[-1] if len(keys) == limit else low
        if monotonic() > until:
            break
    return keys, bound if bound > 1 else None


def _details(connection: Connection, keys: Sequence[int]) -> list[Detail]:
    """Results in the order of `keys`."""
    rows: Iterable[Any] = connection.execute(_DETAILS, {"keys": keys}).all() if keys else ()
    found = {row[0]: Detail(StoredPoint._make(row[:-2]), row[-2], row[-1]) for row in rows}
    return [found[key] for key in keys if key in found]
