"""CPUs of this host: those that a gate may use, and how much others use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opgauge.harness.run.execute import LocalExecutor


def available_cpus() -> frozenset[int]:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


@contextmanager
def busy_share(cpus: frozenset[int], executors: Collection[LocalExecutor]) -> Iterator[Callable[[], float]]:
    """Share of CPUs that other processes than these and this one used meanwhile; 0 if unknown."""
    before_s, before_own_s, started = _used_s(cpus), _own_s(executors), monotonic()
    found = 0.0
    yield lambda: found
    elapsed_s = monotonic() - started
    after_s = _used_s(cpus)
    if before_s is not None and after_s is not None and elapsed_s > 0 and cpus:
        others_s = (after_s - before_s) - (_own_s(executors) - before_own_s)
        found = min(1.0, max(0.0, others_s) / (elapsed_s * len(cpus)))


def _used_s(cpus: frozenset[int]) -> float | None:
    """Seconds that CPUs were not idle since boot; None if the system does not report them."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    ticks = 0
    for line in lines:
        name, *values = line.split()
        if name.removeprefix("cpu").isdigit() and int(name.removeprefix("cpu")) in cpus:
            # user, nice, system, idle, iowait, irq, softirq, steal
            ticks += sum(int(value) for place, value in enumerate(values[:8]) if place not in (3, 4))
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_s(executors: Collection[LocalExecutor]) -> float:
    """Seconds of CPU time of processes and this one."""
    return sum(executor.cpu_s() for executor in executors) + sum(os.times()[:2])
