"""Calls captured into a graph and replayed: what one takes among many, without the host."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, median
from time import perf_counter
from typing import Any

from harness.measure.queue import Queue

REPEATS = 5
EMPTY_CALLS, EMPTY_BUDGET_S = 100, 1.0
ALIKE = 0.03
"""Empty kernels in the graph before and the one after take the same time, to this share of it."""
TRIES = 3


class Graphs:
    """Graphs of calls on one stream, behind a busy queue.

    A launch takes 0.18 µs more in some graphs than in others, whatever kernel it is, and in one graph from some moment
    on: on an H200 with driver 580 an empty kernel takes 0.59 or 0.77 µs, by what was allocated and captured before.
    So empty kernels are timed in graphs made just before and after, and what they take more than in the first graph
    of the process is taken off.
    """

    def __init__(self, stream: Any, queue: Queue, launch_empty: Callable[[], None]) -> None:
        self._stream = stream
        self._queue = queue
        self._launch_empty = launch_empty
        self._first_empty_ns = self._empty_ns(self.capture(launch_empty, EMPTY_CALLS))

    def capture(self, call: Callable[[], object], calls: int) -> Any:
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
            stream.synchronize()
            return None
        graph.upload(stream)
        return graph

    def call_ns(self, call: Callable[[], object], calls: int, launches: int, budget_s: float) -> float | None:
        """What one of `calls` calls takes that launch so often each; None where they cannot be captured."""
        for _ in range(TRIES):
            before = self.capture(self._launch_empty, EMPTY_CALLS)
            graph = self.capture(call, calls)
            if graph is None:
                return None
            after = self.capture(self._launch_empty, EMPTY_CALLS)
            empties = self._empty_ns(before), self._empty_ns(after)
            found = self._replayed_ns(graph, budget_s) / calls
            if max(empties) <= (1 + ALIKE) * min(empties):
                break
        return found - launches * (mean(empties) - self._first_empty_ns)

    def repeated_ns(self, work: Callable[[], object], budget_s: float) -> float:
        """Event time of `work`, the median of a few, caches as they are."""
        self._queue.adapt(work)
        found: list[float] = []
        start = perf_counter()
        while len(found) < REPEATS and not (found and perf_counter() - start > budget_s):
            found.append(self._queue.sample(work, 0, flush=False).elapsed_ns)
        return median(found)

    def _empty_ns(self, graph: Any) -> float:
        """Of one empty kernel; 0 where nothing can be captured."""
        if graph is None:
            return 0.0
        return self._replayed_ns(graph, EMPTY_BUDGET_S) / EMPTY_CALLS

    def _replayed_ns(self, graph: Any, budget_s: float) -> float:
        return self.repeated_ns(lambda: graph.launch(self._stream), budget_s)
