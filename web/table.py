"""A run as a flat table, straight from what the database holds: results made for it would take five times as long."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Engine

from harness.result import Ceilings
from harness.store import queries
from harness.store.queries import CaseInfo, Detail, RunInfo
from harness.submission import RESULT_LIMIT

_NOTHING: Mapping[str, Any] = {}
_LISTED = ("shapes", "params", "tags", "published")
_TAKES = ("launches", "allocations", "registers", "spill_bytes")
_ERRORS = ("max_abs_error", "max_rel_error", "worst")


def table_of(engine: Engine, run: RunInfo, ceilings: Mapping[str, Ceilings]) -> Iterator[dict[str, Any]]:
    """A record per result as `harness.summary.record` has it; what is a structure there is JSON as text here."""
    details = queries.list_details(engine, run.key, limit=RESULT_LIMIT)
    cases = queries.load_cases(engine, {one.point.case_key for one in details})
    told = {key: _told(case) for key, case in cases.items()}
    for one in details:
        yield {"run": run.id, "commit": run.commit, **told[one.point.case_key], **_measured(one, cases, ceilings)}


def _told(case: CaseInfo) -> dict[str, Any]:
    """What there is to say of a case, made once for all of its results."""
    listed = {name: json.dumps(case.data[name], allow_nan=False, ensure_ascii=False) for name in _LISTED}
    return {
        "op": case.op,
        "case": case.data["name"],
        "case_id": case.case_id,
        "shapes": listed["shapes"],
        "dtype": case.dtype,
        "params": listed["params"],
        "tags": listed["tags"],
        "published": listed["published"],
    }


def _measured(one: Detail, cases: Mapping[int, CaseInfo], ceilings: Mapping[str, Ceilings]) -> dict[str, Any]:
    point, data = one.point, one.data
    measurement, profile = data.get("measurement") or _NOTHING, data.get("profile") or _NOTHING
    check, footprint = data.get("check") or _NOTHING, measurement.get("footprint") or _NOTHING
    extra = data.get("extra") or _NOTHING
    quantiles = data.get("quantiles_ns") or extra.get("quantiles_ns") or [None] * 4
    time = point.median_ns
    seen = profile.get("time_ns")
    return {
        "implementation": point.implementation,
        "backend": point.backend,
        "device": point.device,
        "status": point.status,
        "reason": one.reason,
        "median_ns": time,
        "min_ns": quantiles[0],
        "p25_ns": quantiles[1],
        "p75_ns": quantiles[2],
        "samples": quantiles[3],
        "hot_ns": measurement.get("hot_ns"),
        "timer": measurement.get("timer"),
        "peak_bytes": measurement.get("peak_bytes"),
        **{name: footprint.get(name) for name in _TAKES},
        "kernels_ns": seen,
        "host_gap_ns": None if time is None or seen is None else time - seen,
        **{name: check.get(name) for name in _ERRORS},
        "bytes": point.bytes,
        "flops": point.flops,
        "gbps": point.bytes / time if time is not None and point.bytes else None,
        "ceiling_share": _share(one, cases[point.case_key].dtype, ceilings.get(point.device), extra),
        "deterministic": data.get("deterministic", True),
    }


def _share(one: Detail, dtype: str, reached: Ceilings | None, extra: Mapping[str, Any]) -> float | None:
    """As `harness.summary.share_of_ceiling`."""
    point = one.point
    if reached is None or point.median_ns is None:
        return None
    floor = reached.floor_ns(point.bytes, point.flops, dtype, writes_only=extra.get("reads") is False)
    return floor / point.median_ns if floor else None
