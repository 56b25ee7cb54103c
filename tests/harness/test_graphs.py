"""What a call takes in a graph, whatever that graph's launches cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.harness.measure.graphs import EMPTY_CALLS, REPEATS, STAMPS, Graphs
from opgauge.harness.measure.queue import Sample

FAST_NS, SLOW_NS = 590, 770
KERNEL_NS = 400
CALLS = 50


class FakeDevice:
    """A stream and the queue on it: each replay has the next launch cost, and a clock that goes on."""

    def __init__(self, launch_ns: Iterator[int]) -> None:
        self.launch_ns = launch_ns
        self.held: list[tuple[int, int | None]] = []
        self.now_ns = 1 << 60
        self.stamps = np.zeros(STAMPS, np.uint64)

    def begin_capture(self) -> None:
        """A graph begins."""
        self.held = []

    def end_capture(self) -> Any:
        """The graph."""
        return SimpleNamespace(upload=lambda _: None, launch=lambda _, held=self.held: self.replay(held))

    def replay(self, held: list[tuple[int, int | None]]) -> None:
        """Run what a graph holds: kernels, and stamps that say when they ran."""
        launch_ns = next(self.launch_ns)
        for kernel_ns, place in held:
            self.now_ns += launch_ns + kernel_ns
            if place is not None:
                self.stamps[place] = self.now_ns

    def get(self) -> Any:
        """The stamps, brought here."""
        return self.stamps

    def adapt(self, call: Callable[[], object]) -> bool:
        """The queue's."""
        return True

    def sample(self, call: Callable[[], object], slot: int, *, flush: bool) -> Sample:
        """The queue's: what was replayed took."""
        assert not slot
        assert not flush
        before_ns = self.now_ns
        call()
        return Sample(float(self.now_ns - before_ns), blocked=True, returned=None)

    def empty(self) -> None:
        """Launch a kernel that does nothing."""
        self.held.append((0, None))

    def stamp(self, place: int) -> None:
        """Launch a kernel that says when it ran."""
        self.held.append((0, place))

    def call(self) -> None:
        """Launch two kernels."""
        self.held += [(KERNEL_NS, None)] * 2


def graphs(device: FakeDevice) -> Graphs:
    """On a device that is not there."""
    queue: Any = device
    return Graphs(device, queue, device.empty, device.stamp, device)


def found(first: int, *launch_ns: int) -> float | None:
    """The time of a call where the first graph's launches cost `first`, and those of its own so much in each replay."""
    device = FakeDevice(iter([*[first] * REPEATS, *launch_ns]))
    return graphs(device).call_ns(device.call, CALLS, 2, 60.0)


@pytest.mark.parametrize("launch_ns", [FAST_NS, SLOW_NS])
def test_what_launches_cost_more_than_in_the_first_graph_is_taken_off(launch_ns: int) -> None:
    """The same call takes the same, whichever cost its graph has."""
    assert found(FAST_NS, *[launch_ns] * REPEATS) == pytest.approx(2 * (KERNEL_NS + FAST_NS))


def test_each_replay_has_its_own_cost() -> None:
    """A graph whose launches cost more from some moment on."""
    assert found(FAST_NS, FAST_NS, FAST_NS, *[SLOW_NS] * 3) == pytest.approx(2 * (KERNEL_NS + FAST_NS))


def test_what_was_slow_at_first_stays_the_measure() -> None:
    """All figures of a process are as its first graph has them."""
    assert found(SLOW_NS, *[FAST_NS] * REPEATS) == pytest.approx(2 * (KERNEL_NS + SLOW_NS))


def test_empty_kernels_follow_the_calls() -> None:
    """A graph has its calls, EMPTY_CALLS empty kernels after them, and a stamp before, between and after."""
    device = FakeDevice(iter([FAST_NS] * 2 * REPEATS))
    graphs(device).call_ns(device.call, CALLS, 2, 60.0)
    kernel, nothing = (KERNEL_NS, None), (0, None)
    assert device.held == [(0, 0), *[kernel] * (2 * CALLS), (0, 1), *[nothing] * EMPTY_CALLS, (0, 2)]


def test_what_cannot_be_captured_has_no_time() -> None:
    """None, and the stream is usable again."""
    device = FakeDevice(iter([FAST_NS] * REPEATS))
    made = graphs(device)
    waited: list[bool] = []
    device.synchronize = lambda: waited.append(True)  # type: ignore[attr-defined]

    def call() -> None:
        raise RuntimeError

    assert made.call_ns(call, CALLS, 1, 60.0) is None
    assert waited == [True]
