"""What this device reaches today: copy and write bandwidth, matrix rate, launch latency.

Measured, not taken from a data sheet, and in a worker: `LocalExecutor.ceilings`. The best of a
few repeats counts, for a ceiling is what can be reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.result import Ceilings
from ops import Device, dtype_info
from ops._core.backend import cupy

if TYPE_CHECKING:
    from harness.measure.cuda import CudaTimer

CPU_BYTES = 256 << 20
"""Larger than the caches of the CPUs that we know."""
CPU_MATRIX = 1024
CUDA_BYTES = 2 << 30
CUDA_MATRIX = 8192
REPEATS = 5
EMPTY_CALLS = 100_000


def measure(device: str) -> Ceilings:
    """Ceilings of `device`; at most 3 seconds on a CPU."""
    parsed = Device.parse(device)
    return _measure_cpu(device) if parsed.backend == "cpu" else _measure_cuda(device, parsed.index)


def _measure_cpu(device: str) -> Ceilings:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    source, target = np.ones(CPU_BYTES // 8), np.ones(CPU_BYTES // 8)
    pieces = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        copy_ns = _best_ns(lambda: list(pool.map(lambda pair: np.copyto(*pair), pieces)))
        write_ns = _best_ns(lambda: list(pool.map(lambda pair: pair[0].fill(1.0), pieces)))
    rates = {}
    for name in ("float32", "float64"):
        square = np.ones((CPU_MATRIX, CPU_MATRIX), name)
        rates[name] = 2 * CPU_MATRIX**3 / _best_ns(partial(np.matmul, square, square, out=np.empty_like(square)))
    empty: Callable[[], None] = partial(_nothing, out={})
    start = perf_counter_ns()
    for _ in range(EMPTY_CALLS):
        empty()
    launch_ns = (perf_counter_ns() - start) / EMPTY_CALLS
    return Ceilings(device, 2 * CPU_BYTES / copy_ns, CPU_BYTES / write_ns, rates, launch_ns)


def _nothing(*, out: dict[str, Any]) -> None:
    """An empty call, by keyword as kernels are called."""


def _best_ns(call: Callable[[], object]) -> float:
    call()
    best = float("inf")
    for _ in range(REPEATS):
        start = perf_counter_ns()
        call()
        best = min(best, perf_counter_ns() - start)
    return best


def _measure_cuda(device: str, index: int) -> Ceilings:
    from harness.measure.cuda import CudaTimer

    xp = cupy()
    timer = CudaTimer(index)
    with timer.session("numpy"):
        copy_gbps, write_gbps = _cuda_bandwidths(xp, timer)
        rates = {}
        for name in ("float16", "float32"):
            square = xp.ones((CUDA_MATRIX, CUDA_MATRIX), dtype_info(name).numpy)
            multiply = partial(xp.matmul, square, square, out=xp.empty_like(square))
            rates[name] = 2 * CUDA_MATRIX**3 / timer.best_ns(multiply, REPEATS)
        launch_ns = timer.best_ns(timer.launch_empty, 20 * REPEATS)
        xp.get_default_memory_pool().free_all_blocks()
    return Ceilings(device, copy_gbps, write_gbps, rates, launch_ns)


def _cuda_bandwidths(xp: Any, timer: CudaTimer) -> tuple[float, float]:
    free, _ = xp.cuda.runtime.memGetInfo()
    nbytes = min(CUDA_BYTES, free // 8) // 256 * 256
    source, target = xp.zeros(nbytes, xp.uint8).data, xp.zeros(nbytes, xp.uint8).data
    copy_ns = timer.best_ns(lambda: target.copy_from_device_async(source, nbytes), REPEATS)
    write_ns = timer.best_ns(lambda: target.memset_async(1, nbytes), REPEATS)
    return 2 * nbytes / copy_ns, nbytes / write_ns
