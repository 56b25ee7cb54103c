"""Ceilings: achieved peaks of a device now: copies and fills from 16 KiB up, matrix rate, launch latency.

They are measured, not taken from a data sheet, in a worker: `LocalExecutor.ceilings`. The best of a few repeats counts,
since a ceiling is an achievable time. Caches are as for cases: a CPU's keep the data of the previous call, a GPU's are
flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import repeat
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.worker.call_time import Clocks
from opgauge.harness.worker.inputs import empty_bytes
from opgauge.ops import Device, dtype_info
from opgauge.ops._core.backend import cupy

if TYPE_CHECKING:
    from opgauge.harness.measure.cuda import CudaTimer
    from opgauge.harness.measure.traffic import Launch

Way = tuple[int, Callable[[], object]]
"""Number of threads that a call uses, and the call."""
_POWERS, _BETWEEN = (14, 16, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 32), (22, 23, 24, 25)
SIZES = tuple(sorted([1 << power for power in _POWERS] + [3 << power - 1 for power in _BETWEEN]))
"""Bytes moved: 16 KiB to 4 GiB, as far as memory allows; closer around the sizes of last caches."""
CPU_BYTES = 256 << 20
"""Size that exceeds the caches of known CPUs."""
CACHE_BYTES = 32 << 20
"""Size of a last cache that the system does not report."""
CACHED_ROUNDS = 4
"""Repeats within the last cache, where all take a millisecond: other processes disturb some of them."""
CPU_MATRIX = 1024
"""Size of the square matrices on a CPU."""
MULTIPLY_ADDS = 1 << 12
"""Multiply-adds of each independent chain."""
CUDA_MATRIX = 8192
"""Size of the square matrices on a GPU."""
REPEATS = 5
"""Repeats of which the best counts."""
COLD_REPEATS, FIRST_REPEATS, FASTEST = 15, 3, 4
"""Cold repeats of which the median counts; those after which as many ways as `FASTEST` remain."""
EMPTY_CALLS = 100_000
"""Empty calls that are timed together."""
SAMPLE_NS = 200_000
"""Least duration of a sample."""


def measure(device: str) -> Ceilings:
    """Ceilings of `device`; at most 5 seconds on a CPU."""
    parsed = Device.parse(device)
    return _measure_cpu(device) if parsed.backend == "cpu" else _measure_cuda(device, parsed.index)


def _measure_cpu(device: str) -> Ceilings:

    # in large pages, as the buffers of cases: fills in the last cache took a quarter more in pages of 4 KiB
    source, target = (empty_bytes(CPU_BYTES, "cpu").view(np.float64) for _ in range(2))
    source[:] = target[:] = 1.0
    sizes = [size for size in SIZES if size <= CPU_BYTES]
    times = [_cpu_times(source, target, size) for size in sizes]
    copies_ns, writes_ns, reads_ns = zip(*times, strict=True)
    rates = {name: _cpu_rate(name) for name in ("float32", "float64")}
    empty: Callable[[], None] = partial(_nothing, out={})
    start = perf_counter_ns()
    for _ in range(EMPTY_CALLS):
        empty()
    launch_ns = (perf_counter_ns() - start) / EMPTY_CALLS
    found = Ceilings(device, None, None, rates, launch_ns)
    return _with_bandwidths(found, sizes, copies_ns, writes_ns, reads_ns)


def _cpu_times(source: Any, target: Any, size: int) -> tuple[float, float, float]:
    """Shortest time of a copy, of a fill and of a read that move `size` bytes.

    Within the last cache no parallel loop counts but what one thread takes for its share: a loop of few microseconds
    waits for its threads to start, and a kernel whose threads are awake does not.
    """
    from opgauge.harness.measure import jit

    read, copied, filled = source[: size // 16], target[: size // 16], target[: size // 8]
    alone, threads = 1, jit.threads()
    copies: list[Way] = [(alone, partial(np.copyto, copied, read)), (threads, partial(jit.copy, read, copied))]
    fills: list[Way] = [(alone, partial(filled.fill, 1.0)), (threads, partial(jit.fill, filled, 1.0))]
    reads: list[Way] = [
        (threads, partial(jit.read, filled)),
        (alone, filled.max),
        (alone, partial(jit.read_alone, filled)),
    ]
    if size > _last_cache_bytes():
        if (streaming := _streaming()) is not None:
            copies.append((threads, partial(streaming.copy, read, copied, threads)))
            # some CPUs write lines of zeros to memory in a third of the time of others
            fills += [(threads, partial(streaming.fill, filled, value, threads)) for value in (0.0, 1.0)]
    else:
        share = max(filled.size // threads, 8)
        copies.append((alone, partial(jit.copy_alone, source[: share // 2], target[: share // 2])))
        fills.append((alone, partial(jit.fill_alone, target[:share], 1.0)))
        reads.append((alone, partial(jit.read_alone, target[:share])))
    rounds = CACHED_ROUNDS if size <= _last_cache_bytes() else 1
    found = [min(_best_ns(*way) for _ in range(rounds) for way in ways) for ways in (copies, fills, reads)]
    return found[0], found[1], found[2]


def _cpu_rate(dtype: str) -> float:
    """Highest rate of multiply-adds, operations per ns: in a matrix product, or in registers by every thread."""
    from opgauge.harness.measure import jit

    square = np.ones((CPU_MATRIX, CPU_MATRIX), dtype)
    multiply = partial(np.matmul, square, square, out=np.empty_like(square))
    rates = [2 * CPU_MATRIX**3 / _best_ns(jit.threads(), multiply)]
    for lanes, multiply_add in jit.MULTIPLY_ADD.items():
        call = partial(multiply_add, np.full(lanes, 0.5, dtype), MULTIPLY_ADDS)
        time_ns = min(_best_ns(jit.threads(), call) for _ in range(CACHED_ROUNDS))
        rates.append(jit.threads() * 2 * lanes * MULTIPLY_ADDS / time_ns)
    return max(rates)


def _last_cache_bytes() -> int:
    """Bytes of the last cache, as the kernels know it; `CACHE_BYTES` if another tree's `ops` has no such function."""
    try:
        from opgauge.ops._cpu.streaming import last_cache_bytes
    except ImportError:
        return CACHE_BYTES
    return int(last_cache_bytes())


