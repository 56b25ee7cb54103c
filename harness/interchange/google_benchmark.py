"""Reader of Google Benchmark's JSON (`--benchmark_format=json`). Repetitions become the samples of one result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from opgauge.harness.interchange.foreign import ForeignPoint, finite, make_run
from opgauge.harness.result.result import Environment, Status
from opgauge.harness.result.submission import Submission

TOOL = "google-benchmark"
"""Name of the tool."""
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
"""Nanoseconds per unit."""
CENTRES = ("median", "mean")
"""Aggregates that stand for a time, the preferred one first."""


def is_google_benchmark(data: Mapping[str, Any]) -> bool:
    """Whether this JSON is Google Benchmark's."""
    return "benchmarks" in data and "context" in data


def read_google_benchmark(data: Mapping[str, Any], content: bytes, started: datetime) -> Submission:
    """The run of a file."""
    context = data["context"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for item in data["benchmarks"]:
        groups.setdefault(str(item.get("run_name") or item["name"]), []).append(item)
    points = [point for name, items in groups.items() if (point := _point(name, items)) is not None]
    timer = f"{TOOL} {context.get('library_version', '')}".strip()
    return make_run(
        TOOL, timer, points, started=_started(context, started), environment=_environment(context), content=content
    )


def _point(name: str, items: Iterable[Mapping[str, Any]]) -> ForeignPoint | None:
    benchmark, axes = _split(name)
    failed = [item for item in items if item.get("error_occurred") or item.get("skipped")]
    if failed:
        wrong = bool(failed[0].get("error_occurred"))
        reason = str(failed[0].get("error_message") or failed[0].get("skip_message") or "it failed")
        return ForeignPoint(benchmark, (), axes, status=Status.ERROR if wrong else Status.UNSUPPORTED, reason=reason)
    timed = _timed(list(items))
    if not timed:
        return None
    first = timed[0]
    samples = [value for item in timed for value in finite([item["real_time"]], _unit(item))]
    rate = first.get("bytes_per_second") or 0.0
    return ForeignPoint(
        benchmark,
        samples,
        axes,
        cpu_ns=[value for item in timed for value in finite([item.get("cpu_time")], _unit(item))],
        calls_per_sample=int(first.get("iterations") or 1),
        threads=int(first["threads"]) if first.get("threads") else None,
        bytes=round(float(rate) * samples[0] / 1e9) if samples else 0,
        extra={"label": str(first["label"])} if first.get("label") else {},
    )


def _timed(items: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Repetitions in order; the median or the mean if only aggregates were written."""
    repeated = [item for item in items if item.get("run_type", "iteration") == "iteration"]
    if repeated:
        return sorted(repeated, key=lambda item: int(item.get("repetition_index") or 0))
    by_kind = {item.get("aggregate_name"): item for item in items}
    return [by_kind[kind] for kind in CENTRES if kind in by_kind][:1]


def _unit(item: Mapping[str, Any]) -> float:
    return UNITS[item.get("time_unit", "ns")]


def _split(name: str) -> tuple[str, dict[str, str]]:
    """`BM_copy<float>/1024/threads:4` as its name and its arguments."""
    benchmark, *parts = name.split("/")
    axes = {}
    for number, part in enumerate(parts):
        key, colon, value = part.partition(":")
        axes[key if colon else f"arg{number}"] = value if colon else part
    return benchmark, axes


def _started(context: Mapping[str, Any], otherwise: datetime) -> datetime:
    text = context.get("date")
    if not isinstance(text, str):
        return otherwise
    try:
        found = datetime.fromisoformat(text)
    except ValueError:  # versions before 1.5 wrote the output of `date`
        return otherwise
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _environment(context: Mapping[str, Any]) -> Environment:
    count, speed = context.get("num_cpus", "?"), context.get("mhz_per_cpu", "?")
    hard = {"cpu.model": f"{count} CPUs at {speed} MHz", "cpu.threads": str(count)}
    soft = {
        "host": context.get("host_name"),
        "google-benchmark": context.get("library_version"),
        "build": context.get("library_build_type"),
        "scaling": context.get("cpu_scaling_enabled"),
        "commit": context.get("commit"),
    }
    return Environment(hard, {key: str(value) for key, value in soft.items() if value is not None})
