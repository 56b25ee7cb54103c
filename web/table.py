"""A run as a CSV table, written from the database's rows: `Result` values would take five times as long.

Texts recur, so each is quoted once; numbers do not, so those of all rows are written at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from opgauge.harness.report.export import Quoted
from opgauge.harness.result.ceilings import Ceilings, PeakBound
from opgauge.harness.result.summary import bound_of, origin
from opgauge.harness.store import queries
from opgauge.harness.store.queries import CaseInfo, StoredLine
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.reader import MOST_CASES, Reader

COLUMNS = (
    *(
        "run",
        "started",
        "host",
        "project",
        "branch",
        "commit",
        "commit_time",
        "op",
        "case",
        "case_id",
        "shapes",
        "dtype",
    ),
    *("params", "tags", "published", "implementation", "backend", "device", "model", "process", "status"),
    *("reason", "median_ns", "min_ns", "p25_ns", "p75_ns", "samples", "hot_ns", "timer", "peak_bytes", "launches"),
    *(
        "allocations",
        "registers",
        "spill_bytes",
        "kernels_ns",
        "host_gap_ns",
        "max_abs_error",
        "max_rel_error",
        "worst",
        "bytes",
    ),
    *("flops", "gbps", "ceiling_share", "bound", "contended", "series", "deterministic"),
)
"""Columns of the table."""
_as_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_NOTHING: Mapping[str, Any] = {}
_Bounds = dict[tuple[object, ...], PeakBound | None]
_UNKNOWN = (None, None, None, None)
_WORDS = (
    ("null", ""),
    ("true", "True"),
    ("false", "False"),
    ("-Infinity", "'-inf"),
    ("Infinity", "inf"),
    ("NaN", "nan"),
)
"""Words of JSON, and of the table."""


def table_of(reader: Reader, run: RunInfo, ceilings: Mapping[str, Ceilings]) -> str:
    """A row per result, equal to the CSV of `opgauge.harness.result.summary.record`."""
    found = queries.list_lines(reader.engine, run.key)
    cells = Quoted()
    cases = reader.cases({line.case_key for line in found})
    place = ",".join(cells[text] for text in origin(run.id, run.started, run.environment).values())
    devices = {name: f"{cells[name]},{cells[run.environment.model(name)]}" for name in {line.device for line in found}}
    heads = {key: f"{place},{_case_cells(case)}" for key, case in cases.items()}
    names = [
        f"{heads[line.case_key]},{cells[line.implementation]},{cells[line.backend]},{devices[line.device]},{line.block},"
        f"{cells[line.status]},{cells[line.reason]}"
        for line in found
    ]
    timers = [cells[(line.data.get("measurement") or _NOTHING).get("timer") or ""] for line in found]
    times = written([_times(line) for line in found])
    known: _Bounds = {}
    bounds = [_share(line, cases[line.case_key].dtype, ceilings.get(line.device), known) for line in found]
    rest = written([_rest(line, share) for line, (share, _) in zip(found, bounds, strict=True)])
    peaks = [cells[peak or ""] for _, peak in bounds]
    contended = written([(_contended(line),) for line in found])
    series = [cells[(line.data.get("extra") or _NOTHING).get("series") or ""] for line in found]
    ends = written([(line.data.get("deterministic", True),) for line in found])
    columns = zip(names, times, timers, rest, peaks, contended, series, ends, strict=True)
    rows = [",".join(parts) for parts in columns]
    return "\n".join([",".join(COLUMNS), *rows, ""])


_known: dict[int, tuple[CaseInfo, str]] = {}


def _case_cells(case: CaseInfo) -> str:
    """Columns of a case, cached: cases recur in every run."""
    known = _known.get(id(case))
    if known is None or known[0] is not case:
        if len(_known) >= MOST_CASES:
            _known.clear()
        known = _known[id(case)] = (case, _tell(case))
    return known[1]


def _tell(case: CaseInfo) -> str:
    shapes, params, tags, published = (_as_json(case.data[name]) for name in ("shapes", "params", "tags", "published"))
    cells = Quoted()
    texts = (case.op, case.data["name"], case.case_id, shapes, case.dtype, params, tags, published)
    return ",".join([cells[text] for text in texts])


def _times(line: StoredLine) -> tuple[Any, ...]:
    """From the median to the hot time."""
    data = line.data
    quantiles = data.get("quantiles_ns") or _UNKNOWN
    return line.median_ns, *quantiles, (data.get("measurement") or _NOTHING).get("hot_ns")


def _contended(line: StoredLine) -> int | None:
    """Contended samples; None without a measurement."""
    measurement = line.data.get("measurement")
    return int(measurement.get("contended", 0)) if measurement else None


def _rest(line: StoredLine, share: float | None) -> tuple[Any, ...]:
    """From the memory to the share of the bound."""
    data, time, nbytes = line.data, line.median_ns, line.bytes
    measurement, profile = data.get("measurement") or _NOTHING, data.get("profile") or _NOTHING
    check, footprint = data.get("check") or _NOTHING, measurement.get("footprint") or _NOTHING
    seen = profile.get("time_ns")
    return (
        measurement.get("peak_bytes"),
        footprint.get("launches"),
        footprint.get("allocations"),
        footprint.get("registers"),
        footprint.get("spill_bytes"),
        seen,
        None if time is None or seen is None else time - seen,
        _number(check.get("max_abs_error")),
        _number(check.get("max_rel_error")),
        _number(check.get("worst")),
        nbytes,
        line.flops,
        nbytes / time if time and nbytes else None,
        share,
    )


def _number(value: Any) -> Any:
    """A number; the database stores infinities as text."""
    return float(value) if type(value) is str else value


def _share(line: StoredLine, dtype: str, reached: Ceilings | None, known: _Bounds) -> tuple[float | None, str | None]:
    """Share of the ceiling and its peak, as `opgauge.harness.result.summary.share_of_ceiling`.

    known: bounds by the work; the implementations of a case have it in common.
    """
    if reached is None or not line.median_ns:
        return None, None
    extra = line.data.get("extra") or _NOTHING
    reads, declared = extra.get("reads") is not False, (extra.get("written_share"), extra.get("relaxed"))
    work = (line.device, dtype, line.bytes, line.flops, reads, declared)
    if work not in known:
        known[work] = bound_of(reached, line.bytes, line.flops, dtype, extra)
    bound = known[work]
    return (None, None) if bound is None else (bound.time_ns / line.median_ns, bound.peak)


def written(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Numbers of each row, separated by commas."""
    if not rows:
        return []
    text = to_json(rows, inf_nan_mode="constants").decode()[2:-2]
    for word, other in _WORDS:
        text = text.replace(word, other)
    return text.split("],[")