def _streaming() -> Any:
    """The module of copies past the caches; None if another tree's `ops` cannot store so."""
    try:
        return import_module("opgauge.harness.measure.jit_streaming")
    except ImportError:
        return None


def _with_bandwidths(
    found: Ceilings,
    sizes: Sequence[int],
    copies_ns: Sequence[float],
    writes_ns: Sequence[float],
    reads_ns: Sequence[float],
    adds_ns: Sequence[float] = (),
) -> Ceilings:
    return replace(
        found,
        copy_gbps=sizes[-1] / copies_ns[-1],
        write_gbps=sizes[-1] / writes_ns[-1],
        sizes=tuple(sizes),
        copies_ns=tuple(copies_ns),
        writes_ns=tuple(writes_ns),
        reads_ns=tuple(reads_ns),
        adds_ns=tuple(adds_ns),
    )


def _nothing(*, out: dict[str, Any]) -> None:
    """Do nothing, with the argument of a kernel."""


def _best_ns(threads: int, call: Callable[[], object]) -> float:
    """Least time of a call, averaged over as many calls as the clock's resolution requires.

    Where a thread lost its CPU to another process, the CPU time of each of the call's threads counts if it is less:
    a peak that includes waiting would make honest times impossible.
    """
    call()
    start = perf_counter_ns()
    call()
    calls = max(SAMPLE_NS // max(perf_counter_ns() - start, 1), 1)
    best = float("inf")
    for _ in range(REPEATS):
        begun = Clocks.now()
        for _ in repeat(None, calls):
            call()
        took = begun.passed()
        took_ns = min(took.wall_ns, took.cpu_ns // threads) if took.disturbed else took.wall_ns
        best = min(best, took_ns / calls)
    return best


def _measure_cuda(device: str, index: int) -> Ceilings:
    from opgauge.harness.measure.cuda import CudaTimer

    xp = cupy()
    timer = CudaTimer(index)
    with timer.session("numpy"):
        sizes, times_ns = _cuda_ladder(xp, timer, index)
        rates = {}
        for name in ("float16", "float32", "float64"):
            square = xp.ones((CUDA_MATRIX, CUDA_MATRIX), dtype_info(name).numpy)
            multiply = partial(xp.matmul, square, square, out=xp.empty_like(square))
            rates[name] = 2 * CUDA_MATRIX**3 / timer.best_ns(multiply, REPEATS)
        rates |= {"bfloat16": rates["float16"], **_tensor_core_rates(timer)}
        launch_ns = timer.best_ns(timer.launch_empty, 20 * REPEATS)
        xp.get_default_memory_pool().free_all_blocks()
    return _with_bandwidths(Ceilings(device, None, None, rates, launch_ns), sizes, *times_ns)


def _tensor_core_rates(timer: CudaTimer) -> dict[str, float]:
    """Rate of float32 products rounded to TF32 on tensor cores; empty if CuPy cannot select that mode."""
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


def _cuda_ladder(xp: Any, timer: CudaTimer, index: int) -> tuple[list[int], list[list[float]]]:
    """Sizes, and medians of the fastest cold copies, fills, reads and sums, timed as cases are."""
    from opgauge.harness.measure.traffic import Traffic

    free, _ = xp.cuda.runtime.memGetInfo()
    sizes = [size for size in SIZES if size <= free // 4]
    source, target = (xp.zeros(size, xp.uint8).data for size in (sizes[-1] // 3 * 2, sizes[-1]))
    traffic = Traffic(index)

    def best_ns(launches: Iterable[Launch]) -> float:
        def cold_ns(launch: Launch, repeats: int = COLD_REPEATS) -> float:
            return median(timer.times(launch, repeats, flush=True)[0])

        fastest = sorted(launches, key=lambda launch: cold_ns(launch, FIRST_REPEATS))[:FASTEST]
        return min(map(cold_ns, fastest))

    copies_ns = [best_ns(traffic.copies(source, target, size // 2)) for size in sizes]
    writes_ns = [best_ns(traffic.fills(target, size)) for size in sizes]
    reads_ns = [best_ns(traffic.reads(target, size)) for size in sizes]
    adds_ns = [best_ns(traffic.adds(source, target, size)) for size in sizes]
    return sizes, [copies_ns, writes_ns, reads_ns, adds_ns]
