"""Results, runs and cases as the API gives them: plain JSON from what lists of the store hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from opgauge.harness.result.ceilings import Ceilings, PeakBound
from opgauge.harness.result.summary import bound_of
from opgauge.harness.store import queries
from opgauge.harness.store.listing import load_runs
from opgauge.harness.store.queries import CaseInfo, Detail
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.reader import Reader

MOST_ENDED = 20_000
"""Cases whose records are cached."""
_NOTHING: Mapping[str, Any] = {}
_ended: WeakKeyDictionary[Reader, dict[int, RunInfo]] = WeakKeyDictionary()


def run_record(run: RunInfo, statuses: Mapping[str, int]) -> dict[str, Any]:
    """A run."""
    return {
        "id": run.id,
        "started": run.started.isoformat(),
        "finished": moment(run.finished),
        "status": run.status,
        "commit": run.commit,
        "project": run.project,
        "branch": run.branch,
        "committed": moment(run.committed),
        "dirty": run.dirty,
        "submitter": run.submitter,
        "command": run.command,
        "environment": {"hard": dict(run.environment.hard), "soft": dict(run.environment.soft)},
        "results": sum(statuses.values()),
        "statuses": dict(statuses),
    }


def case_record(case: CaseInfo) -> dict[str, Any]:
    """A case."""
    return {"id": case.case_id, "op": case.op, "name": case.name, "dtype": case.dtype, "data": dict(case.data)}


def result_records(reader: Reader, details: Sequence[Detail]) -> list[dict[str, Any]]:
    """Results with what is known of their cases and runs."""
    runs = runs_of(reader, details)
    cases = reader.cases({one.point.case_key for one in details})
    ceilings = queries.list_ceilings(reader.engine, list(runs))
    return [
        _result_record(one, runs[one.point.run_key], cases[one.point.case_key], ceilings[one.point.run_key])
        for one in details
        if one.point.run_key in runs and one.point.case_key in cases
    ]


def point_records(reader: Reader, details: Sequence[Detail]) -> list[dict[str, Any]]:
    """Points of a series."""
    runs = runs_of(reader, details)
    return [_point_record(reader, one, runs[one.point.run_key]) for one in details if one.point.run_key in runs]


def runs_of(reader: Reader, details: Sequence[Detail]) -> dict[int, RunInfo]:
    """The runs of some results, by number; those that have ended stay as they are and are remembered."""
    keys = {one.point.run_key for one in details}
    known = _ended.setdefault(reader, {})
    found = {key: known[key] for key in keys if key in known}
    for run in load_runs(reader.engine, keys - found.keys()):
        found[run.key] = run
        if run.status != "running":
            known[run.key] = run
    if len(known) > MOST_ENDED:
        _ended[reader] = dict(list(known.items())[-MOST_ENDED // 2 :])
    return found


def moment(when: datetime | None) -> str | None:
    """ISO 8601."""
    return None if when is None else when.isoformat()


def _result_record(one: Detail, run: RunInfo, case: CaseInfo, ceilings: Mapping[str, Ceilings]) -> dict[str, Any]:
    point, data = one.point, one.data
    measurement, check = data.get("measurement") or _NOTHING, data.get("check") or _NOTHING
    median_ns = point.median_ns
    bound = _bound(one, case.dtype, ceilings.get(point.device))
    return {
        "number": point.key,
        "run": run.id,
        "started": run.started.isoformat(),
        "commit": run.commit,
        "op": case.op,
        "case": case.name,
        "case_id": case.case_id,
        "dtype": case.dtype,
        "shapes": case.data.get("shapes", {}),
        "params": case.data.get("params", {}),
        "tags": case.data.get("tags", []),
        "implementation": point.implementation,
        "backend": point.backend,
        "device": point.device,
        "block": point.block,
        "status": point.status,
        "reason": one.reason,
        "median_ns": median_ns,
        **_quantiles(data),
        "hot_ns": measurement.get("hot_ns"),
        "timer": measurement.get("timer"),
        "peak_bytes": measurement.get("peak_bytes"),
        "max_abs_error": check.get("max_abs_error"),
        "max_rel_error": check.get("max_rel_error"),
        "worst": check.get("worst"),
        "bytes": point.bytes,
        "flops": point.flops,
        "gbps": point.bytes / median_ns if median_ns and point.bytes else None,
        "ceiling_share": None if bound is None or not median_ns else bound.time_ns / median_ns,
        "bound": bound.peak if bound else None,
        "contended": measurement.get("contended", 0) if measurement else None,
        "series": (data.get("extra") or _NOTHING).get("series"),
        "deterministic": data.get("deterministic"),
    }


def _point_record(reader: Reader, one: Detail, run: RunInfo) -> dict[str, Any]:
    point = one.point
    quantiles = _quantiles(one.data)
    quantiles.pop("samples")
    return {
        "number": point.key,
        "run": run.id,
        "started": run.started.isoformat(),
        "commit": run.commit,
        "implementation": point.implementation,
        "backend": point.backend,
        "device": point.device,
        "fingerprint": reader.device(run, point.device).slug,
        "block": point.block,
        "status": point.status,
        "median_ns": point.median_ns,
        **quantiles,
        "hot_ns": (one.data.get("measurement") or _NOTHING).get("hot_ns"),
    }


def _quantiles(data: Mapping[str, Any]) -> dict[str, Any]:
    found = data.get("quantiles_ns") or [None] * 4
    return dict(zip(("min_ns", "p25_ns", "p75_ns", "samples"), found, strict=True))


def _bound(one: Detail, dtype: str, reached: Ceilings | None) -> PeakBound | None:
    """Bound by the achieved peaks, equal to `opgauge.harness.result.summary.peak_bound`."""
    if reached is None or not one.point.median_ns:
        return None
    return bound_of(reached, one.point.bytes, one.point.flops, dtype, one.data.get("extra"))
