"""Kernels of a call, from CUPTI's activity records (package cupti-python).

Records cover the whole process and disturb timing, so a profiling process takes no timings. A call's records lie
between those of the timer's kernels `spin` and `empty`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, NamedTuple

from opgauge.harness.measure.footprint import COPY, FILL, demangle
from opgauge.harness.result.result import KernelUse, Profile
from opgauge.ops import BackendError

BUFFER_BYTES = 8 << 20
"""Bytes of a buffer for records."""
KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
"""Kinds of activity that are recorded."""
BEGIN, END = "spin", "empty"
"""The timer's kernels before and after a call."""
MISSING = "kernel lists need CUPTI, by the package cupti-python: pip install cupti-python"
"""Message if the package is not installed."""
Size = tuple[int, ...]


class Record(NamedTuple):
    """One kernel, copy or fill as it ran; fields that only kernels have are None for copies and fills."""

    name: str
    start_ns: int
    end_ns: int
    grid: Size | None = None
    block: Size | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    local_bytes: int | None = None

    @property
    def time_ns(self) -> int:
        """Duration in nanoseconds."""
        return self.end_ns - self.start_ns


class Collector:
    """Collects the records of this process from its creation on. Raises BackendError if CUPTI cannot be used."""

    def __init__(self) -> None:
        self._cupti = load()
        self._records: list[Record] = []
        self._guard(lambda: self._cupti.activity_register_callbacks(_buffer, self._keep))
        for name in KINDS:
            kind = getattr(self._cupti.ActivityKind, name)
            self._guard(lambda kind=kind: self._cupti.activity_enable(kind))  # type: ignore[misc]
        self.tool = f"cupti-python {_version()}"

    def take(self) -> list[Record]:
        """The records since the last call; the device must be idle."""
        self._guard(lambda: self._cupti.activity_flush_all(1))
        found, self._records = self._records, []
        return found

    def _keep(self, activities: Iterable[Any]) -> None:
        self._records.extend(_record(self._cupti.ActivityKind, activity) for activity in activities)

    def _guard(self, ask: Callable[[], object]) -> None:
        """Run `ask`; raises BackendError for CUPTI's error, which does not tell missing rights from missing devices."""
        try:
            ask()
        except self._cupti.cuptiError as error:
            msg = f"CUPTI cannot be used here: {error}"
            raise BackendError(msg) from error


def load() -> Any:
    """CUPTI's module; raises BackendError with the package to install if it is missing."""
    try:
        return import_module("cupti.cupti")
    except (ImportError, OSError, RuntimeError) as error:
        msg = f"{MISSING} ({error})"
        raise BackendError(msg) from error


def _version() -> str:
    try:
        return version("cupti-python")
    except PackageNotFoundError:
        return ""


def _buffer() -> tuple[int, int]:
    """Bytes of a buffer for records, and the most records in it (0: as many as fit)."""
    return BUFFER_BYTES, 0


def _record(kinds: Any, activity: Any) -> Record:
    if activity.kind == kinds.MEMCPY:
        return Record(COPY, activity.start, activity.end)
    if activity.kind == kinds.MEMSET:
        return Record(FILL, activity.start, activity.end)
    return Record(
        activity.name or "?",
        activity.start,
        activity.end,
        (activity.grid_x, activity.grid_y, activity.grid_z),
        (activity.block_x, activity.block_y, activity.block_z),
        activity.registers_per_thread,
        activity.static_shared_memory + activity.dynamic_shared_memory,
        activity.local_memory_per_thread,
    )


def split_calls(records: Iterable[Record]) -> list[list[Record]]:
    """The records of each call, in order of start: those between `spin` and the next `empty`."""
    calls: list[list[Record]] = []
    current: list[Record] | None = None
    for record in sorted(records, key=lambda record: record.start_ns):
        if record.name == BEGIN:
            current = []
        elif current is not None and record.name == END:
            calls.append(current)
            current = None
        elif current is not None:
            current.append(record)
    return calls


def empty_ns(records: Iterable[Record]) -> float | None:
    """Median time of the timer's empty kernels; None without any."""
    times = [record.time_ns for record in records if record.name == END]
    return float(median(times)) if times else None


def summarize(calls: Sequence[Sequence[Record]], tool: str) -> Profile:
    """The profile of equal calls.

    Calls that ran other kernels than the majority, such as a first call that autotunes, are excluded.
    """
    orders = Counter(_order(call) for call in calls)
    if not orders:
        return Profile(tool=tool, reason="no call was recorded")
    usual = orders.most_common(1)[0][0]
    if not usual:
        return Profile(tool=tool, reason="the call launches nothing")
    kept = [call for call in calls if _order(call) == usual]
    total = median(sum(record.time_ns for record in call) for call in kept)
    times = {name: _time_ns(name, kept) for name in dict.fromkeys(usual)}
    whole = sum(times.values()) or 1.0
    uses = [_use(name, kept[-1], time_ns, time_ns / whole) for name, time_ns in times.items()]
    return Profile(tuple(sorted(uses, key=lambda use: -use.time_ns)), float(total), len(kept), tool)


def _time_ns(name: str, calls: Sequence[Sequence[Record]]) -> float:
    """Median over calls of the total time of one kernel's launches."""
    return float(median(sum(record.time_ns for record in call if record.name == name) for call in calls))


def _use(name: str, call: Sequence[Record], time_ns: float, share: float) -> KernelUse:
    launches = [record for record in call if record.name == name]
    longest = max(launches, key=lambda record: record.time_ns)
    return KernelUse(demangle(name), len(launches), time_ns, share, *longest[3:])


def _order(call: Sequence[Record]) -> tuple[str, ...]:
    return tuple(record.name for record in call)
