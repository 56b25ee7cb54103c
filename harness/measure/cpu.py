"""Wall and CPU time of calls on the CPU."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from math import ceil
from time import perf_counter_ns, process_time_ns
from typing import Any

from opgauge.harness.measure.calibration import calibrate_cpu
from opgauge.harness.measure.timer import Hooks, Limits, Timed, TimedHooks
from opgauge.harness.result.result import Calibration, Measurement
from opgauge.ops import Bound

SAMPLE_NS = 1_000_000
"""Least duration of a sample, so that the cost of reading the clock is negligible."""
MAX_CALLS = 100_000
"""Most calls per sample."""
LEAST_WARM_UP, WARM_UP_CPU_NS = 3, 20_000_000
"""Least calls that decide how many a sample has, and CPU time after which fewer are enough.

A first call that waits for its CPU may outlast the warm-up: samples of one call would follow, however short it is.
"""
MOST_REPEATED = 0.5
"""Most repeated samples per kept sample; samples are repeated if other processes used the cores."""
LONG_NS = 20_000_000
"""Duration above which garbage collection visits some ten thousands of objects: more than a trial allocates."""


class CpuTimer:
    """`perf_counter_ns` around enough calls to reach 1 ms, or one call, whichever is longer."""

    name = "cpu-wall/1"

    def session(self, arrays: str) -> AbstractContextManager[None]:
        """Do nothing: there is no device to select."""
        del arrays
        return nullcontext()

    def synchronize(self) -> None:
        """Do nothing: a call has run when it returns."""

    def calibrate(self) -> Calibration:
        """Time a copy, some arithmetic and empty calls."""
        return calibrate_cpu()

    def times(
        self, call: Callable[[], object], repeats: int, *, flush: bool = False
    ) -> tuple[list[float], list[float]]:
        """Wall times of single calls; caches are as the previous call left them."""
        del flush
        found = []
        for _ in range(repeats):
            start = perf_counter_ns()
            call()
            found.append(float(perf_counter_ns() - start))
        return found, []

    def measure(
        self,
        call: Bound,
        limits: Limits,
        hooks: Hooks | None = None,
        places: Sequence[Bound] = (),  # noqa: ARG002  of a GPU's hot times
    ) -> Timed:
        """Warm up by time, then sample with the garbage collector disabled."""
        around = TimedHooks(hooks)
        with no_garbage_collection(collect_first=limits.calls is None):
            warmup, one_ns, returned = _warm_up(call, limits)
            calls = limits.calls or min(max(ceil(SAMPLE_NS / max(one_ns, 1)), 1), MAX_CALLS)
            wall: list[float] = []
            busy: list[float] = []
            repeated = contended = 0
            start = perf_counter_ns()
            while not limits.enough(len(wall), (perf_counter_ns() - start) / 1e9 - around.seconds):
                place = around.before()
                switches = switches_of_process()
                before, before_busy = perf_counter_ns(), process_time_ns()
                for _ in repeat(None, calls):
                    returned = call()
                seen = place.look(returned)  # timed, as is work that begins when outputs are read
                after, after_busy = perf_counter_ns(), process_time_ns()
                is_contended = switches_of_process() > switches
                around.after(returned, seen)
                if is_contended and repeated < MOST_REPEATED * (1 + len(wall)):
                    repeated += 1
                    continue
                contended += is_contended
                wall.append((after - before) / calls)
                busy.append((after_busy - before_busy) / calls)
        measurement = Measurement(
            samples_ns=tuple(wall),
            timer=self.name,
            warmup=warmup,
            calls_per_sample=calls,
            cpu_ns=tuple(busy),
            threads=threads_in_use(),
            dropped=repeated,
            contended=contended,
        )
        return Timed(measurement, returned)


def switches_of_process() -> int:
    """Number of involuntary context switches of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def waits_of_thread() -> int:
    """Number of voluntary context switches of this thread, where the system counts them: it waited for others."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nvcsw


def threads_in_use() -> int:
    """CPUs available to this process, or Numba's threads if those are fewer."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    numba: Any = sys.modules.get("numba")
    return min(affinity, int(numba.get_num_threads())) if hasattr(numba, "get_num_threads") else affinity


def _warm_up(call: Bound, limits: Limits) -> tuple[int, float, Any]:
    """Call for a while, or a few times to measure the duration: number of calls, least time in ns, last value."""
    count, fastest, returned = 0, float("inf"), None
    least = 0 if limits.calls else LEAST_WARM_UP
    after, busy = perf_counter_ns(), process_time_ns()
    end = after + int(limits.warmup_s * 1e9)
    while after < end or count < least:
        before = perf_counter_ns()
        returned = call()
        after = perf_counter_ns()
        count, fastest = count + 1, min(fastest, after - before)
        if count < least and process_time_ns() - busy > WARM_UP_CPU_NS:
            least = 0
    return count, fastest, returned


@contextmanager
def no_garbage_collection(*, collect_first: bool) -> Iterator[None]:
    """Disable the garbage collector, after one collection if `collect_first`."""
    enabled = gc.isenabled()
    if collect_first:
        _collect_garbage()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _collect_garbage() -> None:
    """Collect garbage, and exempt the surviving objects from later collections if it took long.

    Imports, compilers and their caches survive: with torch's compiler loaded, a collection takes 200 ms before each
    trial, a fifth of a run.
    """
    start = perf_counter_ns()
    gc.collect()
    if perf_counter_ns() - start > LONG_NS:
        gc.freeze()
