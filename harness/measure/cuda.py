"""Timing of calls on a CUDA device: cold by events behind a busy queue, hot by a graph's replay.

A cold sample: overwrite the L2 cache, launch a spinning kernel, record an event, call, record an event. The spinning
kernel runs until the host has enqueued the rest, so that gaps between launches are not timed; it also measures the
clock. The hot time replays a captured graph of many calls, without a flush, after all cold samples.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, ClassVar

import numpy as np

from opgauge.harness.measure.calibration import calibrate_cuda
from opgauge.harness.measure.flush import Flush
from opgauge.harness.measure.footprint import graph_names, peak_memory
from opgauge.harness.measure.graphs import STAMPS, Graphs
from opgauge.harness.measure.queue import Queue, Sample
from opgauge.harness.measure.timer import Hooks, Limits, Timed, TimedHooks, UnfinishedError
from opgauge.harness.result.result import WITH_GAPS, Calibration, Footprint, Measurement
from opgauge.ops import Bound
from opgauge.ops._core.backend import cupy

SOURCE = Path(__file__).parent / "spin.cu"
"""CUDA source of the timer's own kernels."""
SAMPLES_PER_WANTED = 3
"""Most samples as a multiple of the limit, since a GPU's samples are cheap."""
LEAST_CLOCK = 0.75
"""Share of the usual clock below which a sample counts as throttled."""
HOT_NS, MOST_HOT_CALLS = 2_000_000, 200
"""Least duration of a graph of calls, and most calls in it."""
LATE_NS, LATE_SHARE = 50_000.0, 0.1
"""Longest wait for the device after the timed stream has ended, unless other streams are busy."""
LATE_TIMES, IDLE_WAITS = 2, 3
"""Least ratio of such a wait to the longest of a few waits for an idle device."""
CONFIRMING = 8
"""Further samples, each with such a wait, that confirm work on other streams: other processes cause some of them."""
PAGE_BYTES, PLACE_BYTES = 2 << 20, 4 << 10
"""Size of the driver's pages, and of the ranges within which all words are equally far from a multiprocessor."""


