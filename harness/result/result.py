"""Records of a run: trials, checks, measurements, results.

Records are plain data and convert to JSON and back without loss, see `record_json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from opgauge.harness.case.case import Case


class Status(StrEnum):
    """Outcome of a trial."""

    OK = "ok"
    WRONG = "wrong"
    ERROR = "error"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"


REFERENCE_FAILED = "the reference failed"
"""Beginning of the reason of a result for which no kernel is at fault."""


@dataclass(frozen=True)
class Trial:
    """The unit of work: a case by one implementation on one device (`cpu`, `cuda:0`)."""

    case: Case
    implementation: str
    backend: str
    device: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Case id, implementation and device, which identify a trial in a run."""
        return self.case.id, self.implementation, self.device


@dataclass(frozen=True)
class Check:
    """Distance of the outputs from the float64 reference.

    max_abs_error, max_rel_error: over all outputs; relative to the reference's element, or to the output's scale if
    that is larger. worst: largest error / bound; ok means at most 1. reason: empty if ok, else the fault in one
    sentence.
    """

    ok: bool
    max_abs_error: float
    max_rel_error: float
    worst: float
    reason: str = ""


@dataclass(frozen=True)
class Footprint:
    """Resources of one call, which have no noise; None if unknown.

    launches: kernels, copies and fills submitted to the device. kernels: their names in order, demangled, from the
    captured graph of a call. allocations: allocations from the library's memory pool, including outputs that a peer
    returns. registers: most per thread; spill_bytes: per thread, over all kernels; both from the compiler, and only
    for kernels of this project.
    """

    launches: int | None = None
    kernels: tuple[str, ...] | None = None
    allocations: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None


WITH_GAPS = " with launch gaps"
"""Suffix of a timer's name if launch gaps could not be excluded."""


@dataclass(frozen=True)
class Measurement:
    """Raw timings of one trial in one process.

    samples_ns: wall time of one call, cold (CUDA: L2 flushed, launch gaps excluded), in order. cpu_ns: CPU time of
    one call, if the timer measures it. calls_per_sample: calls that one sample averages. hot_ns: time per call in a
    back-to-back run with warm caches (CUDA: a graph's replay), or None; only noise if the footprint says that
    nothing was launched. clock_mhz: SM clock per sample, if known. dropped: samples repeated or discarded because
    the clock was throttled or other processes used the cores. contended: samples kept although other processes used
    the cores. timer: name and version of the method. warmup: calls before the first sample. peak_bytes: device
    memory beyond inputs, outputs and workspace, or None. threads: CPU threads in use. footprint: resources without
    noise; None on the CPU.
    """

    samples_ns: tuple[float, ...]
    timer: str
    warmup: int
    calls_per_sample: int = 1
    cpu_ns: tuple[float, ...] = ()
    hot_ns: float | None = None
    clock_mhz: tuple[float, ...] = ()
    dropped: int = 0
    contended: int = 0
    peak_bytes: int | None = None
    threads: int | None = None
    footprint: Footprint | None = None

    @property
    def has_gaps(self) -> bool:
        """Whether the samples include the host's time between launches."""
        return self.timer.endswith(WITH_GAPS)

    @property
    def median_ns(self) -> float:
        """Median of the samples, in nanoseconds."""
        ordered = sorted(self.samples_ns)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class KernelUse:
    """One kernel of a call, over all its launches; copies and fills have names in brackets.

    name: demangled and unescaped. launches, time_ns: of one call, in nanoseconds. share: of the time of all
    kernels, 0 to 1. grid, block, registers (per thread), shared_bytes (static and dynamic, per block), local_bytes
    (per thread): of the longest launch; None for copies and fills.
    """

    name: str
    launches: int
    time_ns: float
    share: float
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    local_bytes: int | None = None


