"""Wall and CPU time of a call on the CPU, and whether another process disturbed it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple, Self

from opgauge.harness.measure.cpu import switches_of_process

TASKS = Path("/proc/self/task")
"""Folder of Linux with the state of each thread of this process."""
MANY_THREADS = 1.3
"""CPU time per wall time above which a kernel uses several threads."""
MOST_WAITED = 0.1
"""Largest share of a call's time that its threads may wait for a CPU, summed, without being disturbed."""


class CallTime(NamedTuple):
    """CPU time of all threads and wall time of a call, in ns; whether another process took a CPU from it."""

    cpu_ns: int
    wall_ns: int
    disturbed: bool = False

    @property
    def uses_several_threads(self) -> bool:
        """Whether more than one thread worked."""
        return self.cpu_ns > MANY_THREADS * self.wall_ns

    def of_each(self, calls: int) -> Self:
        """Mean time of each of several calls."""
        return self._replace(cpu_ns=self.cpu_ns // calls, wall_ns=self.wall_ns // calls)


class Clocks(NamedTuple):
    """Readings of both clocks, of the counter of switches and, where asked for, of the threads' waiting."""

    cpu_ns: int
    wall_ns: int
    switches: int
    waited_ns: int | None = None

    @classmethod
    def now(cls, *, with_waits: bool = False) -> Self:
        """The present moment. with_waits: read how long threads have waited for a CPU; it takes 20 µs per thread."""
        waited_ns = scheduled_ns(TASKS).waited_ns if with_waits else None
        switches = switches_of_process()
        return cls(process_time_ns(), perf_counter_ns(), switches, waited_ns)

    def passed(self) -> CallTime:
        """Times since this moment."""
        wall_ns, cpu_ns = perf_counter_ns() - self.wall_ns, process_time_ns() - self.cpu_ns
        disturbed = switches_of_process() > self.switches
        if self.waited_ns is not None:
            disturbed |= scheduled_ns(TASKS).waited_ns - self.waited_ns > MOST_WAITED * wall_ns
        return CallTime(cpu_ns, wall_ns, disturbed)


class ScheduledTime(NamedTuple):
    """Time for which threads ran, and for which they could run and had no CPU, in ns."""

    ran_ns: int
    waited_ns: int


def scheduled_ns(tasks: Path) -> ScheduledTime:
    """Times of the threads in a process's folder of tasks, summed; 0 on systems that do not tell.

    A thread that wakes and finds its CPU taken waits without an involuntary switch.
    """
    ran_ns = waited_ns = 0
    for task in tasks.glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            ran, waited = task.read_text(encoding="ascii").split()[:2]
            ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    return ScheduledTime(ran_ns, waited_ns)
