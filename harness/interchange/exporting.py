"""Exporting a run's records in the formats of other tools.

Bencher Metric Format: https://bencher.dev/docs/reference/bencher-metric-format/. github-action-benchmark: its
`customSmallerIsBetter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from opgauge.harness.errors import HarnessError
from opgauge.harness.report.export import as_json
from opgauge.harness.result.result import Status

NAME_LENGTH = 1024
"""Longest name of a benchmark."""
_FLOATS = {
    "median_ns",
    "min_ns",
    "p25_ns",
    "p75_ns",
    "hot_ns",
    "kernels_ns",
    "host_gap_ns",
    "max_abs_error",
    "max_rel_error",
    "worst",
    "gbps",
    "ceiling_share",
}
_WHOLE = {
    "process",
    "samples",
    "peak_bytes",
    "launches",
    "allocations",
    "registers",
    "spill_bytes",
    "bytes",
    "flops",
    "contended",
}
_TRUTHS = {"deterministic"}
_Records = Sequence[Mapping[str, Any]]


class ExportError(HarnessError):
    """An export that cannot be written; the message gives the reason."""

    exit_code = 2


def as_bencher(records: _Records) -> str:
    """Bencher Metric Format: latency in nanoseconds with quartiles, throughput in GB/s if bytes are known."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, blocks in _by_name(records).items():
        low, high = (_quartile(blocks, key) for key in ("p25_ns", "p75_ns"))
        latency = {"value": _centre(blocks)}
        if low is not None and high is not None:
            latency |= {"lower_value": low, "upper_value": high}
        found[name] = {"latency": latency}
        if blocks[0]["gbps"]:
            found[name]["throughput"] = {"value": median(block["gbps"] for block in blocks)}
    return as_json(found)


def as_github(records: _Records) -> str:
    """List for github-action-benchmark: nanoseconds, with half the distance of the quartiles as range."""
    listed = []
    for name, blocks in _by_name(records).items():
        low, high = (_quartile(blocks, key) for key in ("p25_ns", "p75_ns"))
        item: dict[str, Any] = {"name": name, "unit": "ns", "value": _centre(blocks)}
        if low is not None and high is not None:
            item["range"] = f"± {(high - low) / 2:.4g}"
        samples = sum(block["samples"] or 0 for block in blocks)
        item["extra"] = f"samples: {samples}\ncase: {blocks[0]['case_id']}\ncommit: {blocks[0]['commit']}"
        listed.append(item)
    return as_json(listed)


def write_parquet(records: _Records, path: Path) -> None:
    """Write one row per record; structures are JSON text. Raises ExportError without pyarrow."""
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        msg = "writing Parquet needs pyarrow: install opgauge[parquet]"
        raise ExportError(msg) from error
    names = list(records[0]) if records else []
    kinds = {name: _kind(pa, name) for name in names}
    columns = {name: [_parquet_value(name, record[name]) for record in records] for name in names}
    table = pa.table(columns, schema=pa.schema(list(kinds.items())))
    pq.write_table(table, path, compression="zstd")


def _kind(pa: Any, name: str) -> Any:
    if name in _FLOATS:
        return pa.float64()
    if name in _WHOLE:
        return pa.int64()
    return pa.bool_() if name in _TRUTHS else pa.string()


def _parquet_value(name: str, value: Any) -> Any:
    if name in _FLOATS and value is not None:
        return float(value)
    if isinstance(value, dict | list):
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    return value


def _by_name(records: _Records) -> dict[str, list[Mapping[str, Any]]]:
    """Records of valid results, by a name of op, case, implementation and device."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["status"] == Status.OK and record["median_ns"]:
            name = "/".join(str(record[key]) for key in ("op", "case", "implementation", "device"))
            found.setdefault(name[:NAME_LENGTH], []).append(record)
    return found


def _centre(blocks: Iterable[Mapping[str, Any]]) -> float:
    return float(median(block["median_ns"] for block in blocks))


def _quartile(blocks: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """A quartile: of a single process its own; of several, of the range of their medians."""
    listed = list(blocks)
    if len(listed) == 1:
        found: float | None = listed[0][key]
        return found
    times = sorted(block["median_ns"] for block in listed)
    return float(times[0] if key == "p25_ns" else times[-1])
