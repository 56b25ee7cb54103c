"""What a call takes in a graph, whatever that graph's launches cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.measure.graphs import EMPTY_CALLS, Graphs
from harness.measure.queue import Sample

FAST_NS, SLOW_NS = 590.0, 770.0
KERNEL_NS = 400.0
CALLS = 50


class FakeDevice:
    """A stream and the queue on it: each graph that is made has the next launch cost."""

    def __init__(self, launch_ns: Iterator[float]) -> None:
        self.launch_ns = launch_ns
        self.held: list[float] = []
        self.elapsed_ns = 0.0
        self.made = 0

    def begin_capture(self) -> None:
        """A graph begins."""
        self.held = []

    def end_capture(self) -> Any:
        """The graph."""
        self.made += 1
        elapsed_ns = sum(self.held) + len(self.held) * next(self.launch_ns)
        return SimpleNamespace(upload=lambda _: None, launch=lambda _: setattr(self, "elapsed_ns", elapsed_ns))

    def adapt(self, call: Callable[[], object]) -> bool:
        """The queue's."""
        call()
        return True

    def sample(self, call: Callable[[], object], slot: int, *, flush: bool) -> Sample:
        """The queue's: what was replayed last took."""
        assert not slot
        assert not flush
        call()
        return Sample(self.elapsed_ns, blocked=True, returned=None)

    def empty(self) -> None:
        """Launch a kernel that does nothing."""
        self.held.append(0.0)

    def call(self) -> None:
        """Launch two kernels."""
        self.held += [KERNEL_NS, KERNEL_NS]


def found(*launch_ns: float) -> tuple[float | None, int]:
    """The time of a call where graphs have these costs, in the order they are made; how many were made."""
    device = FakeDevice(iter(launch_ns))
    graphs: Any = Graphs(device, device, device.empty)  # type: ignore[arg-type]
    return graphs.call_ns(device.call, CALLS, 2, 1.0), device.made


@pytest.mark.parametrize("launch_ns", [FAST_NS, SLOW_NS])
def test_what_launches_cost_more_than_in_the_first_graph_is_taken_off(launch_ns: float) -> None:
    """The same call takes the same, whichever cost its graph has."""
    taken, made = found(FAST_NS, *[launch_ns] * 3)
    assert taken == pytest.approx(2 * (KERNEL_NS + FAST_NS))
    assert made == 4


def test_graphs_that_differ_are_made_again() -> None:
    """Where the graph before and the one after have different costs, it is open which ours has."""
    taken, made = found(FAST_NS, FAST_NS, SLOW_NS, SLOW_NS, *[SLOW_NS] * 3)
    assert taken == pytest.approx(2 * (KERNEL_NS + FAST_NS))
    assert made == 1 + 2 * 3


def test_it_ends_where_graphs_go_on_to_differ() -> None:
    """Three tries, and the mean of both."""
    taken, made = found(FAST_NS, *[FAST_NS, SLOW_NS, SLOW_NS] * 3)
    assert taken == pytest.approx(2 * (KERNEL_NS + SLOW_NS - (SLOW_NS - FAST_NS) / 2))
    assert made == 1 + 3 * 3


def test_empty_kernels_are_as_many_as_said() -> None:
    """A graph of empty kernels has EMPTY_CALLS launches."""
    device = FakeDevice(iter([FAST_NS] * 4))
    Graphs(device, device, device.empty)  # type: ignore[arg-type]
    assert len(device.held) == EMPTY_CALLS
