"""The logic of the CUDA timer, on a device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from opgauge.harness.measure import Limits, UnfinishedError
from opgauge.harness.measure.cuda import PAGE_BYTES, PLACE_BYTES, CudaTimer
from opgauge.harness.measure.graphs import EMPTY_CALLS, STAMPS
from opgauge.harness.result.result import Footprint

LIMITS = Limits(budget_s=60, min_samples=3, max_samples=4, warmup_s=0.0)
SAMPLES = 12
BASE_MHZ = 1980


class FakeArray:
    """Bytes on a device that is not there."""

    def __init__(self, values: np.ndarray[Any, Any], log: list[str]) -> None:
        self.values = values
        self.nbytes = values.nbytes
        self.data = SimpleNamespace(
            memset_async=lambda *_: log.append("flush"), copy_from_device_async=lambda *_: log.append("copy")
        )

    def __getitem__(self, key: slice) -> Self:
        return type(self)(self.values[key], [])

    def get(self) -> np.ndarray[Any, Any]:
        """The bytes here."""
        return self.values


class FakeCuda:
    """Enough of CuPy for a timer: notes what is enqueued; every event pair is 10 µs apart."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.clocks = [BASE_MHZ] * SAMPLES
        self.uint8, self.float32 = np.uint8, np.float32
        self.capturing = True
        self.elapsed_ms = 0.01
        self.now_ns = self.idle_ns = self.late_ns = 0
        self.late_calls = 100
        runtime = SimpleNamespace(getDevice=lambda: 0)
        self.cuda = SimpleNamespace(
            Device=lambda index: self._context(
                attributes={"L2CacheSize": 50 << 20, "MultiProcessorCount": 132}, synchronize=self._wait
            ),
            Stream=lambda non_blocking: self,
            Event=lambda: SimpleNamespace(record=self._note("event"), synchronize=self._note("wait"), done=False),
            get_elapsed_time=lambda *_: self.elapsed_ms,
            MemoryHook=FakeHook,
            runtime=runtime,
        )
        self.ptr = 0

    def _wait(self, *_: object) -> None:
        """Wait for the device: as long as for an idle one, and for what the last call left elsewhere."""
        is_late = self.log[-3:] == ["call", "event", "wait"] and self.late_calls > 0
        self.now_ns += self.idle_ns + self.late_ns * is_late
        self.late_calls -= is_late

    def _note(self, word: str) -> Callable[..., None]:
        return lambda *_: self.log.append(word)

    def _context(self, **facts: Any) -> Any:
        return type("Context", (), {"__enter__": lambda _: None, "__exit__": lambda *_: None, **facts})()

    def __enter__(self) -> None:
        """The stream is current."""

    def __exit__(self, *_: object) -> None:
        """It is no longer."""

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802  CuPy's name
        """A module whose spinning kernel writes the clock that the test chose."""
        assert "spin" in code
        assert options
        return SimpleNamespace(get_function=lambda name: self._spin if name == "spin" else self._note(name))

    def _spin(self, grid: Any, block: Any, arguments: tuple[Any, FakeArray, Any]) -> None:
        wait_ns, seen, slot = arguments
        self.log.append("spin")
        clock = self.clocks[int(slot) % len(self.clocks)]
        seen.values[2 * slot : 2 * slot + 2] = [int(wait_ns), int(wait_ns) * clock // 1000]

    def zeros(self, size: int, dtype: Any) -> FakeArray:
        """An array."""
        return FakeArray(np.zeros(size, dtype), self.log)

    empty = zeros

    def get_default_memory_pool(self) -> Any:
        """A pool with nothing in it."""
        return SimpleNamespace(free_all_blocks=lambda: None)

    def synchronize(self) -> None:
        """Everything is done at once."""

    def begin_capture(self) -> None:
        """Calls go into a graph from here."""
        self.log.append("begin")

    def end_capture(self) -> Any:
        """A graph, or what CUDA says of a capture that went wrong."""
        self.log.append("end")
        if not self.capturing:
            raise RuntimeError
        return SimpleNamespace(upload=self._note("upload"), launch=self._note("graph"))


class FakeHook:
    """A memory hook that can be entered."""

    def __enter__(self) -> None:
        """It listens."""

    def __exit__(self, *_: object) -> None:
        """It does not."""


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
