"""A run as a flat table, straight from what the database holds: results made for it would take five times as long."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harness.report.export import Cells, as_table
from harness.result.result import Ceilings
from harness.result.submission import RESULT_LIMIT
from harness.store import queries
from harness.store.queries import CaseInfo, Detail, RunInfo
from web.reader import KEPT_CASES, Reader

COLUMNS = (
    *("run", "commit", "op", "case", "case_id", "shapes", "dtype", "params", "tags", "published"),
    *("implementation", "backend", "device", "status", "reason", "median_ns", "min_ns", "p25_ns", "p75_ns", "samples"),
    *("hot_ns", "timer", "peak_bytes", "launches", "allocations", "registers", "spill_bytes", "kernels_ns"),
    *("host_gap_ns", "max_abs_error", "max_rel_error", "worst", "bytes", "flops", "gbps", "ceiling_share"),
    "deterministic",
)
_as_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_NOTHING: Mapping[str, Any] = {}
_UNKNOWN = (None, None, None, None)


def table_of(reader: Reader, run: RunInfo, ceilings: Mapping[str, Ceilings]) -> str:
    """A row per result, as CSV of `harness.result.summary.record` has it."""
    return as_table(COLUMNS, _rows(reader, run, ceilings))


def _rows(reader: Reader, run: RunInfo, ceilings: Mapping[str, Ceilings]) -> Iterator[tuple[Any, ...]]:
    details = queries.list_details(reader.engine, run.key, limit=RESULT_LIMIT)
    cases = reader.cases({one.point.case_key for one in details})
    cells = Cells()
    told = {key: tuple([cells[text] for text in (run.id, run.commit, *_told(case))]) for key, case in cases.items()}
    for one in details:
        key = one.point.case_key
        yield told[key] + _measured(one, cases[key].dtype, ceilings.get(one.point.device), cells)


_known: dict[int, tuple[CaseInfo, tuple[str, ...]]] = {}


def _told(case: CaseInfo) -> tuple[str, ...]:
    """What there is to say of a case, made once for all of its results; cases recur in every run."""
    known = _known.get(id(case))
    if known is None or known[0] is not case:
        if len(_known) >= KEPT_CASES:
            _known.clear()
        known = _known[id(case)] = (case, _tell(case))
    return known[1]


def _tell(case: CaseInfo) -> tuple[str, ...]:
    shapes, params, tags, published = (_as_json(case.data[name]) for name in ("shapes", "params", "tags", "published"))
    return case.op, case.data["name"], case.case_id, shapes, case.dtype, params, tags, published


def _measured(one: Detail, dtype: str, reached: Ceilings | None, cells: Cells) -> tuple[Any, ...]:
    point, data = one.point, one.data
    measurement, profile = data.get("measurement") or _NOTHING, data.get("profile") or _NOTHING
    check, footprint = data.get("check") or _NOTHING, measurement.get("footprint") or _NOTHING
    extra = data.get("extra") or _NOTHING
    time, seen = point.median_ns, profile.get("time_ns")
    return (
        cells[point.implementation],
        cells[point.backend],
        cells[point.device],
        cells[point.status],
        cells[one.reason],
        time,
        *(data.get("quantiles_ns") or extra.get("quantiles_ns") or _UNKNOWN),
        measurement.get("hot_ns"),
        _cell(measurement.get("timer"), cells),
        measurement.get("peak_bytes"),
        footprint.get("launches"),
        footprint.get("allocations"),
        footprint.get("registers"),
        footprint.get("spill_bytes"),
        seen,
        None if time is None or seen is None else time - seen,
        _cell(check.get("max_abs_error"), cells),
        _cell(check.get("max_rel_error"), cells),
        _cell(check.get("worst"), cells),
        point.bytes,
        point.flops,
        point.bytes / time if time is not None and point.bytes else None,
        _share(one, dtype, reached, extra),
        data.get("deterministic", True),
    )


def _cell(value: Any, cells: Cells) -> Any:
    return cells[value] if isinstance(value, str) else value


def _share(one: Detail, dtype: str, reached: Ceilings | None, extra: Mapping[str, Any]) -> float | None:
    """As `harness.result.summary.share_of_ceiling`."""
    point = one.point
    if reached is None or point.median_ns is None:
        return None
    floor = reached.floor_ns(point.bytes, point.flops, dtype, writes_only=extra.get("reads") is False)
    return floor / point.median_ns if floor else None
