"""Threads that a kernel leaves behind: one that waits, or works within calls, is harmless.

Libraries start threads when they compile and let them wait for the next compilation; kernels may share their work among
threads of a pool. A kernel that computes in a thread between calls, or after they have returned, is timed for less than
its work. The CPU time of each thread while nobody calls the kernel tells them apart.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from opgauge.harness.result.time_text import time_text
from opgauge.harness.worker.child_processes import children_ns

SPARE_NS, SPARE_SHARE = 1_000_000, 0.002
"""CPU time of a thread that waits: for a message from a compiler, and the share for waking up now and then."""
LAST_NS = 50_000
"""CPU time of a thread that reports its work and begins to wait when a call has returned."""
TICK_NS = 10_000_000
"""Resolution of the CPU time of systems that count ticks: one may fall on a thread by chance."""
TASKS = Path("/proc/self/task")
"""Folder of Linux with the state of each thread, native ones included."""


class Snapshot(NamedTuple):
    """A moment, and the CPU time of each thread until then, by the thread's identifier. clocks: of the threads."""

    at_ns: int
    used_ns: Mapping[int, int]
    clocks: Mapping[int, int]

    @classmethod
    def read(cls, clocks: Mapping[int, int]) -> Self:
        """The present CPU time of each thread; 0 of threads that have ended, or whose clock the system lacks."""
        used = dict.fromkeys(clocks, 0)
        for identifier, clock in clocks.items():
            with suppress(OSError, OverflowError):
                used[identifier] = time.clock_gettime_ns(clock) if clock else 0
        return cls(time.perf_counter_ns(), used, clocks)


class LeftThreads:
    """Python threads that were started since this object was created."""

    def __init__(self) -> None:
        self._before = _identifiers()
        self.begin()

    def begin(self) -> None:
        """Count from now on: until here, in `prepare` and the first call, threads may compile."""
        self._resting: Snapshot | None = None
        self._rests = self._rested_ns = 0
        self._worked = Counter[int]()

    def rest(self) -> None:
        """Count the CPU time of threads until `resume`: nobody calls the kernel."""
        if self._resting is None:
            self._resting = self.snapshot()

    def resume(self, *, alone: bool = True) -> None:
        """Let threads work, for the kernel is called. alone: no other kernel has been called, and started threads."""
        begun, self._resting = self._resting, None
        if begun is not None:
            if not alone:
                self._before |= _identifiers() - begun.used_ns.keys()
            # no new list of threads: it raises an audit event, upon which a hook could compute with changed inputs
            now = Snapshot.read(begun.clocks)
            self._rests, self._rested_ns = self._rests + 1, self._rested_ns + now.at_ns - begun.at_ns
            self._worked.update(_worked(begun, now))

    def snapshot(self) -> Snapshot:
        """The present CPU time of each thread; 0 on systems without clocks of threads."""
        clocks: dict[int, int] = {}
        for identifier in _identifiers() - self._before:
            clocks[identifier] = 0
            with suppress(OSError, AttributeError):
                clocks[identifier] = time.pthread_getcpuclockid(identifier)
        return Snapshot.read(clocks)

    def working(self, since: Snapshot | None = None) -> str:
        """Description of the threads that have worked since `since`, or while they should rest; empty without any."""
        if since is None:
            worked, spare_ns = dict(self._worked), SPARE_SHARE * self._rested_ns + LAST_NS * self._rests
        else:
            now = self.snapshot()
            worked, spare_ns = _worked(since, now), SPARE_SHARE * (now.at_ns - since.at_ns)
        found = []
        for identifier, worked_ns in worked.items():
            if worked_ns > SPARE_NS + spare_ns + (TICK_NS if worked_ns % TICK_NS == 0 else 0):
                found.append(f"{_name(identifier)}, {time_text(worked_ns)} of CPU time")
        threads = f"left {len(found)} thread{'s' * (len(found) != 1)} working between its calls"
        return f"{threads} ({'; '.join(found[:3])})" if found else ""

    def names(self) -> list[str]:
        """Names of the threads that have not ended."""
        return sorted(map(_name, self.snapshot().used_ns))


def _worked(begun: Snapshot, ended: Snapshot) -> dict[int, int]:
    """CPU time of each thread between two snapshots; systems use the identifier of a thread that ended again."""
    return {one: max(used - begun.used_ns.get(one, 0), 0) for one, used in ended.used_ns.items()}


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
