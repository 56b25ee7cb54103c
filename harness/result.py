"""What is measured and what becomes of it: trials, checks, measurements, results.

All of it is plain data, and goes to JSON and back (`to_json`, `from_json` of this
module) without loss: infinities are written as strings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from harness.case import Case
from harness.casejson import case_from_json, case_to_json

Record = TypeVar("Record")


class Status(StrEnum):
    """What became of a trial."""

    OK = "ok"
    WRONG = "wrong"
    ERROR = "error"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Trial:
    """The unit of work: a case by one implementation on one device (`cpu`, `cuda:0`)."""

    case: Case
    implementation: str
    backend: str
    device: str


@dataclass(frozen=True)
class Check:
    """How far the outputs are from the float64 reference.

    max_abs_error, max_rel_error: over all outputs; relative to the reference's element,
    or to the output's scale where that is larger.
    worst: largest error as a multiple of the allowed bound; ok means <= 1.
    reason: empty when ok, else what is wrong, in one sentence.
    """

    ok: bool
    max_abs_error: float
    max_rel_error: float
    worst: float
    reason: str = ""


@dataclass(frozen=True)
class Measurement:
    """Raw timings of one block.

    samples_ns: wall time of one call, cold (CUDA: L2 flushed, launch gaps kept out), in
        order. cpu_ns: CPU time of one call, where the timer gives it.
    calls_per_sample: calls that one sample averages over.
    hot_ns: one call in a back-to-back run with warm caches (CUDA: a graph's replay), or None.
    clock_mhz: SM clock per sample where known. dropped: samples dropped for a throttled clock.
    timer: name and version of the method. warmup: calls before the first sample.
    peak_bytes: device memory beyond inputs, outputs and workspace, or None.
    threads: CPU threads in use.
    """

    samples_ns: tuple[float, ...]
    timer: str
    warmup: int
    calls_per_sample: int = 1
    cpu_ns: tuple[float, ...] = ()
    hot_ns: float | None = None
    clock_mhz: tuple[float, ...] = ()
    dropped: int = 0
    peak_bytes: int | None = None
    threads: int | None = None

    @property
    def median_ns(self) -> float:
        """Median of the samples, in nanoseconds."""
        ordered = sorted(self.samples_ns)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class Result:
    """What became of a trial.

    bytes, flops: the op's least work. fell_back: the CPU's kernel stood in.
    deterministic: as the kernel declares. reason: why it is not ok.
    extra: plain JSON (finite numbers) that explains: `phase` in which it failed, `log`
        (the end of what the worker printed), `phases_s` (seconds by phase),
        `repeatable` (false where calls left different bits, all of them right).
    """

    trial: Trial
    status: Status
    reason: str = ""
    check: Check | None = None
    measurement: Measurement | None = None
    bytes: int = 0
    flops: int = 0
    fell_back: bool = False
    deterministic: bool = True
    block: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceilings:
    """What a device reached in this run; None where not measured.

    copy_gbps: large copy, read plus written, GB/s. write_gbps: large fill, GB/s.
    matrix_gflops: square matrix product, by dtype name. launch_ns: an empty kernel or call.
    """

    device: str
    copy_gbps: float | None = None
    write_gbps: float | None = None
    matrix_gflops: Mapping[str, float] = field(default_factory=dict)
    launch_ns: float | None = None


@dataclass(frozen=True)
class Environment:
    """Where a run took place.

    `hard` decides whether results may be compared in time (CPU or GPU model, driver
    major, MIG …); `soft` is the rest (versions, clocks, host name, commit).
    """

    hard: Mapping[str, str]
    soft: Mapping[str, str]

    def hard_of(self, device: str) -> dict[str, str]:
        """What decides for results of one device: the entries that begin with its name."""
        prefix = f"{device}."
        return {key.removeprefix(prefix): value for key, value in self.hard.items() if key.startswith(prefix)}

    @property
    def commit(self) -> str:
        """Commit of the measured tree, with `-dirty` where it was; empty when unknown."""
        return self.soft.get("commit", "")


def to_json(record: Any) -> dict[str, Any]:
    """A record of this module as plain JSON; what is not finite becomes "inf", "-inf" or "nan"."""
    return {item.name: _encode(getattr(record, item.name)) for item in fields(record)}


def from_json(kind: type[Record], data: Mapping[str, Any]) -> Record:
    """The record of type `kind` that `to_json` wrote; raises CaseError, KeyError or ValueError if it did not."""
    hints = _hints(cast("Any", kind))
    return kind(**{name: _decode(hints[name], value) for name, value in data.items()})


def _encode(value: Any) -> Any:
    if isinstance(value, Case):
        return case_to_json(value)
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _decode(hint: Any, value: Any) -> Any:
    if isinstance(hint, UnionType):
        return None if value is None else _decode(get_args(hint)[0], value)
    origin = get_origin(hint)
    if origin is tuple:
        return tuple(_decode(get_args(hint)[0], item) for item in value)
    if origin is Mapping:
        return {key: _decode(get_args(hint)[1], item) for key, item in value.items()}
    if hint is Case:
        return case_from_json(value)
    if is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value)
    return value if hint in (Any, bool, int, str) else hint(value)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
