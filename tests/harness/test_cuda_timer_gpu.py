"""The CUDA timer on a device: times, gaps, temporaries, clocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from opgauge.harness.measure import Limits
from opgauge.harness.measure.cuda import PLACE_BYTES, CudaTimer
from opgauge.harness.run.environment import nvml_handle
from opgauge.ops import available


@pytest.fixture
def timer() -> CudaTimer:
    """A timer on the first CUDA device."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    return CudaTimer()


GPU_LIMITS = Limits(budget_s=0.3)


@pytest.mark.gpu
def test_a_copy_takes_as_long_as_its_bytes(timer: CudaTimer) -> None:
    """A copy of 256 MB runs at 0.1 to 20 TB/s, cold and hot, at a plausible clock, without a gap."""
    import cupy

    with timer.session("numpy"):
        source = cupy.zeros(64 << 20, cupy.float32)
        target = cupy.empty_like(source)
        found = timer.measure(lambda: cupy.copyto(target, source), GPU_LIMITS).measurement
    assert found.timer == CudaTimer.name
    assert found.hot_ns is not None
    for time_ns in (found.median_ns, found.hot_ns):
        assert 100 < 2 * source.nbytes / time_ns < 20_000
    assert all(100 < clock < 4000 for clock in found.clock_mhz)
    assert found.peak_bytes == 0


@pytest.mark.gpu
def test_temporaries_are_counted(timer: CudaTimer) -> None:
    """A composite with one temporary of 4 MB peaks at 4 MB."""
    import cupy

    with timer.session("numpy"):
        x = cupy.zeros(1 << 20, cupy.float32)

        def call() -> None:
            cupy.negative(x + 1, out=x)

        found = timer.measure(call, GPU_LIMITS).measurement
    assert found.peak_bytes == 4 << 20


@pytest.mark.gpu
def test_launch_gaps_are_kept_out(timer: CudaTimer) -> None:
    """Ten tiny kernels take less than launching them from the host would: they are queued."""

    def call() -> None:
        for _ in range(10):
            timer.launch_empty()

    with timer.session("numpy"):
        found = timer.measure(call, GPU_LIMITS).measurement
    assert found.timer == CudaTimer.name
    assert found.median_ns < 40_000


@pytest.mark.gpu
def test_a_long_call_is_made_once_at_other_addresses(timer: CudaTimer) -> None:
    """Calls of 10 ms at eight places: each place is called once, for its outputs, and the hot time is of one place."""
    import cupy

    made = [0] * 8
    with timer.session("numpy"):
        scratch = cupy.zeros(1, cupy.float32)

        def at(place: int) -> None:
            made[place] += 1
            timer.launch_arithmetic(scratch, 1, 4_000_000)

        places = [partial(at, place) for place in range(len(made))]
        found = timer.measure(places[0], Limits(budget_s=0.02), None, places).measurement
    assert made[1:] == [1] * 7
    assert found.hot_ns == pytest.approx(found.median_ns, rel=0.2)


@pytest.mark.gpu
def test_a_synchronising_call_is_measured_with_its_gaps(timer: CudaTimer) -> None:
    """A call that waits for the device cannot be queued or captured; it is measured all the same."""
    with timer.session("numpy"):

        def call() -> None:
            timer.launch_empty()
            timer.synchronize()

        found = timer.measure(call, Limits(budget_s=0.1, max_samples=5)).measurement
    assert found.timer == CudaTimer.name_with_gaps
    assert found.hot_ns is not None


@pytest.mark.gpu
def test_torch_allocates_elsewhere_in_another_block() -> None:
    """What a small call returns lies in another place of the device's memory."""
    import torch

    places, timers = set(), [CudaTimer(0, block) for block in range(3)]
    for timer in timers:
        with timer.session("torch"):
            places.add(torch.ones(16, device="cuda").data_ptr() // PLACE_BYTES)
    assert len(places) == len(timers)


@pytest.mark.gpu
def test_torch_runs_on_the_same_stream(timer: CudaTimer) -> None:
    """A torch call is captured and timed as ours are, and its outputs come back right."""
    import torch

    with timer.session("torch"):
        x = torch.ones(64 << 20, device="cuda")
        found, returned = timer.measure(lambda: (x + 1,), GPU_LIMITS)
        assert bool(torch.all(returned[0] == 2))
    assert found.timer == CudaTimer.name
    assert 100 < 2 * x.nbytes / found.median_ns < 20_000
    assert found.peak_bytes == 0


@pytest.mark.gpu
def test_the_clock_of_samples_is_the_drivers(timer: CudaTimer) -> None:
    """The SM clock that samples carry is the one that NVIDIA's management library reads meanwhile, within 3 %."""
    import threading

    import cupy

    nvml: Any = pytest.importorskip("pynvml", reason="no management library here")
    nvml.nvmlInit()
    handle = nvml_handle(nvml, 0)
    read: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            read.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))

    with timer.session("numpy"):
        square = cupy.ones((4096, 4096), cupy.float32)
        watcher = threading.Thread(target=watch)
        watcher.start()
        found = timer.measure(lambda: cupy.matmul(square, square), Limits(budget_s=1.0)).measurement
        done.set()
        watcher.join()
    assert found.dropped <= len(found.samples_ns) // 20
    seen = float(np.median(read))
    assert float(np.median(found.clock_mhz)) == pytest.approx(seen, rel=0.03), read


@pytest.mark.gpu
def test_calibrations_of_one_process_agree(timer: CudaTimer) -> None:
    """Two calibrations in one process differ by less than 10 %, and are what the device can do."""
    first, second = timer.calibrate(), timer.calibrate()
    assert second.level_ns == pytest.approx(first.level_ns, rel=0.1)
    assert first.launch_ns < first.arithmetic_ns
    assert first.clock_mhz is not None
    assert 100 < first.clock_mhz < 4000
