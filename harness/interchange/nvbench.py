"""Reader of NVBench's JSON, with the sample times of `--jsonbin` if they are beside it.

The format: `benchmarks` have `states`, a state has `axis_values` and `summaries`; a summary has a `tag` and `data`, a
list of named and typed values, numbers as text. Sample files are little-endian float32: seconds, and hertz of the SM
clock.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from opgauge.harness.interchange.foreign import UNSPECIFIED, ForeignPoint, dtype_of, finite, make_run
from opgauge.harness.result.result import Environment, Status
from opgauge.harness.result.submission import Submission

TOOL = "nvbench"
"""Name of the tool."""
MEAN, HOT = "nv/cold/time/gpu/mean", "nv/batch/time/gpu/mean"
"""Tags of the mean cold and hot times."""
CPU_MEAN, COUNT = "nv/cold/time/cpu/mean", "nv/cold/sample_size"
"""Tags of the mean CPU time and the number of samples."""
RATE = "nv/cold/bw/global/bytes_per_second"
"""Tag of the memory throughput."""
TIMES, CLOCKS = "nv/json/bin:nv/cold/sample_times", "nv/json/freqs-bin:nv/cold/sample_freqs"
"""Tags of the files of sample times and clocks."""
LARGEST_FILE = 256 << 20
"""Most bytes of a sample file."""
_Summaries = Mapping[str, Mapping[str, Any]]


def is_nvbench(data: Mapping[str, Any]) -> bool:
    """Whether this JSON is NVBench's."""
    versions = data.get("meta", {}).get("version", {}) if isinstance(data.get("meta"), Mapping) else {}
    return "benchmarks" in data and (TOOL in versions or "devices" in data)


def read_nvbench(data: Mapping[str, Any], path: Path, content: bytes, started: datetime) -> Submission:
    """The run of a file; sample files are read from its own folder only."""
    devices = {device["id"]: device for device in data.get("devices") or ()}
    points = [_point(benchmark, state, path) for benchmark in data["benchmarks"] for state in benchmark["states"]]
    version = _version(data)
    environment = Environment(dict(_hard(devices)), {"nvbench": version} if version else {})
    timer = f"nvbench {version}".strip()
    return make_run(TOOL, timer, points, started=started, environment=environment, content=content)


def _version(data: Mapping[str, Any]) -> str:
    found = data.get("meta", {}).get("version", {}).get(TOOL, {})
    return str(found.get("string", "")) if isinstance(found, Mapping) else ""


def _hard(devices: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for number, device in devices.items():
        yield f"cuda:{number}.model", str(device.get("name", "unknown"))
        if "sm_version" in device:
            yield f"cuda:{number}.sm_version", str(device["sm_version"])


def _point(benchmark: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> ForeignPoint:
    axes = {str(axis["name"]): _axis_text(axis) for axis in state.get("axis_values") or ()}
    types = [dtype_of(str(axis["value"])) for axis in state.get("axis_values") or () if axis.get("type") == "type"]
    number = state.get("device")
    what: dict[str, Any] = {
        "benchmark": str(benchmark["name"]),
        "axes": axes,
        "device": "cpu" if number is None else f"cuda:{int(number)}",
        "dtype": types[0] if len(types) == 1 else UNSPECIFIED,
    }
    if state.get("is_skipped"):
        reason = str(state.get("skip_reason") or "skipped")
        return ForeignPoint(samples_ns=(), status=Status.UNSUPPORTED, reason=reason, **what)
    return ForeignPoint(**what, **_times(_summaries(state), path))


def _axis_text(axis: Mapping[str, Any]) -> str:
    return str(axis.get("input_string") or axis.get("value", ""))


def _summaries(state: Mapping[str, Any]) -> _Summaries:
    return {
        summary["tag"]: {item["name"]: item["value"] for item in summary.get("data") or ()}
        for summary in state.get("summaries") or ()
    }


def _times(summaries: _Summaries, path: Path) -> dict[str, Any]:
    mean_s, cpu_s = _number(summaries, MEAN), _number(summaries, CPU_MEAN)
    samples = finite(_samples(summaries, TIMES, path), 1e9)
    calls = 1
    if not samples:
        seconds = mean_s if mean_s is not None else cpu_s
        samples = finite([seconds] if seconds is not None else [], 1e9)
        calls = int(_number(summaries, COUNT) or 1)
    hot_s, rate = _number(summaries, HOT), _number(summaries, RATE)
    return {
        "samples_ns": samples,
        "clock_mhz": finite(_samples(summaries, CLOCKS, path), 1e-6),
        "calls_per_sample": calls,
        "hot_ns": hot_s * 1e9 if hot_s else None,
        "bytes": round(rate * mean_s) if rate and mean_s else 0,
    }


def _number(summaries: _Summaries, tag: str) -> float | None:
    """A value of a summary; None for NVBench's null, which stands for a number that is not finite."""
    value = summaries.get(tag, {}).get("value")
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) and number > 0 else None


def _samples(summaries: _Summaries, tag: str, path: Path) -> array.array[float]:
    """The float32 values of a sample file; empty if the file is missing.

    Raises ValueError for a file in another place than beside the JSON, or with a wrong number of samples.
    """
    found = summaries.get(tag)
    values = array.array("f")
    if not found:
        return values
    file = _beside(path, str(found["filename"]))
    if file is None:
        return values
    if file.stat().st_size > LARGEST_FILE:
        msg = f"{file.name} is larger than {LARGEST_FILE >> 20} MiB"
        raise ValueError(msg)
    values.frombytes(file.read_bytes())
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != int(found["size"]):
        msg = f"{file.name} holds {len(values)} samples, not {found['size']}"
        raise ValueError(msg)
    return values


def _beside(path: Path, name: str) -> Path | None:
    """The sample file `name` in a folder beside `path`; None without one.

    NVBench writes the path on its own machine, but the file may have been copied with the JSON.
    """
    folder = path.resolve().parent
    known = Path(name.replace("\\", "/"))
    places = [place.resolve() for place in (folder / known, folder.joinpath(*known.parts[-2:]))]
    inside = [place for place in places if place.is_relative_to(folder)]
    if not inside:
        msg = f"sample file {name} is not in the folder of {path.name}"
        raise ValueError(msg)
    return next((place for place in inside if place.is_file()), None)
