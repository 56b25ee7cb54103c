"""Slows kernels down by a share of their own time, in the worker processes of `opgauge inject`.

A process that imports this module with the variable `OPGAUGE_PLANTED_SLOWDOWN` slows down the kernels that it names.

On the CPU, a call is followed by spinning for the share of its time; on CUDA by a kernel that waits for the share of a
cold call's time, less the cost of one more launch. If that launch alone costs more than the share, the slowdown is
larger than requested; the actual one is measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from opgauge.harness.measure.cuda import CudaTimer
from opgauge.ops._core.backend import cupy
from opgauge.ops._core.kernel import Bound, Kernel
from opgauge.ops._core.registry import _KERNELS

VARIABLE = "OPGAUGE_PLANTED_SLOWDOWN"
"""Environment variable: JSON of the arguments of `plant`."""
Slowed = tuple[str, str, str]
"""Op, implementation and backend."""
REPEATS = 15
"""Timed calls; the least or the median counts."""
SOME_CYCLES = 100_000
"""Cycles of waiting from which the duration of a cycle is computed."""


def environment(shares: Mapping[Slowed, float]) -> dict[str, str]:
    """Variables under which a process that imports this module calls `plant` with these shares."""
    return {VARIABLE: json.dumps([(*key, share) for key, share in sorted(shares.items())])}


def plant(shares: Mapping[Slowed, float]) -> None:
    """Slow down kernels, each by a share of its time (0.05 is 5 %)."""
    for key, kernel in list(_KERNELS.items()):
        share = shares.get((key.op, key.implementation, key.backend))
        if share is not None:
            _KERNELS[key] = replace(kernel, function=partial(_bind, kernel, share), prepare=True)


def _bind(kernel: Kernel, slowdown: float, **arguments: Any) -> Bound:
    call: Bound = kernel.function(**arguments) if kernel.prepare else partial(kernel.function, **arguments)
    return slow_cpu(call, slowdown) if kernel.key.backend == "cpu" else _slow_cuda(call, slowdown)


def slow_cpu(call: Bound, slowdown: float) -> Bound:
    """The call, followed by spinning for a share of its time, less this function's own cost."""
    own_ns = _own_cost_ns()

    def run() -> Any:
        start = perf_counter_ns()
        returned = call()
        end = perf_counter_ns()
        until = end + (end - start) * slowdown - own_ns
        while perf_counter_ns() < until:
            pass
        return returned

    return run


def _own_cost_ns() -> float:
    """Cost of `run` around a call, in nanoseconds."""

    def nothing() -> None:
        """Do nothing: the cheapest call."""

    def run() -> Any:
        start = perf_counter_ns()
        returned = nothing()  # type: ignore[func-returns-value]
        end = perf_counter_ns()
        until = end + (end - start) * 0.0
        while perf_counter_ns() < until:
            pass
        return returned

    return max(0.0, _fastest_ns(run) - _fastest_ns(nothing))


def _fastest_ns(call: Callable[[], Any], calls: int = 200) -> float:
    found = []
    for _ in range(REPEATS):
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        found.append((perf_counter_ns() - start) / calls)
    return min(found)


def _slow_cuda(call: Bound, slowdown: float) -> Bound:
    xp = cupy()
    source = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
    wait = xp.RawModule(code=source, options=("-std=c++17",)).get_function("wait")
    timer = CudaTimer(xp.cuda.Device().id)

    def time_ns(work: Callable[[], Any]) -> float:
        return median(timer.times(work, REPEATS, flush=True)[0])

    def both(cycles: int = 0) -> Any:
        returned = call()
        wait((1,), (1,), (np.int64(cycles),))
        return returned

    with timer.session("cupy"):
        long_ns = time_ns(lambda: wait((1,), (1,), (np.int64(10 * SOME_CYCLES),)))
        short_ns = time_ns(lambda: wait((1,), (1,), (np.int64(SOME_CYCLES),)))
        cycle_ns = (long_ns - short_ns) / (9 * SOME_CYCLES)
        missing_ns = time_ns(call) * (1 + slowdown) - time_ns(both)
    return partial(both, max(0, int(missing_ns / cycle_ns)))


if VARIABLE in os.environ:
    plant({(op, name, backend): share for op, name, backend, share in json.loads(os.environ[VARIABLE])})