class CudaTimer:
    """Event times on one device, on a stream of its own.

    On an H200, a write takes 0.1 µs longer if its address is far from the multiprocessor; the distance changes
    every 4 KB. That is a tenth of the time of the smallest kernels in cache. Processes that allocate alike get the
    same pages. Hot times of small calls are therefore means over several places; and each process reserves as many
    pages as its number, so that its buffers, and torch's, have other addresses than those of other processes.
    """

    name = "cuda-event-cold/2"
    name_with_gaps = name + WITH_GAPS
    made: ClassVar[list[CudaTimer]] = []

    def __init__(self, index: int = 0, block: int = 0) -> None:
        xp = cupy()
        self._cupy = xp
        self._device = xp.cuda.Device(index)
        with self._device:
            self._pages = xp.empty(block * PAGE_BYTES, xp.uint8)
            # a blocking stream: torchvision launches on the legacy default stream, with which this one synchronizes
            self._stream = xp.cuda.Stream(non_blocking=False)
            self._module = xp.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17",))
            self._spin = self._module.get_function("spin")
            self._empty = self._module.get_function("empty")
            self._stamp = self._module.get_function("stamp")
            self._multiply_add = self._module.get_function("multiply_add")
            self._start, self._stop = xp.cuda.Event(), xp.cuda.Event()
            with self._stream:
                stamps = xp.zeros(STAMPS, np.uint64)
                self._graphs = Graphs(
                    self._stream,
                    self._make_queue(1, flush=False),
                    self.launch_empty,
                    lambda place: self._stamp((1,), (1,), (stamps[place:],)),
                    stamps,
                )
        self.made.append(self)
        self._index, self._block = index, block
        self._torch: Any = None
        self._torch_places: Any = None

    @contextmanager
    def session(self, arrays: str) -> Iterator[None]:
        """Select device and stream, for torch too if `arrays` is "torch".

        If both libraries are in use, the memory pools of the previous trial are released first: neither library
        sees the other's.
        """
        with ExitStack() as stack:
            stack.enter_context(self._device)
            stack.enter_context(self._stream)
            if "torch" in sys.modules:
                self._cupy.get_default_memory_pool().free_all_blocks()
                sys.modules["torch"].cuda.empty_cache()
            if arrays == "torch":
                self._torch = import_module("torch")
                stack.enter_context(self._torch.cuda.device(self._index))
                external = self._torch.cuda.ExternalStream(self._stream.ptr)
                stack.enter_context(self._torch.cuda.stream(external))
                if self._block and self._torch_places is None:
                    self._torch_places = self._torch.empty(
                        self._block * PLACE_BYTES, dtype=self._torch.uint8, device=f"cuda:{self._index}"
                    )
            try:
                yield
            finally:
                self._torch = None

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    @property
    def index(self) -> int:
        """The device's number."""
        return self._index

    @property
    def stream_handle(self) -> int:
        """The driver's handle of the stream on which calls are made."""
        return int(self._stream.ptr)

    def launch_empty(self) -> None:
        """Launch a kernel that does nothing."""
        self._empty((1,), (1,), ())

    def launch_arithmetic(self, out: Any, blocks: int, rounds: int) -> None:
        """Launch `blocks` · 256 threads that each do 4 · `rounds` multiply-adds."""
        self._multiply_add((blocks,), (256,), (out, np.uint32(rounds)))

    def rest(self) -> None:
        """Wait for all streams of the device."""
        self._device.synchronize()

    def cold_queue(self) -> Queue:
        """A queue whose samples flush the cache first."""
        return self._make_queue(1, flush=True)

    def captured(self, work: Callable[[], object]) -> Callable[[], float] | None:
        """A function that replays the launches of `work` and returns their time in ns; None if capture fails."""
        graph = self._graphs.capture(work)
        if graph is None:
            return None
        queue = self._make_queue(1, flush=False)
        return lambda: queue.sample(lambda: graph.launch(self._stream), 0).elapsed_ns

    def make_flush(self) -> Flush:
        """A callable that overwrites the device's L2 cache, on the stream on which calls are made."""
        return Flush(self._cupy, self._module, self._stream, int(self._device.attributes["L2CacheSize"]))

    def calibrate(self) -> Calibration:
        """Time a copy, some arithmetic and empty launches."""
        return calibrate_cuda(self)

    def best_ns(self, call: Callable[[], object], repeats: int) -> float:
        """Shortest event time of a call, behind a busy queue, without a flush."""
        return min(self.times(call, repeats)[0])

    def times(
        self, call: Callable[[], object], repeats: int, *, flush: bool = False
    ) -> tuple[list[float], list[float]]:
        """Event times of a call in nanoseconds, behind a busy queue, and the clock before each in MHz.

        An empty kernel follows each call, so that a profiler's list shows its begin and end: it lies between
        `spin` and `empty`.
        """
        call()
        self.synchronize()
        queue = self._make_queue(repeats, flush=flush)
        queue.adapt(call)
        found = []
        for slot in range(repeats):
            found.append(queue.sample(call, slot).elapsed_ns)
            self.launch_empty()
        self.synchronize()
        return found, queue.clocks_mhz(repeats)

    def measure(self, call: Bound, limits: Limits, hooks: Hooks | None = None, places: Sequence[Bound] = ()) -> Timed:
        """Warm up, then take cold samples, the hot time and the peak of memory."""
        most = limits.max_samples * SAMPLES_PER_WANTED
        queue = self._make_queue(most, flush=True)
        enabled = gc.isenabled()
        gc.disable()
        try:
            warmup = self._warm_up(call, limits.warmup_s)
            gaps = not queue.adapt(call)
            cold = self._cold(call, queue, limits, most, hooks, gaps=gaps)
            clocks = queue.clocks_mhz(len(cold))
            names = self._names(call)
            hot_ns = self._hot(call, median(sample.elapsed_ns for sample in cold), limits, names, places)
        finally:
            if enabled:
                gc.enable()
        peak_bytes, allocations = peak_memory(call, self._cupy, self._torch, self.synchronize)
        gaps = gaps or 2 * sum(sample.blocked for sample in cold) < len(cold)
        least_mhz = LEAST_CLOCK * median(clocks)
        kept = [
            number
            for number, (sample, clock) in enumerate(zip(cold, clocks, strict=True))
            if (gaps or sample.blocked) and clock >= least_mhz
        ]
        measurement = Measurement(
            samples_ns=tuple(cold[number].elapsed_ns for number in kept),
            timer=self.name_with_gaps if gaps else self.name,
            warmup=warmup,
            hot_ns=hot_ns,
            clock_mhz=tuple(round(clocks[number], 1) for number in kept),
            dropped=len(cold) - len(kept),
            peak_bytes=peak_bytes,
            footprint=Footprint(None if names is None else len(names), names, allocations),
        )
        return Timed(measurement, cold[-1].returned)

    def _make_queue(self, slots: int, *, flush: bool) -> Queue:
        return Queue(
            spin=self._spin,
            seen=self._cupy.zeros(2 * slots, np.uint64),
            flush=self.make_flush() if flush else None,
            start=self._start,
            stop=self._stop,
            stream=self._stream,
            elapsed_ms=self._cupy.cuda.get_elapsed_time,
        )

    def _warm_up(self, call: Bound, seconds: float) -> int:
        count, end = 0, perf_counter() + seconds
        while True:
            call()
            self.synchronize()
            count += 1
            if perf_counter() >= end:
                return count

    def _cold(
        self, call: Bound, queue: Queue, limits: Limits, most: int, hooks: Hooks | None, *, gaps: bool
    ) -> list[Sample]:
        """Samples of the call; those with launch gaps are extra. gaps: whether all have them, and count."""
        samples: list[Sample] = []
        kept = 0
        late = 0
        returned = None
        around, start = TimedHooks(hooks), perf_counter()

        def take() -> bool:
            nonlocal returned
            around.before()
            samples.append(queue.sample(call, len(samples)))
            if self._cupy.cuda.get_current_stream().ptr != self._stream.ptr:
                msg = "left another stream current, on which later work would not be timed"
                raise UnfinishedError(msg)
            is_late = self._is_late(samples[-1].elapsed_ns)
            around.after(samples[-1].returned)
            # only the last outputs are checked; references to the others would keep their memory allocated
            returned, samples[-1] = samples[-1].returned, samples[-1]._replace(returned=None)
            return is_late

        while len(samples) < most:
            spent = perf_counter() - start - around.seconds
            if kept >= limits.min_samples and spent >= limits.budget_s:
                break
            if samples and spent >= limits.budget_s * limits.patience:
                break
            late += take()
            kept += gaps or samples[-1].blocked
        leaves_work = late > len(samples) // 2 and all(take() for _ in range(min(CONFIRMING, most - len(samples))))
        samples[-1] = samples[-1]._replace(returned=returned)
        if leaves_work:
            msg = "work on another stream went on after the call's own stream had ended"
            raise UnfinishedError(msg)
        return samples

    def _is_late(self, elapsed_ns: float) -> bool:
        """Whether the device is still busy after the timed stream has ended.

        Where others use the device or the host, waits without any work are long too.
        """
        waited_ns = self._device_wait_ns()
        if waited_ns <= max(LATE_NS, LATE_SHARE * elapsed_ns):
            return False
        return waited_ns > LATE_TIMES * max(self._idle_wait_ns() for _ in range(IDLE_WAITS))

    def _idle_wait_ns(self) -> float:
        """Wait for the device after a stream without work has ended."""
        self._stop.record(self._stream)
        self._stop.synchronize()
        return self._device_wait_ns()

    def _device_wait_ns(self) -> float:
        before = perf_counter_ns()
        self._device.synchronize()
        return perf_counter_ns() - before

    def _hot(
        self,
        call: Bound,
        cold_ns: float,
        limits: Limits,
        names: tuple[str, ...] | None,
        places: Sequence[Bound] = (),
    ) -> float | None:
        """Time of one call among many with warm caches, by a graph or back to back; None if it launches nothing."""
        if names is not None and not names:
            return None
        calls = max(1, min(int(HOT_NS / max(cold_ns, 1.0)), MOST_HOT_CALLS))
        one = self._in_turn(places) if places else call
        if len(places) > calls:  # each was called once, which is enough to compare the outputs of a long call
            one = call
        elif places:
            calls -= calls % len(places)
        found = self._graphs.call_ns(one, calls, len(names or ()), limits.budget_s)
        if found is not None:
            return found

        def again() -> None:
            for _ in range(calls):
                call()

        return self._graphs.repeated_ns(again, limits.budget_s) / calls

    def _in_turn(self, places: Sequence[Bound]) -> Bound:
        """One of the calls after the other; what torch allocates for their results lies at several addresses too."""
        torch, spaces = self._torch, []
        recent: deque[Any] = deque(maxlen=len(places) - 1)  # memory of the oldest result is free for the next one
        for call in places:
            recent.append(call())
            if torch is not None:
                spaces.append(torch.empty(PLACE_BYTES, dtype=torch.uint8, device=f"cuda:{self._index}"))
        turns = cycle(places)

        def one(_spaces: list[Any] = spaces) -> None:
            recent.append(next(turns)())

        return one

    def _names(self, call: Bound) -> tuple[str, ...] | None:
        """Names of the kernels that one call launches, in order; None if it cannot be captured."""
        graph = self._graphs.capture(call)
        return None if graph is None else graph_names(graph)
