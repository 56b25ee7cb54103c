"""Time of calls on a CUDA device: cold by events behind a busy queue, hot by a graph's replay.

A cold sample: overwrite twice the L2 cache, let a kernel spin, record an event, call, record an
event. The spinning kernel runs until the host has enqueued the rest, so that gaps between
launches are not timed; it also measures the clock. The hot figure replays a captured
graph of many calls, without a flush, after all cold samples.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from harness.measure.timer import Limits, Timed
from harness.result import Measurement
from ops import Bound
from ops._core.backend import cupy

SOURCE = Path(__file__).parent / "spin.cu"
FLUSH_FACTOR = 2
LEAST_FLUSH = 64 << 20
SHORTEST_WAIT_NS = 30_000
LONGEST_WAIT_NS = 8_000_000
SAMPLES_PER_WANTED = 3
"""A GPU's samples are cheap: this many times what the limits ask for at most."""
LEAST_CLOCK = 0.75
"""A sample below this share of the usual clock was throttled."""
HOT_NS = 2_000_000
MOST_HOT_CALLS = 200
HOT_REPEATS = 5


class CudaTimer:
    """Event times on one device, on a stream of its own."""

    name = "cuda-event-cold/1"
    name_with_gaps = "cuda-event-cold/1 with launch gaps"

    def __init__(self, index: int = 0) -> None:
        xp = cupy()
        self._cupy = xp
        self._device = xp.cuda.Device(index)
        with self._device:
            # a blocking stream: torchvision launches on the legacy default stream, whose order this one keeps
            self._stream = xp.cuda.Stream(non_blocking=False)
            module = xp.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17",))
            self._spin = module.get_function("spin")
            self._empty = module.get_function("empty")
            self._start, self._stop = xp.cuda.Event(), xp.cuda.Event()
        self._index = index
        self._torch: Any = None

    @contextmanager
    def session(self, arrays: str) -> Iterator[None]:
        """Select device and stream, for torch too where `arrays` is "torch".

        What the trial before left in the two libraries' pools is given back first: neither sees the other's.
        """
        with ExitStack() as stack:
            stack.enter_context(self._device)
            stack.enter_context(self._stream)
            self._cupy.get_default_memory_pool().free_all_blocks()
            if "torch" in sys.modules:
                sys.modules["torch"].cuda.empty_cache()
            if arrays == "torch":
                self._torch = import_module("torch")
                stack.enter_context(self._torch.cuda.device(self._index))
                external = self._torch.cuda.ExternalStream(self._stream.ptr)
                stack.enter_context(self._torch.cuda.stream(external))
            try:
                yield
            finally:
                self._torch = None

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def launch_empty(self) -> None:
        """Launch a kernel that does nothing."""
        self._empty((1,), (1,), ())

    def best_ns(self, call: Callable[[], object], repeats: int) -> float:
        """Shortest event time of a call, behind a busy queue, caches as they are."""
        call()
        self.synchronize()
        queue = self._make_queue(repeats, flush=False)
        return min(queue.sample(call, slot).elapsed_ns for slot in range(repeats))

    def measure(self, call: Bound, limits: Limits) -> Timed:
        """Warm up, then cold samples, the hot figure and the peak of memory."""
        most = limits.max_samples * SAMPLES_PER_WANTED
        queue = self._make_queue(most, flush=True)
        enabled = gc.isenabled()
        gc.disable()
        try:
            warmup = self._warm_up(call, limits.warmup_s)
            gaps = not queue.adapt(call)
            cold = self._cold(call, queue, limits, most)
            clocks = queue.clocks_mhz(len(cold))
            hot_ns = self._hot(call, queue, median(sample.elapsed_ns for sample in cold), limits)
        finally:
            if enabled:
                gc.enable()
        usual = median(clocks)
        kept = [number for number, clock in enumerate(clocks) if clock >= LEAST_CLOCK * usual]
        measurement = Measurement(
            samples_ns=tuple(cold[number].elapsed_ns for number in kept),
            timer=self.name_with_gaps if gaps else self.name,
            warmup=warmup,
            hot_ns=hot_ns,
            clock_mhz=tuple(round(clocks[number], 1) for number in kept),
            dropped=len(cold) - len(kept),
            peak_bytes=self._peak_bytes(call),
        )
        return Timed(measurement, cold[-1].returned)

    def _make_queue(self, slots: int, *, flush: bool) -> _Queue:
        xp = self._cupy
        nbytes = 0
        if flush:
            nbytes = max(FLUSH_FACTOR * int(self._device.attributes["L2CacheSize"]), LEAST_FLUSH)
        return _Queue(
            spin=self._spin,
            seen=xp.zeros(2 * slots, np.uint64),
            flush=xp.empty(nbytes, np.uint8) if nbytes else None,
            start=self._start,
            stop=self._stop,
            stream=self._stream,
            elapsed_ms=xp.cuda.get_elapsed_time,
        )

    def _warm_up(self, call: Bound, seconds: float) -> int:
        count, end = 0, perf_counter() + seconds
        while True:
            call()
            self.synchronize()
            count += 1
            if perf_counter() >= end:
                return count

    def _cold(self, call: Bound, queue: _Queue, limits: Limits, most: int) -> list[_Sample]:
        samples: list[_Sample] = []
        returned = None
        start = perf_counter()
        while len(samples) < most:
            spent = perf_counter() - start
            if len(samples) >= limits.min_samples and spent >= limits.budget_s:
                break
            if samples and spent >= limits.budget_s * limits.patience:
                break
            samples.append(queue.sample(call, len(samples)))
            # only the last outputs are checked; keeping the others would hold memory
            returned, samples[-1] = samples[-1].returned, samples[-1]._replace(returned=None)
        samples[-1] = samples[-1]._replace(returned=returned)
        return samples

    def _hot(self, call: Bound, queue: _Queue, cold_ns: float, limits: Limits) -> float:
        """One call among many with warm caches: by a graph, else called back to back."""
        calls = max(1, min(int(HOT_NS / max(cold_ns, 1.0)), MOST_HOT_CALLS))
        graph = self._capture(call, calls)

        def replay() -> None:
            if graph is not None:
                graph.launch(self._stream)
                return
            for _ in range(calls):
                call()

        replay()
        self.synchronize()
        found: list[float] = []
        start = perf_counter()
        while len(found) < HOT_REPEATS and not (found and perf_counter() - start > limits.budget_s):
            found.append(queue.sample(replay, 0, flush=False).elapsed_ns / calls)
        return median(found)

    def _capture(self, call: Bound, calls: int) -> Any:
        """A graph of `calls` calls; None where they cannot be captured."""
        stream = self._stream
        try:
            stream.begin_capture()
            try:
                for _ in range(calls):
                    call()
            finally:
                # a capture that went wrong must be ended too; ending it raises in its turn
                graph = stream.end_capture()
        except Exception:  # noqa: BLE001  CuPy, the driver and torch each have their own; the call itself has worked
            self.synchronize()
            return None
        graph.upload(stream)
        return graph

    def _peak_bytes(self, call: Bound) -> int:
        """Most device memory that one call holds at a time, beyond what it returns."""
        torch = self._torch
        if torch is not None:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            returned = call()
            self.synchronize()
            outputs = sum(int(item.nbytes) for item in returned if item is not None) if returned else 0
            return max(int(torch.cuda.max_memory_allocated()) - int(before) - outputs, 0)
        counter = _memory_counter(self._cupy)
        with counter:
            call()
            self.synchronize()
        return int(counter.peak)


