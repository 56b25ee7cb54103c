"""Ceilings of the CPU here, and of CUDA where there is one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from opgauge.harness.measure import jit_streaming
from opgauge.harness.result.ceilings import Ceilings, PeakBound
from opgauge.harness.result.result import Measurement, Result, Status
from opgauge.harness.result.summary import peak_bound, within_peaks
from opgauge.harness.run.peaks import AchievedPeaks
from opgauge.harness.worker import call_time, ceilings
from opgauge.harness.worker.ceilings import measure
from opgauge.harness.worker.phases import Phases
from opgauge.ops import BackendError, available
from tests.faulty.trial import trial


def test_the_cpu_has_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidths, matrix rates and the cost of a call are positive, whatever the sizes, within the cache and beyond."""
    monkeypatch.setattr(ceilings, "_last_cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr(ceilings, "CPU_BYTES", 1 << 18)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 32)
    found = measure("cpu")
    numbers = [found.copy_gbps, found.write_gbps, found.launch_ns, *found.matrix_gflops.values()]
    assert all(number is not None and number > 0 for number in numbers)
    assert set(found.matrix_gflops) == {"float32", "float64"}
    assert found.sizes == (1 << 14, 1 << 16, 1 << 18)
    assert [len(times) for times in (found.copies_ns, found.writes_ns, found.reads_ns)] == [3, 3, 3]
    assert found.copy_gbps == found.sizes[-1] / found.copies_ns[-1]


def test_what_is_no_device_raises() -> None:
    """A misspelt device is an error."""
    with pytest.raises(BackendError):
        measure("gpu")


@pytest.mark.parametrize(
    ("nbytes", "expected_ns"),
    [(100, 8.0), (1000, 8.0), (4000, 16.0), (2500, 12.0), (8000, 16.0 * 8**0.5), (16000, 128.0), (32000, 256.0)],
)
def test_the_floor_is_a_copy_of_the_same_bytes(nbytes: int, expected_ns: float) -> None:
    """Between measured sizes by a line or a power law, beyond them in proportion; the least below, without a launch."""
    times = {"copies_ns": (8.0, 16.0, 128.0), "writes_ns": (1.0, 2.0, 4.0)}
    found = Ceilings("cuda:0", 250.0, sizes=(1000, 4000, 16000), **times)  # type: ignore[arg-type]
    assert found.floor_ns(nbytes, 0, "float32") == pytest.approx(expected_ns)


@pytest.mark.parametrize(("launch_ns", "expected_ns"), [(4.0, 5.0), (9.0, 8.0)])
def test_the_floor_of_the_smallest_cases_begins_at_an_empty_launch(launch_ns: float, expected_ns: float) -> None:
    """A quarter of the smallest measured size takes a launch and a quarter of the rest, and no longer than all."""
    found = Ceilings("cuda:0", 250.0, launch_ns=launch_ns, sizes=(1000, 4000), copies_ns=(8.0, 16.0))
    assert found.floor_ns(250, 0, "float32") == expected_ns


def test_a_cpu_has_no_floor_for_less_than_the_smallest_size() -> None:
    """The call decides there, and takes longer for some functions than for others."""
    found = Ceilings("cpu", 250.0, None, {"float32": 10.0}, sizes=(1000, 4000), copies_ns=(8.0, 16.0))
    assert found.floor_ns(999, 0, "float32") is None
    assert found.floor_ns(999, 100, "float32") == 10.0
    assert found.floor_ns(1000, 0, "float32") == 8.0


def test_the_floor_is_the_largest_of_what_is_known() -> None:
    """Fills have their own times; arithmetic counts where it takes longer; without a ladder bandwidth counts."""
    found = Ceilings("cpu", 2.0, 4.0, {"float32": 10.0}, sizes=(1000,), copies_ns=(8.0,), writes_ns=(1.0,))
    assert found.floor_ns(1000, 0, "float32", written=1.0) == 1.0
    assert found.floor_ns(1000, 100, "float32") == 10.0
    assert found.floor_ns(1000, 100, "float64") == 8.0
    assert found.floor_ns(0, 0, "float32") is None
    old = Ceilings("cpu", 2.0, 4.0)
    assert [old.floor_ns(1000, 0, "float32", written=share) for share in (0.5, 1.0)] == [500.0, 250.0]


@pytest.mark.gpu
def test_cuda_has_ceilings() -> None:
    """A GPU copies more than 100 GB/s and multiplies float16 at least as fast as float32."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    found = measure("cuda:0")
    assert found.copy_gbps is not None
    assert found.copy_gbps > 100
    assert list(found.copies_ns)[-3:] == sorted(found.copies_ns)[-3:]
    assert found.matrix_gflops["float16"] >= found.matrix_gflops["float32"]


COPIED_FIRST = "import numpy, opgauge.harness.measure.jit as measured; measured.fill(numpy.empty(4), 0.0)"
INSTRUCTIONS = """
import sys
from numba.core.registry import cpu_target
there = "opgauge.ops._cpu.jit" in sys.modules
import opgauge.ops._cpu.jit
print(there, cpu_target.target_context.codegen().magic_tuple())
"""


def test_ceilings_leave_kernels_their_instructions() -> None:
    """What Numba may use is settled by what it compiles first: with wider vectors copies take 1.3 times as long."""
    found = [
        subprocess.run([sys.executable, "-c", first + INSTRUCTIONS], capture_output=True, text=True, check=True).stdout
        for first in (COPIED_FIRST, "import opgauge.ops._cpu.jit")
    ]
    assert found[0].startswith("True")
    assert found[0] == found[1]


REACHED = Ceilings(
    "cuda:0",
    matrix_gflops={"float32": 50.0, "tf32": 300.0, "float16": 800.0},
    sizes=(1000,),
    copies_ns=(10.0,),
    writes_ns=(8.0,),
    reads_ns=(6.0,),
)


@pytest.mark.parametrize(
    ("written", "time_ns", "peak"),
    [
        (0.0, 6.0, "read"),
        (0.1, 6.3, "read"),
        (1 / 3, 7.0, "add"),
        (0.4, 8.2, "add"),
        (0.5, 10.0, "copy"),
        (1.0, 8.0, "write"),
    ],
)
def test_a_third_that_is_written_has_a_peak_of_its_own(written: float, time_ns: float, peak: str) -> None:
    """Two arrays are read for one written: less than copies and reads would say."""
    found = replace(REACHED, adds_ns=(7.0,)).bound(1000, 0, "float32", written=written)
    assert found is not None
    assert found.time_ns == pytest.approx(time_ns)
    assert found.peak == peak


@pytest.mark.parametrize(
    ("written", "time_ns", "peak"),
    [(0.0, 6.0, "read"), (0.2, 7.6, "read"), (0.4, 9.2, "copy"), (0.5, 10.0, "copy"), (1.0, 8.0, "write")],
)
def test_the_bound_follows_the_share_that_is_written(written: float, time_ns: float, peak: str) -> None:
    """A read-only case is bound by reads, a fill by writes, a mix by a mix of them and copies."""
    found = REACHED.bound(1000, 0, "float32", written=written)
    assert found is not None
    assert found.time_ns == pytest.approx(time_ns)
    assert found.peak == peak


@pytest.mark.parametrize(
    ("dtype", "time_ns", "peak"),
    [("float32", 100.0, "matrix 3×TF32"), ("float16", 12.5, "matrix"), ("int8", 10.0, "copy")],
)
def test_the_matrix_bound_is_of_the_fastest_mode_of_full_precision(dtype: str, time_ns: float, peak: str) -> None:
    """Three TF32 products count for float32 where they are faster than multiply-adds; tf32 itself does not."""
    found = REACHED.bound(1000, 10_000, dtype)
    assert found is not None
    assert found.time_ns == pytest.approx(time_ns)
    assert found.peak == peak


@pytest.mark.parametrize(("median_ns", "status"), [(2000.0, Status.WRONG), (6000.0, Status.OK)])
def test_a_time_below_the_bound_is_wrong(median_ns: float, status: Status) -> None:
    """The reason has both figures and the peak."""
    reached = Ceilings("cpu", copy_gbps=1.0)
    measured = Measurement((median_ns,), "fake", 1)
    found = within_peaks(Result(trial("baseline"), Status.OK, measurement=measured, bytes=7000), {"cpu": reached})
    assert found.status is status
    if status is Status.WRONG:
        assert found.reason == "faster than the device allows: 2 µs, at least 7 µs by copy"


def test_a_case_below_the_smallest_size_is_judged_by_its_share_of_it() -> None:
    """A copy of 16 KiB takes as long as its launch: 500 bytes may take less."""
    reached = Ceilings("cuda:0", copy_gbps=1.0, sizes=(16384, 65536), copies_ns=(20_000.0, 80_000.0))
    measured = Measurement((2000.0,), "fake", 1)
    on_device = replace(trial("baseline"), device="cuda:0")
    small = Result(on_device, Status.OK, measurement=measured, bytes=500)
    assert within_peaks(small, {"cuda:0": reached}).status is Status.OK
    assert within_peaks(replace(small, bytes=16_000), {"cuda:0": reached}).status is Status.WRONG


def test_the_better_of_two_measurements_of_a_peak_counts() -> None:
    """Shorter times and higher rates, each by itself; other sizes than before replace them."""
    first = Ceilings("cpu", 10.0, 5.0, {"float32": 50.0}, sizes=(10, 20), copies_ns=(1.0, 4.0), writes_ns=(3.0, 3.0))
    second = Ceilings("cpu", 8.0, 6.0, {"float64": 9.0}, sizes=(10, 20), copies_ns=(2.0, 3.0), writes_ns=(2.0, 4.0))
    best = first.best_of(second)
    assert (best.copy_gbps, best.write_gbps) == (10.0, 6.0)
    assert best.matrix_gflops == {"float32": 50.0, "float64": 9.0}
    assert replace(first, launch_ns=5.0).best_of(replace(second, launch_ns=4.0)).launch_ns == 4.0
    assert first.best_of(replace(second, launch_ns=4.0)).launch_ns == 4.0
    assert (best.copies_ns, best.writes_ns) == ((1.0, 3.0), (2.0, 3.0))
    assert first.best_of(Ceilings("cpu", 1.0, sizes=(10,))).copy_gbps == 1.0


@pytest.mark.parametrize(("switches", "best_ns"), [(0, 100_000.0), (1, 30_000.0)])
def test_a_peak_does_not_include_waiting_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, switches: int, best_ns: float
) -> None:
    """A call of 100 µs that uses two threads for 60 µs in all: the rest is waiting if a thread was switched out."""
    clocks = {"perf_counter_ns": 0, "process_time_ns": 0, "switches_of_process": 0}

    def call() -> None:
        clocks["perf_counter_ns"] += 100_000
        clocks["process_time_ns"] += 60_000
        clocks["switches_of_process"] += switches

    for name in tuple(clocks):
        monkeypatch.setattr(call_time, name, partial(clocks.__getitem__, name))
    monkeypatch.setattr(ceilings, "perf_counter_ns", partial(clocks.__getitem__, "perf_counter_ns"))
    assert ceilings._best_ns(2, call) == best_ns


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_streaming_copies_and_fills_write_what_they_should(start: int, pieces: int) -> None:
    """All of the target, wherever it begins within a cache line, and nothing beside it."""
    source, target = np.arange(997.0), np.full(1010, -1.0)
    jit_streaming.copy(source, target[start : start + source.size], pieces)
    assert np.array_equal(target[start : start + source.size], source)
    jit_streaming.fill(target[start : start + source.size], 2.0, pieces)
    assert np.count_nonzero(target == 2.0) == source.size
    assert set(target[:start]) | set(target[start + source.size :]) == {-1.0}


@pytest.mark.parametrize(
    ("gbps", "again_ns", "status", "measured"),
    [
        ((1.0, 4.0), 0.0, Status.OK, 2),
        ((3.0, 9.0), 0.0, Status.OK, 2),
        ((1.0, 1.0, 1.0, 9.0), 2000.0, Status.WRONG, 3),
        ((1.0, 1.0, 1.0, 9.0), 6000.0, Status.OK, 3),
    ],
)
def test_peaks_are_measured_again_before_a_time_is_impossible(
    gbps: tuple[float, ...], again_ns: float, status: Status, measured: int
) -> None:
    """Up to three times in a run, also if a time is not impossible but above its bound; then the trial once more."""
    rates = iter([Ceilings("cpu", copy_gbps=one) for one in (0.5, *gbps)])
    stored: list[Ceilings] = []
    result = Result(trial("baseline"), Status.OK, measurement=Measurement((2000.0,), "fake", 1), bytes=7000)
    again = replace(result, measurement=Measurement((again_ns,), "fake", 1))
    executor = SimpleNamespace(ceilings=lambda _: next(rates), run=lambda *_, block: [replace(again, block=block)])
    peaks = AchievedPeaks(executor, stored.append)  # type: ignore[arg-type]
    peaks.measure_once("cpu")
    judged = peaks.judge(result)
    assert judged.status is status
    assert judged.measurement == (again if again_ns else result).measurement
    assert (len(stored), peaks.known["cpu"]) == (1 + measured, stored[-1])
    peaks.judge(result)
    peaks.measure_once("cpu")
    assert len(stored) == 1 + (3 if again_ns else measured)


@pytest.mark.parametrize(("relaxed", "status"), [({}, Status.WRONG), ({"relaxed": 2.0**13}, Status.OK)])
def test_a_relaxed_kernel_is_judged_by_one_product_of_tf32(relaxed: dict[str, float], status: Status) -> None:
    """Rounding to TF32 is as fast as one product: that is possible for kernels that declare it, and for no others."""
    measured = Measurement((4000.0,), "fake", 1)
    result = Result(trial("baseline"), Status.OK, measurement=measured, bytes=0, flops=1_000_000, extra=relaxed)
    reached = {"cpu": Ceilings("cpu", matrix_gflops={"float32": 60.0, "tf32": 300.0})}
    assert within_peaks(result, reached).status is status
    found = peak_bound(result, reached)
    assert found == (PeakBound(1e6 / 300, "matrix TF32") if relaxed else PeakBound(1e6 / 100, "matrix 3×TF32"))


def test_a_result_says_how_far_its_implementation_is_relaxed() -> None:
    """The worker stores what the kernel declares."""
    phases = Phases()
    assert "relaxed" not in phases.extra(failed=False)
    phases.relaxed = 2.0**13
    assert phases.extra(failed=False)["relaxed"] == 2.0**13