@dataclass(frozen=True)
class Profile:
    """Device work of one call, recorded by a profiler in a process of its own.

    kernels: longest first. time_ns: median over `calls` cold calls of the sum of kernel times; None if nothing was
    recorded. empty_ns: an empty kernel's time by the same tool. tool: name and version. reason: why there is no
    list; empty otherwise.
    """

    kernels: tuple[KernelUse, ...] = ()
    time_ns: float | None = None
    calls: int = 0
    tool: str = ""
    reason: str = ""
    empty_ns: float | None = None

    @property
    def launches(self) -> int:
        """Number of kernels, copies and fills of one call."""
        return sum(kernel.launches for kernel in self.kernels)


@dataclass(frozen=True)
class Calibration:
    """Times of a calibration workload at the start of a process; a change between processes is the host's.

    Medians in nanoseconds. copy_ns: a copy through memory. arithmetic_ns: multiply-adds in registers or the first
    cache. launch_ns: an empty kernel, or an empty call on the CPU. clock_mhz: SM clock meanwhile, if known.
    """

    copy_ns: float
    arithmetic_ns: float
    launch_ns: float
    clock_mhz: float | None = None

    @property
    def level_ns(self) -> float:
        """Speed of memory and clock in one number: the geometric mean of copy and arithmetic.

        Launches are excluded: their time is too coarse to detect a change of a percent.
        """
        return math.sqrt(self.copy_ns * self.arithmetic_ns)


@dataclass(frozen=True)
class Result:
    """Outcome of a trial, with its check and measurement.

    bytes, flops: the op's least work. fell_back: the CPU's kernel ran instead. deterministic: as the kernel
    declares. reason: why the trial is not ok. block: number of the process that measured it. profile: the kernel
    list, if requested. ruler: calibration times of the process, on the trial's device. extra: plain JSON (finite
    numbers) with details: `phase` in which it failed, `log` (the end of the worker's output), `phases_s` (seconds
    by phase), `tuning` (requested launch parameters, by name), `repeatable` (false if calls gave different bits,
    all within the bound), `series` (drift or two modes of the samples, in words), `varied` (false if inputs could not
    change between samples).
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
    profile: Profile | None = None
    ruler: Calibration | None = None

    @property
    def host_gap_ns(self) -> float | None:
        """Cold time beyond the kernels' own time: gaps between launches; None without a kernel list."""
        if self.measurement is None or self.profile is None or self.profile.time_ns is None:
            return None
        return self.measurement.median_ns - self.profile.time_ns


@dataclass(frozen=True)
class Environment:
    """Hardware and software of a run.

    `hard` decides whether times are comparable (CPU or GPU model, driver major, MIG …); `soft` is the rest
    (versions, clocks, host name, project, commit).
    """

    hard: Mapping[str, str]
    soft: Mapping[str, str]

    def hard_of(self, device: str) -> dict[str, str]:
        """Hard entries of one device: the entries that begin with its name."""
        prefix = f"{device}."
        return {key.removeprefix(prefix): value for key, value in self.hard.items() if key.startswith(prefix)}

    def model(self, device: str) -> str:
        """Model of a device; empty if unknown."""
        return self.hard.get(f"{device}.model", "")

    @property
    def commit(self) -> str:
        """Commit of the measured tree, with the suffix `-dirty` for modified trees; empty if unknown."""
        return self.soft.get("commit", "")

    @property
    def project(self) -> str:
        """Name of the measured project; empty in runs stored without it."""
        return self.soft.get("project", "")

    @property
    def branch(self) -> str:
        """Branch of the measured tree; empty if unknown."""
        return self.soft.get("branch", "")

    @property
    def commit_time(self) -> str:
        """Time of the commit, ISO 8601 in UTC; empty if unknown."""
        return self.soft.get("commit_time", "")

    @property
    def is_dirty(self) -> bool:
        """Whether the measured files differed from the commit."""
        return self.soft.get("dirty") == "yes" or self.commit.endswith("-dirty")

    @property
    def opgauge(self) -> str:
        """Version of opgauge that measured; empty if unknown."""
        return self.soft.get("opgauge", "")
