"""Wall and CPU time of a call on the CPU, and whether another process disturbed it."""

from __future__ import annotations

from time import perf_counter_ns, process_time_ns
from typing import NamedTuple, Self

from opgauge.harness.measure.cpu import switches_of_process


class CallTime(NamedTuple):
    """CPU time of all threads and wall time of a call, in ns; whether another process took a CPU from it."""

    cpu_ns: int
    wall_ns: int
    disturbed: bool = False


class Clocks(NamedTuple):
    """Readings of both clocks and of the counter of switches."""

    cpu_ns: int
    wall_ns: int
    switches: int

    @classmethod
    def now(cls) -> Self:
        """The present moment."""
        switches = switches_of_process()
        return cls(process_time_ns(), perf_counter_ns(), switches)

    def passed(self) -> CallTime:
        """Times since this moment."""
        wall_ns, cpu_ns = perf_counter_ns() - self.wall_ns, process_time_ns() - self.cpu_ns
        return CallTime(cpu_ns, wall_ns, switches_of_process() > self.switches)