class _Sample(NamedTuple):
    elapsed_ns: float
    blocked: bool
    returned: Any


class _Queue:
    """A stream kept busy while work is enqueued, and two events around the work."""

    def __init__(
        self, *, spin: Any, seen: Any, flush: Any, start: Any, stop: Any, stream: Any, elapsed_ms: Any
    ) -> None:
        self._spin = spin
        self._seen = seen
        self._flush = flush
        self._start = start
        self._stop = stop
        self._stream = stream
        self._elapsed_ms = elapsed_ms
        self._wait_ns = SHORTEST_WAIT_NS

    def sample(self, call: Callable[[], Any], slot: int, *, flush: bool = True) -> _Sample:
        """One call timed; `blocked` says that it was all enqueued before it could start."""
        if flush and self._flush is not None:
            self._flush.data.memset_async(slot % 256, self._flush.nbytes, self._stream)
        self._spin((1,), (1,), (np.uint64(self._wait_ns), self._seen, np.uint32(slot)))
        self._start.record(self._stream)
        returned = call()
        self._stop.record(self._stream)
        blocked = not self._start.done
        self._stop.synchronize()
        return _Sample(self._elapsed_ms(self._start, self._stop) * 1e6, blocked, returned)

    def adapt(self, call: Bound) -> bool:
        """Lengthen the wait until it covers enqueueing; False where nothing helps.

        Nothing helps a call that synchronises, or whose host part takes longer than the longest wait.
        """
        before = perf_counter_ns()
        call()
        enqueue_ns = perf_counter_ns() - before
        self._stream.synchronize()
        self._wait_ns = min(max(2 * enqueue_ns, SHORTEST_WAIT_NS), LONGEST_WAIT_NS)
        while True:
            if all(self.sample(call, 0).blocked for _ in range(3)):
                return True
            if self._wait_ns >= LONGEST_WAIT_NS:
                self._wait_ns = SHORTEST_WAIT_NS
                return False
            self._wait_ns = min(2 * self._wait_ns, LONGEST_WAIT_NS)

    def clocks_mhz(self, count: int) -> list[float]:
        """The multiprocessors' clock before each of the first `count` samples."""
        seen = self._seen[: 2 * count].get().reshape(count, 2).astype(np.float64)
        return [float(cycles * 1e3 / max(ns, 1.0)) for ns, cycles in seen]


def _memory_counter(xp: Any) -> Any:
    """A hook that follows how much CuPy's pool has handed out since it was entered."""

    class Counter(xp.cuda.MemoryHook):  # type: ignore[misc]
        name = "opgauge"
        live = 0
        peak = 0

        def malloc_postprocess(self, *, mem_size: int, **_: object) -> None:
            self.live += mem_size
            self.peak = max(self.peak, self.live)

        def free_postprocess(self, *, mem_size: int, **_: object) -> None:
            self.live -= mem_size

    return Counter()
