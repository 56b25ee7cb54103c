"""What other tools write, as they write it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any


def _summary(tag: str, kind: str, **values: Any) -> dict[str, Any]:
    data = [{"name": name, "type": kind, "value": value} for name, value in values.items()]
    return {"tag": tag, "name": tag, "description": "…", "data": data}


def _samples(tag: str, filename: str, size: int) -> dict[str, Any]:
    named = {"name": "filename", "type": "string", "value": filename}
    return {"tag": tag, "data": [named, {"name": "size", "type": "int64", "value": str(size)}]}


def nvbench(folder: Path, samples: tuple[float, ...] = (1.5e-6, 1.25e-6, 2e-6)) -> dict[str, Any]:
    """One benchmark: a state with sample files, one without, one that was skipped."""
    count = len(samples)
    for name, values in (("result.json-bin", samples), ("result.json-freqs-bin", (1.9e9,) * count)):
        (folder / name).mkdir()
        (folder / name / "0.bin").write_bytes(struct.pack(f"<{count}f", *values))
    axes = [
        {"name": "T", "type": "type", "value": "F32"},
        {"name": "BlockSize", "type": "int64", "input_string": "2^8", "value": "256"},
    ]
    measured = [
        _summary("nv/cold/sample_size", "int64", value=str(count)),
        _summary("nv/cold/time/gpu/mean", "float64", value="1.5833e-06"),
        _summary("nv/cold/time/gpu/stdev/relative", "float64", value=None),
        _summary("nv/cold/bw/global/bytes_per_second", "float64", value="1e12"),
        _summary("nv/batch/time/gpu/mean", "float64", value="1.1e-06"),
    ]
    files = [
        _samples("nv/json/bin:nv/cold/sample_times", "result.json-bin/0.bin", count),
        _samples("nv/json/freqs-bin:nv/cold/sample_freqs", "result.json-freqs-bin/0.bin", count),
    ]
    states = [
        {"name": "Device=0", "device": 0, "axis_values": axes, "summaries": [*measured, *files], "is_skipped": False},
        {"name": "Device=0", "device": 0, "axis_values": axes[:1], "summaries": measured, "is_skipped": False},
        {
            "name": "Device=1",
            "device": 1,
            "axis_values": [],
            "summaries": None,
            "is_skipped": True,
            "skip_reason": "no",
        },
    ]
    devices = [{"id": number, "name": "NVIDIA H200", "sm_version": 900} for number in (0, 1)]
    meta = {"argv": ["./bench"], "version": {"json": {"string": "1.0.0"}, "nvbench": {"string": "0.1.0"}}}
    return {
        "meta": meta,
        "devices": devices,
        "benchmarks": [{"name": "copy", "index": 0, "axes": [], "states": states}],
    }


def pytest_benchmark() -> dict[str, Any]:
    """Two benchmarks, one with every round's time."""
    stats: dict[str, float | None] = {
        "min": 1e-6,
        "max": 3e-6,
        "mean": 2e-6,
        "median": 1.9e-6,
        "stddev": float("nan"),
        "rounds": 3,
    }
    first = {
        "group": None,
        "name": "test_add[4-float32]",
        "fullname": "tests/test_add.py::test_add[4-float32]",
        "params": {"size": 4, "dtype": "float32"},
        "param": "4-float32",
        "extra_info": {},
        "stats": {**stats, "stddev": 1e-6, "iterations": 5, "data": [1e-6, 2e-6, 3e-6]},
    }
    second = {"name": "test_mul", "fullname": "tests/test_mul.py::test_mul", "params": None, "stats": {**stats}}
    second["stats"] = {**stats, "stddev": None, "iterations": 1}
    return {
        "machine_info": {
            "node": "laptop",
            "system": "Linux",
            "release": "6.1",
            "python_version": "3.11.7",
            "cpu": {"brand_raw": "AMD EPYC", "count": 2},
        },
        "commit_info": {"id": "a" * 40, "dirty": True, "branch": "main"},
        "benchmarks": [first, second],
        "datetime": "2026-01-31T12:00:00.123456",
        "version": "5.1.0",
    }


def google_benchmark() -> dict[str, Any]:
    """Repetitions with aggregates, one with aggregates only, one that failed, one that was skipped."""
    common = {"run_name": "BM_copy<float>/1024/threads:2", "run_type": "iteration", "threads": 2, "iterations": 1000}
    repeated = [
        {
            **common,
            "name": "BM_copy<float>/1024/threads:2",
            "repetition_index": index,
            "real_time": 1.5 + index,
            "cpu_time": 1.4,
            "time_unit": "us",
            "bytes_per_second": 2e9,
        }
        for index in (1, 0)
    ]
    mean = {**common, "name": "…_mean", "run_type": "aggregate", "aggregate_name": "mean", "real_time": 2.0}
    only = {"run_name": "BM_only", "run_type": "aggregate", "iterations": 3, "time_unit": "ms", "cpu_time": 1.0}
    aggregates = [
        {**only, "name": "BM_only_stddev", "aggregate_name": "stddev", "real_time": 0.1},
        {**only, "name": "BM_only_median", "aggregate_name": "median", "real_time": 7.0},
    ]
    failed = {"name": "BM_bad", "run_name": "BM_bad", "error_occurred": True, "error_message": "no file"}
    skipped = {"name": "BM_skip", "run_name": "BM_skip", "skipped": True, "skip_message": "not here"}
    return {
        "context": {
            "date": "2026-01-31T12:00:00+01:00",
            "host_name": "laptop",
            "num_cpus": 2,
            "mhz_per_cpu": 2400,
            "library_version": "v1.9.0",
            "library_build_type": "release",
        },
        "benchmarks": [*repeated, {**mean, "time_unit": "us", "cpu_time": 1.4}, *aggregates, failed, skipped],
    }
