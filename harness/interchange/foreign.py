"""Foreign results: cases of the op `imported`, results and a run, from the points that readers return."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opgauge.harness.case.case import IMPORTED, Case, Imported
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Environment, Measurement, Result, Status, Trial
from opgauge.harness.result.submission import FORMAT, Submission, read_submission

UNSPECIFIED = "unspecified"
"""Dtype of a benchmark that names none."""
NAMESPACE = uuid.UUID("6f1b0c1e-7c0b-5e0a-9a5c-0f6c2f0d7c11")
"""Namespace of the ids of imported runs."""
NAME_LENGTH = 500
"""Longest name of a case."""
_DTYPES = {
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "half": "float16",
    "__half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
}


@dataclass(frozen=True)
class ForeignPoint:
    """One benchmark as another tool measured it. samples_ns: empty if it failed, for `reason`.

    calls_per_sample: calls that one sample averages. axes: its parameters, as text.
    """

    benchmark: str
    samples_ns: Sequence[float]
    axes: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str = UNSPECIFIED
    cpu_ns: Sequence[float] = ()
    clock_mhz: Sequence[float] = ()
    calls_per_sample: int = 1
    hot_ns: float | None = None
    threads: int | None = None
    bytes: int = 0
    status: Status = Status.OK
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name in the form of our own cases: varied parameters in brackets."""
        shown = ",".join(f"{key}={value}" for key, value in self.axes.items())
        return (f"{self.benchmark}[{shown}]" if shown else self.benchmark)[:NAME_LENGTH]


def dtype_of(name: str) -> str:
    """Our name of another tool's type."""
    known = _DTYPES.get(name, name)
    return known if known in set(_DTYPES.values()) else UNSPECIFIED


def make_run(
    tool: str,
    timer: str,
    points: Iterable[ForeignPoint],
    *,
    started: datetime,
    environment: Environment,
    content: bytes,
) -> Submission:
    """A run of these points, checked like a submission. Its id is a hash of the file, so the file is stored once."""
    seen: Counter[tuple[str, str]] = Counter()
    results = []
    for point in points:
        result = _result(tool, timer, point, block=seen[point.name, point.device])
        seen[point.name, point.device] += 1
        results.append(to_json(result))
    head = {
        "id": str(uuid.uuid5(NAMESPACE, f"{tool} {content.hex()}")),
        "started": started.isoformat(),
        "status": "imported",
        "command": f"imported from {tool}",
        "environment": to_json(environment),
    }
    return read_submission({"opgauge": FORMAT, "run": head, "ceilings": [], "results": results})


def finite(values: Iterable[Any], factor: float = 1.0) -> tuple[float, ...]:
    """The positive numbers among `values`, scaled: tools write NaN if their clock failed."""
    scaled = (float(value) * factor for value in values if isinstance(value, int | float))
    return tuple(value for value in scaled if math.isfinite(value) and value > 0)


def _result(tool: str, timer: str, point: ForeignPoint, *, block: int) -> Result:
    params = Imported(tool, point.benchmark, {str(key): str(value) for key, value in point.axes.items()})
    case = Case(IMPORTED, point.name, {}, point.dtype, params, tags=(tool,))
    trial = Trial(case, tool, point.device.partition(":")[0], point.device)
    if point.status is not Status.OK or not point.samples_ns:
        status = Status.ERROR if point.status is Status.OK else point.status
        return Result(trial, status, point.reason or "no time was measured", block=block, extra=point.extra)
    measurement = Measurement(
        samples_ns=tuple(point.samples_ns),
        timer=timer,
        warmup=0,
        calls_per_sample=point.calls_per_sample,
        cpu_ns=tuple(point.cpu_ns),
        hot_ns=point.hot_ns,
        clock_mhz=tuple(point.clock_mhz),
        threads=point.threads,
    )

    return Result(trial, Status.OK, measurement=measurement, bytes=point.bytes, block=block, extra=point.extra)
