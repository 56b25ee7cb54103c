"""Ceilings of the CPU here, and of CUDA where there is one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opgauge.harness.result.result import Ceilings
from opgauge.harness.worker import ceilings
from opgauge.harness.worker.ceilings import measure
from opgauge.ops import BackendError, available


def test_the_cpu_has_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidths, matrix rates and the cost of a call are positive, whatever the sizes."""
    monkeypatch.setattr(ceilings, "CPU_BYTES", 1 << 18)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 32)
    found = measure("cpu")
    numbers = [found.copy_gbps, found.write_gbps, found.launch_ns, *found.matrix_gflops.values()]
    assert all(number is not None and number > 0 for number in numbers)
    assert set(found.matrix_gflops) == {"float32", "float64"}
    assert found.sizes == (1 << 14, 1 << 16, 1 << 18)
    assert [len(times) for times in (found.copies_ns, found.writes_ns)] == [3, 3]
    assert found.copy_gbps == found.sizes[-1] / found.copies_ns[-1]


def test_what_is_no_device_raises() -> None:
    """A misspelt device is an error."""
    with pytest.raises(BackendError):
        measure("gpu")


@pytest.mark.parametrize(
    ("nbytes", "expected_ns"), [(100, 8.0), (1000, 8.0), (4000, 16.0), (2000, 8.0 * 2**0.5), (8000, 32.0)]
)
def test_the_floor_is_a_copy_of_the_same_bytes(nbytes: int, expected_ns: float) -> None:
    """Between measured sizes by a power law, beyond them in proportion, below them as long as the least."""
    found = Ceilings("cpu", 250.0, sizes=(1000, 4000), copies_ns=(8.0, 16.0), writes_ns=(1.0, 2.0))
    assert found.floor_ns(nbytes, 0, "float32") == pytest.approx(expected_ns)


def test_the_floor_is_the_largest_of_what_is_known() -> None:
    """Fills have their own times; arithmetic counts where it takes longer; without a ladder bandwidth counts."""
    found = Ceilings("cpu", 2.0, 4.0, {"float32": 10.0}, sizes=(1000,), copies_ns=(8.0,), writes_ns=(1.0,))
    assert found.floor_ns(1000, 0, "float32", writes_only=True) == 1.0
    assert found.floor_ns(1000, 100, "float32") == 10.0
    assert found.floor_ns(1000, 100, "float64") == 8.0
    assert found.floor_ns(0, 0, "float32") is None
    old = Ceilings("cpu", 2.0, 4.0)
    assert [old.floor_ns(1000, 0, "float32", writes_only=only) for only in (False, True)] == [500.0, 250.0]


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
