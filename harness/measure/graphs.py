"""Calls captured into a graph and replayed: what one takes among many, without the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

from opgauge.harness.measure.queue import Queue

REPEATS = 5
EMPTY_CALLS, EMPTY_BUDGET_S = 100, 1.0
STAMPS = 3


class Graphs:
    """Graphs of calls on one stream, behind a busy queue.

    A launch takes 0.18 µs more in some graphs than in others, whatever kernel it is, and in one graph from some moment
    on: on an H200 with driver 580 an empty kernel takes 0.59 or 0.77 µs, by what was allocated and captured before.
    So empty kernels follow the calls in the same graph, and what they take more than in the first graph of the process
    is taken off. The device's clock is read between the two.
    """

    def __init__(
        self,
        stream: Any,
        queue: Queue,
        launch_empty: Callable[[], None],
        launch_stamp: Callable[[int], None],
        stamps: Any,
    ) -> None:
        """launch_stamp: leaves the device's clock, in nanoseconds, in a place of `stamps` (STAMPS,)."""
        self._stream = stream
        self._queue = queue
        self._launch_empty = launch_empty
        self._launch_stamp = launch_stamp
        self._stamps = stamps
        graph = self._capture_stamped(launch_empty, EMPTY_CALLS)
        self._first_empty_ns = 0.0 if graph is None else median(self._replay(graph, EMPTY_BUDGET_S)[1])

    def capture(self, work: Callable[[], object]) -> Any:
        """A graph of what is launched; None where that cannot be captured."""
        stream = self._stream
        try:
            stream.begin_capture()
            try:
                work()
            finally:
                # a capture that went wrong must be ended too; ending it raises in its turn
                graph = stream.end_capture()
        except Exception:  # noqa: BLE001  CuPy, the driver and torch each have their own; the call itself has worked
            stream.synchronize()
            return None
        graph.upload(stream)
        return graph

    def call_ns(self, call: Callable[[], object], calls: int, launches: int, budget_s: float) -> float | None:
        """What one of `calls` calls takes that launch so often each; None where they cannot be captured."""
        graph = self._capture_stamped(call, calls)
        if graph is None:
            return None
        found = zip(*self._replay(graph, budget_s), strict=True)
        return median(
            (calls_ns - empty_ns) / calls - launches * (empty_ns - self._first_empty_ns) for calls_ns, empty_ns in found
        )

    def repeated_ns(self, work: Callable[[], object], budget_s: float) -> float:
        """Event time of `work`, the median of a few, caches as they are."""
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
        """Of each replay: what the calls and a stamp took, and an empty kernel."""
        calls_ns, empty_ns = [], []
        for _ in self._repeat(lambda: graph.launch(self._stream), budget_s):
            begun, called, ended = self._stamps.get().tolist()
            calls_ns.append(float(called - begun))
            empty_ns.append((ended - called) / (EMPTY_CALLS + 1))
        return calls_ns, empty_ns
