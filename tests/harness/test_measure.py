"""Timers: how many calls and samples, and that the last call's outputs come back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.harness.measure import Limits, timer_for
from opgauge.harness.measure.cpu import SAMPLE_NS, CpuTimer
from opgauge.harness.measure.queue import Queue
from opgauge.harness.measure.timer import NOWHERE
from opgauge.harness.result.result import Measurement

LIMITS = Limits(budget_s=0.02, min_samples=3, max_samples=6, warmup_s=0.001)


class Clock:
    """A clock that moves only when told to, in place of the timer's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("opgauge.harness.measure.cpu.perf_counter_ns", lambda: self.now)
        monkeypatch.setattr("opgauge.harness.measure.cpu.process_time_ns", lambda: 2 * self.now)

    def call_of(self, nanoseconds: int) -> Callable[[], int]:
        """A call that takes exactly so long."""

        def call() -> int:
            self.now += nanoseconds
            return self.now

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_short_calls_are_repeated_to_a_millisecond(clock: Clock) -> None:
    """A sample of a 1 µs call averages over 1000 calls and gives the time of one."""
    measured = CpuTimer().measure(clock.call_of(1000), LIMITS).measurement
    assert measured.calls_per_sample == SAMPLE_NS // 1000
    assert measured.samples_ns == (1000.0,) * 6
    assert measured.cpu_ns == (2000.0,) * 6


def test_long_calls_are_timed_one_by_one(clock: Clock) -> None:
    """A 7 ms call is a sample by itself; the budget ends sampling after the third."""
    measured = CpuTimer().measure(clock.call_of(7_000_000), LIMITS).measurement
    assert measured.calls_per_sample == 1
    assert len(measured.samples_ns) == 3
    assert measured.warmup == 2


def test_a_first_call_that_waits_does_not_decide(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of 1 µs whose first waited 9 ms for its CPU, longer than the warm-up, has samples of 1000 calls."""
    monkeypatch.setattr("opgauge.harness.measure.cpu.process_time_ns", lambda: 0)
    waits = iter([9_000_000])

    def call() -> None:
        clock.now += next(waits, 1000)

    measured = CpuTimer().measure(call, LIMITS).measurement
    assert measured.calls_per_sample == SAMPLE_NS // 1000


def test_warming_up_goes_by_time(clock: Clock) -> None:
    """Calls of 0.1 ms warm up ten times in a millisecond."""
    assert CpuTimer().measure(clock.call_of(100_000), LIMITS).measurement.warmup == 10


def test_very_long_calls_end_before_the_least_number_of_samples(clock: Clock) -> None:
    """A call of ten budgets is sampled once: patience has an end."""
    assert len(CpuTimer().measure(clock.call_of(200_000_000), LIMITS).measurement.samples_ns) == 1


def test_slow_hooks_do_not_use_up_the_budget(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a second after each sample of 7 ms: as many samples as without it."""
    monkeypatch.setattr("opgauge.harness.measure.timer.perf_counter_ns", lambda: clock.now)
    wait = clock.call_of(500_000_000)
    hooks = SimpleNamespace(before=lambda: (wait(), NOWHERE)[1], after=lambda *_: wait())
    measured = CpuTimer().measure(clock.call_of(7_000_000), LIMITS, hooks).measurement
    assert measured.samples_ns == (7_000_000.0,) * 3


def test_the_last_return_value_comes_back(clock: Clock) -> None:
    """What the last timed call returned is handed on, to be checked."""
    assert CpuTimer().measure(clock.call_of(7_000_000), LIMITS).returned == clock.now


def test_garbage_collection_waits(clock: Clock) -> None:
    """The collector is off while a call is timed and on afterwards, even if the call raises."""
    seen = []

    def call() -> None:
        seen.append(gc.isenabled())
        clock.now += 10_000_000
        if len(seen) > 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        CpuTimer().measure(call, LIMITS)
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.parametrize("takes_ms", [1, 100])
def test_what_took_long_to_look_through_is_set_aside(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, takes_ms: int
) -> None:
    """The first turn of a trial collects garbage, and the next does not; only a long collection is not repeated."""
    done = []

    def collect() -> None:
        clock.now += takes_ms * 1_000_000
        done.append("collect")

    monkeypatch.setattr(gc, "collect", collect)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    call = clock.call_of(10_000_000)
    for limits in (LIMITS, replace(LIMITS, calls=1)):
        CpuTimer().measure(call, limits)
    assert done == (["collect"] if takes_ms == 1 else ["collect", "freeze"])


@pytest.mark.parametrize(
    ("samples", "spent_s", "enough"),
    [(0, 100.0, False), (1, 0.1, False), (1, 10.0, True), (5, 0.5, False), (5, 1.0, True), (9, 0.5, True)],
)
def test_when_it_is_enough(samples: int, spent_s: float, enough: bool) -> None:
    """Stop at the most samples, or at the budget with the least, or at ten budgets with any."""
    assert Limits(budget_s=1, min_samples=5, max_samples=9).enough(samples, spent_s) is enough


@pytest.mark.parametrize(("samples", "middle"), [((3.0, 1.0, 2.0), 2.0), ((4.0, 1.0, 3.0, 2.0), 2.5)])
def test_the_median(samples: tuple[float, ...], middle: float) -> None:
    """The middle sample, or the mean of the two in the middle."""
    assert Measurement(samples, "t", 0).median_ns == middle


def test_the_cpu_needs_no_gpu_library() -> None:
    """The CPU's timer is to be had anywhere."""
    with timer_for("cpu").session("torch"):
        timer_for("cpu").synchronize()


class FakeStream:
    """A stream whose start event is done once the host has spent longer than the wait."""

    def __init__(self, enqueue_ns: int) -> None:
        self.enqueue_ns = enqueue_ns
        self.wait_ns = 0
        self.waits: list[int] = []

    def spin(self, grid: Any, block: Any, arguments: tuple[Any, ...]) -> None:
        """A kernel is launched."""
        self.wait_ns = int(arguments[0])
        self.waits.append(self.wait_ns)

    def record(self, stream: object) -> None:
        """An event is recorded."""

    def synchronize(self) -> None:
        """Everything is done at once."""

    @property
    def done(self) -> bool:
        """Whether the start event has passed by the time all is enqueued."""
        return self.enqueue_ns >= self.wait_ns


def queue_of(stream: FakeStream) -> Queue:
    """A queue on a stream that is not there."""
    return Queue(
        spin=stream.spin, seen=None, flush=None, start=stream, stop=stream, stream=stream, elapsed_ms=lambda *_: 0.5
    )


def test_the_wait_grows_until_it_covers_enqueueing() -> None:
    """The spinning kernel waits longer until the work behind it is all enqueued."""
    stream = FakeStream(enqueue_ns=1_000_000)
    queue = queue_of(stream)
    assert queue.adapt(lambda: None)
    assert stream.waits[-1] > 1_000_000
    sample = queue.sample(lambda: "out", 0)
    assert (sample.elapsed_ns, sample.blocked, sample.returned) == (0.5e6, True, "out")


def test_a_call_that_synchronises_is_given_up_on() -> None:
    """Where no wait is long enough, gaps count, and the timer says so."""
    stream = FakeStream(enqueue_ns=10**12)
    assert not queue_of(stream).adapt(lambda: None)
