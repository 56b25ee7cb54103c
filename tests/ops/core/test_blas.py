"""Products of stacks of matrices: what is asked of cuBLAS is the product, in whatever way factors lie in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.ops._cuda import blas
from opgauge.ops._cuda.blas import multiply_stacks
from tests.emulation.cublas import emulated_cuda
from tests.emulation.emulator import DeviceArray

SHAPES = [(1, 1, 1, 1, 1), (3, 2, 4, 5, 6), (2, 3, 1, 4, 1), (2, 1, 4, 1, 3), (4, 1, 6, 2, 1), (2, 7, 3, 2, 4)]
"""(N, G, rows, depth, columns)."""


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cuBLAS that computes here."""
    monkeypatch.setattr(blas, "cupy", lambda: SimpleNamespace(cuda=emulated_cuda()))


def stack(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, transposed: bool) -> Any:
    """Random matrices, (N, G, rows, columns), of which each lies row by row or column by column."""
    order = (*shape[:2], *shape[:1:-1]) if transposed else shape
    values = rng.integers(-4, 5, order).astype(dtype).view(DeviceArray)
    return values.swapaxes(2, 3) if transposed else values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.usefixtures("emulated")
def test_the_product_is_that_of_the_matrices(shape: tuple[int, ...], dtype: str) -> None:
    """Plain and transposed factors, of one image for all or of each; float16 is converted to the result's float32."""
    count, groups, rows, depth, columns = shape
    rng = np.random.default_rng(1)
    for number in range(8):
        a = stack(rng, (count, groups, rows, depth), dtype, transposed=bool(number & 1))
        b = stack(rng, (count, groups, depth, columns), dtype, transposed=bool(number & 2))
        if number & 4:
            a = a[:1]
        # as in channels_last, where the groups' columns lie beside each other
        wide = np.float64 if dtype == "float64" else np.float32
        out = np.zeros((count, rows, groups, columns), wide).view(DeviceArray).swapaxes(1, 2)
        multiply_stacks(a, b, out)()
        assert np.array_equal(out, np.matmul(np.asarray(a, wide), np.asarray(b, wide)))


@pytest.mark.gpu
def test_cublas_agrees() -> None:
    """The same by cuBLAS itself."""
    import cupy

    rng = np.random.default_rng(2)
    for count, groups, rows, depth, columns in SHAPES:
        a, b = rng.random((1, groups, depth, rows)), rng.random((count, groups, depth, columns))
        out = cupy.full((count, groups, rows, columns), np.nan)
        multiply_stacks(cupy.asarray(a).swapaxes(2, 3), cupy.asarray(b), out)()
        assert np.allclose(out.get(), np.matmul(a.swapaxes(2, 3), b))
