"""Threads that a kernel leaves behind: a thread that waits is harmless, one that works does so outside the timed calls.

Libraries start threads when they compile and let them wait for the next compilation. A kernel that computes in a thread
between calls, or after they have returned, is timed for less than its work. The CPU time of each thread tells the two
apart.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.child_processes import children_ns

SPARE_NS, SPARE_SHARE = 1_000_000, 0.002
"""CPU time of a thread that waits: for a message from a compiler, and the share for waking up now and then."""
TICK_NS = 10_000_000
"""Resolution of the CPU time of systems that count ticks: one may fall on a thread by chance."""
TASKS = Path("/proc/self/task")
"""Folder of Linux with the state of each thread, native ones included."""


class Snapshot(NamedTuple):
    """A moment, and the CPU time of each thread until then, by the thread's identifier."""

    at_ns: int
    used_ns: Mapping[int, int]


class LeftThreads:
    """Python threads that were started since this object was created."""

    def __init__(self) -> None:
        self._before = _identifiers()
        self._first = Snapshot(time.perf_counter_ns(), {})

    def begin(self) -> None:
        """Count from now on: until here, in `prepare` and the first call, threads may compile."""
        self._first = self.snapshot()

    def snapshot(self) -> Snapshot:
        """The present CPU time of each thread; 0 on systems without clocks of threads."""
        used: dict[int, int] = {}
        for identifier in _identifiers() - self._before:
            used[identifier] = 0
            with suppress(OSError, AttributeError):
                used[identifier] = time.clock_gettime_ns(time.pthread_getcpuclockid(identifier))
        return Snapshot(time.perf_counter_ns(), used)

    def working(self, since: Snapshot | None = None) -> str:
        """Description of the threads that have worked since `since`, or since `begin`; empty if all have waited."""
        begun, now = since or self._first, self.snapshot()
        spare_ns = SPARE_NS + SPARE_SHARE * (now.at_ns - begun.at_ns)
        found = []
        for identifier, used_ns in now.used_ns.items():
            worked_ns = used_ns - begun.used_ns.get(identifier, 0)
            if worked_ns > spare_ns + (TICK_NS if used_ns % TICK_NS == 0 else 0):
                found.append(f"{_name(identifier)}, {time_text(worked_ns)} of CPU time")
        threads = f"left {len(found)} thread{'s' * (len(found) != 1)} working after the first call"
        return f"{threads} ({'; '.join(found[:3])})" if found else ""

    def names(self) -> list[str]:
        """Names of the threads that have not ended."""
        return sorted(map(_name, self.snapshot().used_ns))


def others_ns() -> int:
    """CPU time of all threads of this process but the calling one, native ones included, and of its children."""
    return time.process_time_ns() - time.thread_time_ns() + children_ns()


def others_wait_for_cpu() -> bool:
    """Whether a thread of this process but the calling one could run, or runs; False on systems that do not tell."""
    calling = str(threading.get_native_id())
    with suppress(OSError):
        for task in TASKS.iterdir():
            with suppress(OSError):  # it has ended
                state = (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
                if state == "R" and task.name != calling:
                    return True
    return False


def _identifiers() -> frozenset[int]:
    """Identifiers of all threads that run Python code, also of those that `threading` does not list."""
    return frozenset(sys._current_frames())  # noqa: SLF001


def _name(identifier: int) -> str:
    """Name of a thread; of one that was started without `threading`, its identifier."""
    found = (thread.name for thread in threading.enumerate() if thread.ident == identifier)
    return next(found, f"thread {identifier}")
