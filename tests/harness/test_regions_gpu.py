"""Regions of arrays on a GPU, as on the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opgauge.harness.worker.regions import Pair, differ, exchanging, filling, is_flat, perform, run, slices
from opgauge.ops import available

DTYPES = (np.bool_, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex128)


@pytest.fixture
def cupy() -> Any:
    """CuPy, with a device."""
    if "cuda" not in available():
        pytest.skip("no cuda here")
    return pytest.importorskip("cupy")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_regions_are_exchanged_filled_and_compared(cupy: Any, dtype: Any) -> None:
    """Of two million elements: slices are exchanged as NumPy does, and one other element is seen, not elsewhere."""
    host = np.random.default_rng(0).integers(0, 2, (40, 500, 100)).astype(dtype)
    array, wanted = cupy.asarray(host), host.copy()
    wanted[:, [*range(3, 60), *range(400, 457)]] = host[:, [*range(400, 457), *range(3, 60)]]
    perform([exchanging(array, 1, 3, 400, 57)])
    assert array.get().tobytes() == wanted.tobytes()
    kept, place = array.copy(), array.size // 2 + 1
    flat = array.reshape(-1).view(cupy.uint8)
    perform(filling(flat, [run(place * array.itemsize, place * array.itemsize + 1)], 0xFF))
    assert differ([Pair(array, kept, [run(0, array.size)])])
    assert differ([Pair(array, kept, [slices(array, 0, place // 50_000, 1)])])
    assert not differ([Pair(array, kept, [run(0, place), run(place + 1, array.size)])])
    assert not differ([Pair(kept, kept.copy(), [run(0, array.size)])])


@pytest.mark.gpu
def test_flat_arrays_lie_in_order(cupy: Any) -> None:
    """A transposed array has other addresses."""
    assert is_flat(cupy.zeros((3, 4)))
    assert not is_flat(cupy.zeros((3, 4)).T)
    assert not is_flat(np.zeros((3, 4)))
