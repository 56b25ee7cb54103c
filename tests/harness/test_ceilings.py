"""Ceilings of the CPU here, and of CUDA where there is one."""

from __future__ import annotations

import pytest

from harness import ceilings
from harness.ceilings import measure
from ops import BackendError, available


def test_the_cpu_has_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidths, matrix rates and the cost of a call are positive, whatever the sizes."""
    monkeypatch.setattr(ceilings, "CPU_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 32)
    found = measure("cpu")
    numbers = [found.copy_gbps, found.write_gbps, found.launch_ns, *found.matrix_gflops.values()]
    assert all(number is not None and number > 0 for number in numbers)
    assert set(found.matrix_gflops) == {"float32", "float64"}


def test_what_is_no_device_raises() -> None:
    """A misspelt device is an error."""
    with pytest.raises(BackendError):
        measure("gpu")


@pytest.mark.gpu
def test_cuda_has_ceilings() -> None:
    """A GPU copies more than 100 GB/s and multiplies float16 at least as fast as float32."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    found = measure("cuda:0")
    assert found.copy_gbps is not None
    assert found.copy_gbps > 100
    assert found.matrix_gflops["float16"] >= found.matrix_gflops["float32"]
