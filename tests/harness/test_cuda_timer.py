"""The logic of the CUDA timer, on a device that is not there."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from opgauge.harness.measure import Limits, UnfinishedError
from opgauge.harness.measure.cuda import PAGE_BYTES, PLACE_BYTES, CudaTimer
from opgauge.harness.measure.graphs import EMPTY_CALLS, STAMPS
from opgauge.harness.result.result import Footprint
from tests.fake_cuda import BASE_MHZ, SAMPLES, FakeArray, FakeCuda

LIMITS = Limits(budget_s=60, min_samples=3, max_samples=4, warmup_s=0.0)
ADAPTING = 3
"""Samples before these that find the length of the wait."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A device that is not there."""
    made = FakeCuda()
    monkeypatch.setattr("opgauge.harness.measure.cuda.cupy", lambda: made)
    monkeypatch.setattr("opgauge.harness.measure.calibration.cupy", lambda: made)
    return made


def test_buffers_of_another_block_lie_in_other_pages(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pages as the number of the block are taken before anything else, and held."""
    asked: list[int] = []

    def empty(size: int, dtype: Any) -> FakeArray:
        asked.append(size)
        return FakeArray(np.zeros(size, dtype), fake.log)

    monkeypatch.setattr(fake, "empty", empty)
    timers = [CudaTimer(0, block) for block in (0, 1, 3)]
    assert [size for size in asked if size % PAGE_BYTES == 0] == [0, PAGE_BYTES, 3 * PAGE_BYTES]
    assert timers[2]._pages.nbytes == 3 * PAGE_BYTES


@pytest.mark.usefixtures("fake")
def test_torch_tensors_of_another_block_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's pool is asked for as many places as the number of the block, once, and they are held."""
    asked: list[tuple[int, str]] = []

    def empty(size: int, *, dtype: Any, device: str) -> Any:
        assert dtype == "uint8"
        asked.append((size, device))
        return bytearray(size)

    cuda = SimpleNamespace(device=nullcontext, stream=nullcontext, ExternalStream=lambda ptr: ptr)
    torch = SimpleNamespace(cuda=cuda, empty=empty, uint8="uint8")
    monkeypatch.setattr("opgauge.harness.measure.cuda.import_module", {"torch": torch}.__getitem__)
    timers = [CudaTimer(0, block) for block in (0, 1, 3)]
    for timer in (*timers, *timers):
        with timer.session("torch"):
            pass
    assert asked == [(PLACE_BYTES, "cuda:0"), (3 * PLACE_BYTES, "cuda:0")]
    assert len(timers[2]._torch_places) == 3 * PLACE_BYTES


def measure(fake: FakeCuda, limits: Limits = LIMITS) -> Any:
    """A measurement of a call that only notes itself."""
    timer = CudaTimer()
    fake.log.clear()
    fake.waits_ns.clear()
    with timer.session("numpy"):
        return timer.measure(lambda: fake.log.append("call"), limits).measurement


def test_a_cold_sample_flushes_spins_and_is_between_events(fake: FakeCuda) -> None:
    """The order is flush, spin, event, call, event, wait; a flush first displaces what is to be evicted last."""
    measured = measure(fake)
    text = " ".join(fake.log)
    sample = "displace release flush spin event call event wait"
    assert f"{sample} {sample}" in text
    assert measured.samples_ns == (1e4,) * SAMPLES
    assert measured.timer == "cuda-event-cold/2"
    assert measured.peak_bytes == 0
    assert measured.footprint == Footprint(launches=None, kernels=None, allocations=0)


def test_slow_hooks_do_not_use_up_the_budget(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that take as long as the patience: all samples are taken."""
    monkeypatch.setattr("opgauge.harness.measure.timer.perf_counter_ns", lambda: fake.now_ns)
    monkeypatch.setattr("opgauge.harness.measure.cuda.perf_counter", lambda: fake.now_ns / 1e9)

    def wait(*_: object) -> None:
        fake.now_ns += 10**10

    timer, hooks = CudaTimer(), SimpleNamespace(before=wait, after=wait)
    limits = replace(LIMITS, budget_s=1.0)
    with timer.session("numpy"):
        assert len(timer.measure(lambda: None, limits, hooks).measurement.samples_ns) == SAMPLES


@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, budget_s=0.0)])
@pytest.mark.parametrize(
    ("late_ns", "idle_ns", "flagged"), [(0, 5_000, False), (200_000, 5_000, True), (0, 200_000, False)]
)
def test_work_that_is_left_is_told_from_a_busy_host(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, limits: Limits, late_ns: int, idle_ns: int, *, flagged: bool
) -> None:
    """Waits for the device after each call are compared with waits for an idle one, which others make long."""
    monkeypatch.setattr("opgauge.harness.measure.cuda.perf_counter_ns", lambda: fake.now_ns)
    fake.late_ns, fake.idle_ns = late_ns, idle_ns
    with pytest.raises(UnfinishedError, match="another stream") if flagged else nullcontext():
        measure(fake, limits)


@pytest.mark.parametrize(("late_calls", "flagged"), [(1, False), (8, False), (9, True)])
def test_a_few_late_samples_are_confirmed(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, late_calls: int, *, flagged: bool
) -> None:
    """A late sample may be due to other processes: each of eight further ones must be late."""
    monkeypatch.setattr("opgauge.harness.measure.cuda.perf_counter_ns", lambda: fake.now_ns)
    fake.late_ns, fake.late_calls = 200_000, late_calls
    with pytest.raises(UnfinishedError, match="another stream") if flagged else nullcontext():
        measure(fake, replace(LIMITS, budget_s=0.0))


def test_a_call_that_leaves_another_stream_current_is_told(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness would launch on it, and time an empty stream."""
    monkeypatch.setattr(fake.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=fake.ptr + 1))
    with pytest.raises(UnfinishedError, match="another stream current"):
        measure(fake)


def test_the_hot_figure_is_a_graphs(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many calls are captured once and replayed without a flush; the time is one call's, by the device's clock."""
    clock_ns = [0, 30_000, 50_200]
    plain = fake.zeros
    monkeypatch.setattr(
        fake,
        "zeros",
        lambda size, dtype: FakeArray(np.array(clock_ns, dtype), []) if size == STAMPS else plain(size, dtype),
    )
    measured = measure(fake)
    one, ours = (text.partition(" end ")[0].split() for text in " ".join(fake.log).split("begin")[1:])
    assert (one.count("call"), ours.count("call"), ours.count("empty"), ours.count("stamp")) == (1, 200, EMPTY_CALLS, 3)
    assert measured.hot_ns == (30_000 - 20_200 / (EMPTY_CALLS + 1)) / 200
    assert "flush" not in fake.log[fake.log.index("begin") :]


def test_the_hot_figure_is_of_calls_at_all_places_in_turn(fake: FakeCuda) -> None:
    """As many at each; what torch allocates for the results of the last calls is held, places apart."""
    asked: list[int] = []
    held: WeakSet[Any] = WeakSet()
    most = 0

    def at(name: str) -> Callable[[], tuple[Any]]:
        def call() -> tuple[Any]:
            nonlocal most
            fake.log.append(name)
            result = FakeArray(np.zeros(1), [])
            held.add(result)
            most = max(most, len(held))
            return (result,)

        return call

    timer = CudaTimer()
    timer._torch = SimpleNamespace(empty=lambda size, **_: asked.append(size), uint8="uint8")
    fake.log.clear()
    timer._hot(at("a"), 1e4, LIMITS, None, [at("a"), at("b"), at("c")])
    assert asked == [PLACE_BYTES] * 3
    before, replayed = " ".join(fake.log).split("begin stamp ")
    assert before.split() == ["a", "b", "c"]
    assert replayed.split(" stamp ")[0].split() == ["a", "b", "c"] * (200 // 3)
    assert most == 3


def test_what_launches_nothing_has_no_hot_figure(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that only makes a view is captured once, to see that it launches nothing."""
    monkeypatch.setattr("opgauge.harness.measure.cuda.graph_names", lambda graph: ())
    measured = measure(fake)
    assert (measured.hot_ns, measured.footprint.launches) == (None, 0)
    assert fake.log.count("begin") == 1


def test_names_come_from_a_graph_of_one_call(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call launches is read from a graph that holds one call."""
    captured: list[str] = []

    def read(graph: Any) -> tuple[str, ...]:
        captured.extend(fake.log[len(fake.log) - fake.log[::-1].index("begin") : -2])
        return ("first", "[copy]")

    monkeypatch.setattr("opgauge.harness.measure.cuda.graph_names", read)
    footprint = measure(fake).footprint
    assert captured == ["call"]
    assert (footprint.launches, footprint.kernels) == (2, ("first", "[copy]"))


def test_calibration_times_a_copy_arithmetic_and_an_empty_launch(fake: FakeCuda) -> None:
    """The calibration workload is fixed, and its times are medians, with the clock."""
    fake.clocks = [BASE_MHZ]
    found = CudaTimer().calibrate()
    assert (found.copy_ns, found.arithmetic_ns, found.launch_ns) == (1e4, 1e4, 1e4)
    assert found.clock_mhz == pytest.approx(BASE_MHZ, rel=1e-3)
    assert {"copy", "multiply_add", "empty"} <= set(fake.log)
    assert found.level_ns == 1e4


def test_what_cannot_be_captured_is_called_back_to_back(fake: FakeCuda) -> None:
    """A capture that fails is ended, and the hot figure comes from plain calls."""
    fake.capturing = False
    measured = measure(fake)
    after = fake.log[fake.log.index("end") :]
    assert "graph" not in after
    assert after.count("call") == (1 + 9) * 200 + 1
    assert measured.hot_ns == 50.0


def test_what_cannot_be_captured_stays_at_its_first_address(fake: FakeCuda) -> None:
    """Moving tensors from call to call would be timed with plain calls."""
    fake.capturing = False
    timer = CudaTimer()
    fake.log.clear()
    timer._hot(lambda: fake.log.append("call"), 1e4, LIMITS, None, [lambda: fake.log.append("elsewhere")] * 2)
    after = fake.log[fake.log.index("end") :]
    assert after.count("call") == 9 * 200
    assert "elsewhere" not in after


def test_samples_with_launch_gaps_are_dropped_and_the_wait_grows(fake: FakeCuda) -> None:
    """A host that takes long at times leaves gaps in these samples only; the wait doubles, then shrinks again."""
    fake.enqueue_ns = lambda sample: 50_000 if sample in {ADAPTING + 2, ADAPTING + 8} else 0
    measured = measure(fake)
    assert (len(measured.samples_ns), measured.dropped) == (SAMPLES - 1, 1)
    assert measured.timer == "cuda-event-cold/2"
    waits_ns = fake.waits_ns[ADAPTING : ADAPTING + SAMPLES]
    assert waits_ns[2] == 2 * waits_ns[1]
    assert all(30_000 < now < before for before, now in pairwise(waits_ns[2:]))


def test_samples_with_launch_gaps_do_not_count_as_wanted(fake: FakeCuda) -> None:
    """Without time, the least number of samples is taken beside those with gaps."""
    fake.enqueue_ns = lambda sample: 50_000 if sample in {ADAPTING + 1, ADAPTING + 3} else 0
    measured = measure(fake, replace(LIMITS, budget_s=0.0, patience=math.inf))
    assert (len(measured.samples_ns), measured.dropped) == (3, 1)


def test_a_call_that_waits_for_the_device_has_gaps(fake: FakeCuda) -> None:
    """All samples count, the timer's name says so, and the wait stays short."""
    fake.enqueue_ns = lambda _: 10**9
    measured = measure(fake)
    assert (len(measured.samples_ns), measured.dropped) == (SAMPLES, 0)
    assert measured.timer == "cuda-event-cold/2 with launch gaps"
    most_ns = fake.waits_ns.index(max(fake.waits_ns))
    assert set(fake.waits_ns[most_ns + 1 :][:SAMPLES]) == {30_000}


def test_a_host_that_covers_few_samples_has_gaps(fake: FakeCuda) -> None:
    """If most samples have gaps though the first had none, all count, and the timer's name says so."""
    fake.enqueue_ns = lambda sample: 0 if sample <= ADAPTING + 2 else 10**9
    measured = measure(fake)
    assert (len(measured.samples_ns), measured.dropped) == (SAMPLES, 0)
    assert measured.timer == "cuda-event-cold/2 with launch gaps"


def test_throttled_samples_are_dropped_and_counted(fake: FakeCuda) -> None:
    """Samples at less than three quarters of the usual clock do not count."""
    fake.clocks[2] = fake.clocks[7] = 1200
    measured = measure(fake)
    assert measured.dropped == 2
    assert len(measured.samples_ns) == len(measured.clock_mhz) == SAMPLES - 2
    assert min(measured.clock_mhz) == pytest.approx(BASE_MHZ, rel=1e-3)


def test_a_hook_counts_what_is_held_at_a_time(fake: FakeCuda) -> None:
    """The peak of allocations is the most held at once, not their sum; those of others may be freed meanwhile."""
    from opgauge.harness.measure.footprint import memory_counter

    counter = memory_counter(fake)
    counter.free_postprocess(mem_size=2048, mem_ptr=9, device_id=0)
    counter.malloc_postprocess(mem_size=512, mem_ptr=1, device_id=0)
    counter.malloc_postprocess(mem_size=1024, mem_ptr=2, device_id=0)
    counter.free_postprocess(mem_size=512, mem_ptr=1, device_id=0)
    counter.malloc_postprocess(mem_size=256, mem_ptr=1, device_id=0)
    assert (counter.peak, counter.live, counter.count) == (1536, 1280, 3)
