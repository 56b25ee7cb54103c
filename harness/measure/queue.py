"""Work enqueued behind a spinning kernel, timed by two events."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops import Bound

SHORTEST_WAIT_NS = 30_000
"""Shortest time that the spinning kernel runs."""
LONGEST_WAIT_NS = 32_000_000
"""Longest time that the spinning kernel runs."""
SHRINK = 0.97
"""Factor on the wait after a sample that it covered; the wait doubles after one that it did not."""


class Sample(NamedTuple):
    """One call's event time; whether all of it was enqueued before it could start; its returned value."""

    elapsed_ns: float
    blocked: bool
    returned: Any


class Queue:
    """A stream occupied by a spinning kernel while work is enqueued, and two events around the work."""

    def __init__(
        self,
        *,
        spin: Any,
        seen: Any,
        flush: Callable[[int], None] | None,
        start: Any,
        stop: Any,
        stream: Any,
        elapsed_ms: Any,
    ) -> None:
        self._spin = spin
        self._seen = seen
        self._flush = flush
        self._start = start
        self._stop = stop
        self._stream = stream
        self._elapsed_ms = elapsed_ms
        self._wait_ns = self._least_ns = SHORTEST_WAIT_NS
        self._most_ns = LONGEST_WAIT_NS

    def sample(
        self,
        call: Callable[[], Any],
        slot: int,
        *,
        flush: bool = True,
        before: Callable[[], object] = int,
        after: Callable[[Any], object] = id,
        wait_ns: int = 0,
    ) -> Sample:
        """Time one call; `blocked` is true if all of it was enqueued before it could start.

        before, after: enqueue work right before and after the timed region, the latter by the call's value. wait_ns:
        least time for which the stream is occupied first.
        The next wait is longer if it was not, and a little shorter if it was, down to the one that `adapt` found:
        on a busy host enqueueing takes longer at times.
        """
        if flush and self._flush is not None:
            self._flush(slot % 256)
        self._spin((1,), (1,), (np.uint64(max(self._wait_ns, wait_ns)), self._seen, np.uint32(slot)))
        before()
        self._start.record(self._stream)
        returned = call()
        self._stop.record(self._stream)
        after(returned)
        blocked = not self._start.done
        self._stop.synchronize()
        next_ns = int(SHRINK * self._wait_ns) if blocked else 2 * self._wait_ns
        self._wait_ns = min(max(next_ns, self._least_ns), self._most_ns)
        return Sample(self._elapsed_ms(self._start, self._stop) * 1e6, blocked, returned)

    def adapt(self, call: Bound) -> bool:
        """Lengthen the wait until it covers enqueueing; returns False if that is impossible.

        It is impossible for a call that synchronizes, or whose host part takes longer than the longest wait.
        """
        before = perf_counter_ns()
        call()
        enqueue_ns = perf_counter_ns() - before
        self._stream.synchronize()
        self._wait_ns = self._least_ns = min(max(2 * enqueue_ns, SHORTEST_WAIT_NS), LONGEST_WAIT_NS)
        self._most_ns = LONGEST_WAIT_NS
        while not all(self.sample(call, 0).blocked for _ in range(3)):
            if self._least_ns == LONGEST_WAIT_NS:
                self._wait_ns = self._least_ns = self._most_ns = SHORTEST_WAIT_NS
                return False
            self._least_ns = self._wait_ns
        return True

    def clocks_mhz(self, count: int) -> list[float]:
        """The multiprocessors' clock in MHz before each of the first `count` samples."""
        seen = self._seen[: 2 * count].get().reshape(count, 2).astype(np.float64)
        return [float(cycles * 1e3 / max(ns, 1.0)) for ns, cycles in seen]
