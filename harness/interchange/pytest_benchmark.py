"""Reader of pytest-benchmark's JSON (`--benchmark-json`), with all times if `--benchmark-save-data` was given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from opgauge.harness.interchange.foreign import ForeignPoint, finite, make_run
from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import Submission

TOOL = "pytest-benchmark"
"""Name of the tool."""
KEPT = ("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3", "rounds", "iterations")
"""Statistics that `extra` stores."""


def is_pytest_benchmark(data: Mapping[str, Any]) -> bool:
    """Whether this JSON is pytest-benchmark's."""
    return "benchmarks" in data and "machine_info" in data


def read_pytest_benchmark(data: Mapping[str, Any], content: bytes, started: datetime) -> Submission:
    """The run of a file."""
    points = [_point(item) for item in data["benchmarks"]]
    timer = f"{TOOL} {data.get('version', '')}".strip()
    return make_run(
        TOOL, timer, points, started=_started(data, started), environment=_environment(data), content=content
    )


def _point(item: Mapping[str, Any]) -> ForeignPoint:
    stats = item["stats"]
    rounds = finite(stats.get("data") or (), 1e9)
    samples = rounds or finite([stats.get("median"), stats.get("mean")], 1e9)[:1]
    params = item.get("params") or {}
    return ForeignPoint(
        benchmark=str(item.get("fullname") or item["name"]).partition("[")[0],
        samples_ns=samples,
        axes={str(key): str(value) for key, value in params.items()} or _bracketed(item),
        calls_per_sample=int(stats.get("iterations") or 1),
        extra={"stats_s": {key: stats[key] for key in KEPT if _is_finite(stats.get(key))}},
    )


def _bracketed(item: Mapping[str, Any]) -> dict[str, str]:
    """Parameters from the brackets of pytest's name, if nothing else states them."""
    inside = str(item.get("param") or str(item["name"]).partition("[")[2].removesuffix("]"))
    return {"param": inside} if inside else {}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _started(data: Mapping[str, Any], otherwise: datetime) -> datetime:
    text = data.get("datetime")
    if not isinstance(text, str):
        return otherwise
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _environment(data: Mapping[str, Any]) -> Environment:
    machine, commit = data.get("machine_info") or {}, data.get("commit_info") or {}
    told = machine.get("cpu")
    cpu: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    hard = {"cpu.model": str(cpu.get("brand_raw") or cpu.get("brand") or machine.get("processor") or "unknown")}
    if cpu.get("count"):
        hard["cpu.threads"] = str(cpu["count"])
    soft = {
        "host": machine.get("node"),
        "system": f"{machine.get('system', '')} {machine.get('release', '')}".strip(),
        "machine": machine.get("machine"),
        "python": machine.get("python_version"),
        "commit": _commit(commit),
        "branch": commit.get("branch"),
    }
    return Environment(hard, {key: str(value) for key, value in soft.items() if value})


def _commit(info: Mapping[str, Any]) -> str:
    found = str(info.get("id") or "")
    return f"{found}-dirty" if found and info.get("dirty") else found
