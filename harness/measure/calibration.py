"""Calibration workload: fixed work, timed at the start of a process, that tells a slower kernel from a slower host.

Its sizes never change, since calibrations of different days are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from opgauge.harness.result.result import Calibration
from opgauge.ops._core.backend import cupy

if TYPE_CHECKING:
    from opgauge.harness.measure.cuda import CudaTimer

REPEATS = 7
"""Repeats on the CPU; the median counts."""
CPU_BYTES = 8 << 20
"""Bytes of the copy: small, since a process pays for each page that it touches first."""
CPU_LENGTH, CPU_ROUNDS = 4096, 400
"""Doubles that fit the first cache, and how often they are multiplied and added to."""
CPU_CALLS = 5000
"""Empty calls per repeat."""
CUDA_BYTES = 256 << 20
"""Bytes of the copy on a GPU."""
CUDA_BLOCKS, CUDA_ROUNDS = 2048, 2048
"""Work of 4.3 G multiply-adds: 0.1 ms if every core is busy."""
CUDA_REPEATS = 15
"""Repeats on a GPU; the median counts."""


def calibrate_cpu() -> Calibration:
    """Calibration times of one thread; takes about 0.05 s."""
    source, target = np.ones(CPU_BYTES // 8), np.ones(CPU_BYTES // 8)
    values = np.linspace(0.0, 1.0, CPU_LENGTH)

    def arithmetic() -> None:
        for _ in range(CPU_ROUNDS):
            np.multiply(values, 0.5, out=values)
            np.add(values, 0.5, out=values)

    def calls() -> None:
        for _ in range(CPU_CALLS):
            _nothing()

    return Calibration(
        copy_ns=_median_ns(lambda: np.copyto(target, source)),
        arithmetic_ns=_median_ns(arithmetic),
        launch_ns=_median_ns(calls) / CPU_CALLS,
    )


def calibrate_cuda(timer: CudaTimer) -> Calibration:
    """Calibration times of a device; takes a few milliseconds. The copy is larger than the caches."""
    xp = cupy()
    with timer.session("numpy"):
        source, target = (xp.zeros(CUDA_BYTES, xp.uint8).data for _ in range(2))
        out = xp.zeros(1, xp.float32)
        copies, _ = timer.times(lambda: target.copy_from_device_async(source, CUDA_BYTES), CUDA_REPEATS)
        products, clocks = timer.times(lambda: timer.launch_arithmetic(out, CUDA_BLOCKS, CUDA_ROUNDS), CUDA_REPEATS)
        launches, _ = timer.times(timer.launch_empty, CUDA_REPEATS)
    return Calibration(median(copies), median(products), median(launches), round(median(clocks), 1))


def _nothing() -> None:
    """Do nothing: the timed call."""


def _median_ns(call: Callable[[], object]) -> float:
    call()
    found = []
    for _ in range(REPEATS):
        start = perf_counter_ns()
        call()
        found.append(perf_counter_ns() - start)
    return float(median(found))
