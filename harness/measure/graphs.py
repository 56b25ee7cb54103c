"""Graphs of captured calls: time of one call among many, without the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

from opgauge.harness.measure.queue import Queue

REPEATS = 5
"""Replays of a graph."""
EMPTY_CALLS, EMPTY_BUDGET_S = 100, 1.0
"""Empty kernels at the end of a graph, and seconds to measure the first graph's."""
STAMPS = 3
"""Reads of the device's clock in a graph."""


class Graphs:
    """Graphs of calls on one stream, behind a busy queue.

    Every launch takes 0.18 µs longer in some graphs than in others, whatever the kernel, depending on earlier
    allocations and captures: on an H200 with driver 580 an empty kernel takes 0.59 or 0.77 µs. Empty kernels
    therefore follow the calls in the same graph, and their excess over the first graph of the process is
    subtracted. The device's clock is read between the two.
    """

    def __init__(
        self,
        stream: Any,
        queue: Queue,
        launch_empty: Callable[[], None],
        launch_stamp: Callable[[int], None],
        stamps: Any,
    ) -> None:
        """launch_stamp: stores the device's clock, in nanoseconds, in an element of `stamps` (STAMPS,)."""
        self._stream = stream
        self._queue = queue
        self._launch_empty = launch_empty
        self._launch_stamp = launch_stamp
        self._stamps = stamps
        graph = self._capture_stamped(launch_empty, EMPTY_CALLS)
        self._first_empty_ns = 0.0 if graph is None else median(self._replay(graph, EMPTY_BUDGET_S)[1])

    def capture(self, work: Callable[[], object]) -> Any:
        """A graph of the launches of `work`; None if they cannot be captured."""
        stream = self._stream
        try:
            stream.begin_capture()
            try:
                work()
            finally:
                # a failed capture must be ended too, which raises again
                graph = stream.end_capture()
        except Exception:  # noqa: BLE001  CuPy, the driver and torch each have their own; the call itself has worked
            stream.synchronize()
            return None
        graph.upload(stream)
        return graph

    def call_ns(self, call: Callable[[], object], calls: int, launches: int, budget_s: float) -> float | None:
        """Time of one of `calls` calls, each with `launches` launches; None if they cannot be captured."""
        graph = self._capture_stamped(call, calls)
        if graph is None:
            return None
        found = zip(*self._replay(graph, budget_s), strict=True)
        return median(
            (calls_ns - empty_ns) / calls - launches * (empty_ns - self._first_empty_ns) for calls_ns, empty_ns in found
        )

    def repeated_ns(self, work: Callable[[], object], budget_s: float) -> float:
        """Event time of `work`: median of a few repeats, without a flush."""
        return median(self._repeat(work, budget_s))

    def _repeat(self, work: Callable[[], object], budget_s: float) -> Iterator[float]:
        self._queue.adapt(work)
        start = perf_counter()
        for number in range(REPEATS):
            if number and perf_counter() - start > budget_s:
                break
            yield self._queue.sample(work, 0, flush=False).elapsed_ns

    def _capture_stamped(self, call: Callable[[], object], calls: int) -> Any:
        def work() -> None:
            self._launch_stamp(0)
            for _ in range(calls):
                call()
            self._launch_stamp(1)
            for _ in range(EMPTY_CALLS):
                self._launch_empty()
            self._launch_stamp(2)

        return self.capture(work)

    def _replay(self, graph: Any, budget_s: float) -> tuple[list[float], list[float]]:
        """Per replay, in nanoseconds: the time of the calls and a stamp, and the time of an empty kernel."""
        calls_ns, empty_ns = [], []
        for _ in self._repeat(lambda: graph.launch(self._stream), budget_s):
            begun, called, ended = self._stamps.get().tolist()
            calls_ns.append(float(called - begun))
            empty_ns.append((ended - called) / (EMPTY_CALLS + 1))
        return calls_ns, empty_ns
