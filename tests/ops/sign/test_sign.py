"""sign: zeros, subnormal numbers, NaN, and every dtype, on the CPU and on CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops import dtype_info, find_kernel, find_op
from opgauge.ops._core.backend import to_backend, to_numpy
from opgauge.ops._core.dtype import INTS

SPECIAL = [0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 2.5, -3.0]


def signs(values: list[float], dtype: str, implementation: str, backend: str) -> list[float]:
    """What a kernel makes of `values`."""
    x = np.array(values, np.float64).astype(dtype_info(dtype).numpy)
    out = np.zeros_like(x)
    result = to_backend(out, backend)
    kernel = find_kernel("sign", implementation, backend, dtype)
    kernel.bind({"x": to_backend(x, backend)}, find_op("sign").params(), {"out": result})()
    found = to_numpy(result).astype(np.float64)
    return [float(value) for value in found]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("implementation", ["baseline", "optimized"])
def test_special_values_on_the_cpu(dtype: str, implementation: str) -> None:
    """Both zeros give 0, subnormal numbers have a sign, NaN stays NaN."""
    expected = [0, 0, 1, -1, 1, -1, np.nan, 1, -1]
    assert np.array_equal(signs(SPECIAL, dtype, implementation, "cpu"), expected, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_special_values_on_cuda(dtype: str) -> None:
    """The same on CUDA, where CuPy's own kernels flush subnormal numbers to zero."""
    expected = [0, 0, 1, -1, 1, -1, np.nan, 1, -1]
    assert np.array_equal(signs(SPECIAL, dtype, "optimized", "cuda"), expected, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_of_16_bits_on_cuda(dtype: str, first: int) -> None:
    """Two at a time and one by one: as from their float64, and no zero has a sign."""
    x = to_backend(np.arange(1 << 16, dtype=np.uint16).view(dtype_info(dtype).numpy), "cuda")[first:]
    out = to_backend(np.ones((1 << 16) - first, dtype_info(dtype).numpy), "cuda")
    find_kernel("sign", "optimized", "cuda", dtype).bind({"x": x}, find_op("sign").params(), {"out": out})()
    with np.errstate(invalid="ignore"):  # of signaling NaN
        given, found = to_numpy(x).astype(np.float64), to_numpy(out).astype(np.float64)
    assert np.array_equal(found, np.sign(given), equal_nan=True)
    assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("dtype", INTS)
def test_integers_of_every_size(dtype: str) -> None:
    """Those of 16 bits are not taken for floats, and the least one has no positive counterpart."""
    limits = np.iinfo(dtype)
    x = np.array([limits.min, 0, 1, limits.max, *range(100)], dtype)
    out = np.full_like(x, 77)
    find_kernel("sign", "optimized", "cpu", dtype).bind({"x": x}, find_op("sign").params(), {"out": out})()
    assert out.tolist() == np.sign(x).tolist()


def test_half_subnormals_have_a_sign() -> None:
    """The smallest float16 is above zero."""
    assert signs([6e-8, -6e-8], "float16", "optimized", "cpu") == [1, -1]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_signs_of_extreme_complex_numbers(dtype: str, backend: str) -> None:
    """A complex number whose magnitude overflows, is subnormal or infinite in one part has a sign all the same.

    Five copies, so that vectorised loops and what remains after them see each number.
    """
    part = np.finfo(dtype)
    huge, tiny, root = part.max, part.tiny, np.sqrt(0.5)
    x = np.array(
        [huge + 1j * huge, -huge, 1j * huge, 0, tiny * (3 + 4j), complex(np.inf, 1), complex(0, -np.inf)] * 5, dtype
    )
    result = to_backend(np.zeros_like(x), backend)
    kernel = find_kernel("sign", "optimized", backend, dtype)
    kernel.bind({"x": to_backend(x, backend)}, find_op("sign").params(), {"out": result})()
    expected = np.array([root + 1j * root, -1, 1j, 0, 0.6 + 0.8j, 1, -1j] * 5)
    np.testing.assert_allclose(to_numpy(result), expected, rtol=0, atol=4 * float(part.eps))
    np.testing.assert_allclose(
        find_op("sign").reference({"x": x}, None)["out"], expected, rtol=0, atol=4 * float(part.eps)
    )
