"""What this device reaches today: copies and fills from 16 KiB up, matrix rate, launch latency.

Measured, not taken from a data sheet, and in a worker: `LocalExecutor.ceilings`. The best of a
few repeats counts, for a ceiling is what can be reached. Caches are as they are for cases: a CPU's
hold what the call before left in them, a GPU's are flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import repeat
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from opgauge.harness.result.result import Ceilings
from opgauge.ops import Device, dtype_info
from opgauge.ops._core.backend import cupy

if TYPE_CHECKING:
    from opgauge.harness.measure.cuda import CudaTimer

SIZES = tuple(1 << power for power in range(14, 33, 2))
"""Bytes moved: 16 KiB to 4 GiB, as far as memory allows."""
CPU_BYTES = 512 << 20
"""Larger than the caches of the CPUs that we know."""
CPU_MATRIX = 1024
CPU_ROWS = 64
"""Rows of independent multiply-adds: more than there are threads."""
CUDA_MATRIX = 8192
REPEATS = 5
COLD_REPEATS = 15
EMPTY_CALLS = 100_000
SAMPLE_NS = 200_000


def measure(device: str) -> Ceilings:
    """Ceilings of `device`; at most 5 seconds on a CPU."""
    parsed = Device.parse(device)
    return _measure_cpu(device) if parsed.backend == "cpu" else _measure_cuda(device, parsed.index)


def _measure_cpu(device: str) -> Ceilings:
    from opgauge.harness.measure import jit

    source, target = np.ones(CPU_BYTES // 8), np.ones(CPU_BYTES // 8)
    sizes = [size for size in SIZES if size <= CPU_BYTES]
    copies_ns, writes_ns, reads_ns = [], [], []
    for size in sizes:
        reads_ns.append(min(_best_ns(way) for way in (partial(jit.read, target[: size // 8]), target[: size // 8].max)))
        read, written, filled = source[: size // 16], target[: size // 16], target[: size // 8]
        ways = (partial(np.copyto, written, read), partial(jit.copy, read, written))
        copies_ns.append(min(_best_ns(way) for way in ways))
        ways = (partial(filled.fill, 1.0), partial(jit.fill, filled, 1.0))
        writes_ns.append(min(_best_ns(way) for way in ways))
    rates = {}
    for name in ("float32", "float64"):
        square = np.ones((CPU_MATRIX, CPU_MATRIX), name)
        product = 2 * CPU_MATRIX**3 / _best_ns(partial(np.matmul, square, square, out=np.empty_like(square)))
        blocks = np.full((CPU_ROWS, jit.LANES), 0.5, name)
        rounds = max(CPU_MATRIX, 1)
        rates[name] = max(product, 2 * blocks.size * rounds / _best_ns(partial(jit.multiply_add, blocks, rounds)))
    empty: Callable[[], None] = partial(_nothing, out={})
    start = perf_counter_ns()
    for _ in range(EMPTY_CALLS):
        empty()
    launch_ns = (perf_counter_ns() - start) / EMPTY_CALLS
    found = Ceilings(device, None, None, rates, launch_ns)
    return _with_bandwidths(found, sizes, copies_ns, writes_ns, reads_ns)


def _with_bandwidths(
    found: Ceilings,
    sizes: Sequence[int],
    copies_ns: Sequence[float],
    writes_ns: Sequence[float],
    reads_ns: Sequence[float],
) -> Ceilings:
    return replace(
        found,
        copy_gbps=sizes[-1] / copies_ns[-1],
        write_gbps=sizes[-1] / writes_ns[-1],
        sizes=tuple(sizes),
        copies_ns=tuple(copies_ns),
        writes_ns=tuple(writes_ns),
        reads_ns=tuple(reads_ns),
    )


def _nothing(*, out: dict[str, Any]) -> None:
    """An empty call, by keyword as kernels are called."""


def _best_ns(call: Callable[[], object]) -> float:
    """Shortest time of a call, of as many at once as the clock needs."""
    call()
    start = perf_counter_ns()
    call()
    calls = max(SAMPLE_NS // max(perf_counter_ns() - start, 1), 1)
    best = float("inf")
    for _ in range(REPEATS):
        start = perf_counter_ns()
        for _ in repeat(None, calls):
            call()
        best = min(best, (perf_counter_ns() - start) / calls)
    return best


def _measure_cuda(device: str, index: int) -> Ceilings:
    from opgauge.harness.measure.cuda import CudaTimer

    xp = cupy()
    timer = CudaTimer(index)
    with timer.session("numpy"):
        ladder = _cuda_ladder(xp, timer)
        rates = {}
        for name in ("float16", "float32", "float64"):
            square = xp.ones((CUDA_MATRIX, CUDA_MATRIX), dtype_info(name).numpy)
            multiply = partial(xp.matmul, square, square, out=xp.empty_like(square))
            rates[name] = 2 * CUDA_MATRIX**3 / timer.best_ns(multiply, REPEATS)
        rates |= {"bfloat16": rates["float16"], **_tensor_core_rates(timer)}
        launch_ns = timer.best_ns(timer.launch_empty, 20 * REPEATS)
        xp.get_default_memory_pool().free_all_blocks()
    return _with_bandwidths(Ceilings(device, None, None, rates, launch_ns), *ladder)


def _tensor_core_rates(timer: CudaTimer) -> dict[str, float]:
    """Rate of float32 products rounded to TF32 on tensor cores; none where CuPy cannot select that mode."""
    xp = cupy()
    try:
        linalg: Any = import_module("cupy._core._routines_linalg")
        before, mode = linalg.get_compute_type("f"), linalg.COMPUTE_TYPE_TF32
    except (ImportError, AttributeError):
        return {}
    square = xp.ones((CUDA_MATRIX, CUDA_MATRIX), np.float32)
    multiply = partial(xp.matmul, square, square, out=xp.empty_like(square))
    linalg.set_compute_type("f", mode)
    try:
        return {"tf32": 2 * CUDA_MATRIX**3 / timer.best_ns(multiply, REPEATS)}
    finally:
        linalg.set_compute_type("f", before)


def _cuda_ladder(xp: Any, timer: CudaTimer) -> tuple[list[int], list[float], list[float], list[float]]:
    """Sizes, and medians of cold copies, fills and reads: as cases are timed, so that launches count alike."""
    free, _ = xp.cuda.runtime.memGetInfo()
    sizes = [size for size in SIZES if size <= free // 4]
    source, target = xp.zeros(sizes[-1] // 2, xp.uint8).data, xp.zeros(sizes[-1], xp.uint8).data
    copies_ns, writes_ns, reads_ns = [], [], []
    for size in sizes:
        reads_ns.append(median(timer.times(partial(timer.launch_read, target, size), COLD_REPEATS, flush=True)[0]))
        copy = partial(target.copy_from_device_async, source, size // 2)
        copies_ns.append(median(timer.times(copy, COLD_REPEATS, flush=True)[0]))
        writes_ns.append(median(timer.times(partial(target.memset_async, 1, size), COLD_REPEATS, flush=True)[0]))
    return sizes, copies_ns, writes_ns, reads_ns
