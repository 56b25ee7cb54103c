"""dot: its meaning, its CPU kernels, its bound."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.ops import ShapeError, find_op
from opgauge.ops._core.dtype import accumulator_info
from opgauge.ops.dot.op import DTYPES
from tests.ops.attempts import case_of, complaint, inputs_of, outputs_of, passes

IMPLEMENTATIONS = ("baseline", "optimized")
FRACTIONS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
LONG = 70_001


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15)
@given(shape=st.lists(st.integers(1, 40), min_size=1, max_size=2).map(tuple))
def test_any_problem(implementation: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Right outputs for any vectors and rows, every dtype."""
    case = case_of("dot", {"x": shape}, dtype)
    assert not complaint(case, inputs_of(case), implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(LONG,), (3, LONG), (5000, 9), (4096,), (4097,)])
def test_long(implementation: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Vectors longer than a block, and more rows than threads, in unaligned memory too."""
    case = case_of("dot", {"x": shape}, dtype)
    assert not complaint(case, inputs_of(case), implementation, layout="offset")


def test_complex_numbers_are_not_conjugated() -> None:
    """i times i is -1, as in numpy.dot and unlike numpy.vdot."""
    for dtype in ("complex64", "complex128"):
        case = case_of("dot", {"x": (2,)}, dtype)
        inputs = inputs_of(case, x=[1j, 2], y=[1j, 3j])
        for implementation in IMPLEMENTATIONS:
            assert complex(outputs_of(case, inputs, implementation)["out"]) == -1 + 6j


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap_around(implementation: str, dtype: str) -> None:
    """A sum beyond the integers' range wraps around as two's complement does, short or long."""
    largest = int(np.iinfo(dtype).max)
    for length in (3, LONG):
        case = case_of("dot", {"x": (length,)}, dtype)
        inputs = inputs_of(case, x=np.full(length, largest), y=np.full(length, 3))
        expected = np.asarray(largest * 3 * length % 2 ** (8 * np.dtype(dtype).itemsize), np.uint64).astype(dtype)
        assert outputs_of(case, inputs, implementation)["out"] == expected
        assert not complaint(case, inputs, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (0, 0)])
def test_empty(implementation: str, dtype: str, shape: tuple[int, ...]) -> None:
    """The dot product of nothing is 0; of no rows, no number."""
    case = case_of("dot", {"x": shape}, dtype)
    out = outputs_of(case, inputs_of(case), implementation)["out"]
    assert out.shape == shape[:-1]
    assert not out.astype(np.complex128).any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_wider_than_16_bits(implementation: str, dtype: str) -> None:
    """4096 ones give 4096, which a sum in 16 bits never reaches."""
    case = case_of("dot", {"x": (4096,)}, dtype)
    inputs = inputs_of(case, x=np.ones(4096), y=np.ones(4096))
    assert float(outputs_of(case, inputs, implementation)["out"]) == 4096


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_and_infinity_come_through(implementation: str, dtype: str) -> None:
    """A NaN, an infinity and 0 times infinity show in their own row alone."""
    x = np.ones((4, 33))
    y = np.ones((4, 33))
    x[0, 3], x[1, 5], x[2, 7], y[2, 7] = nan, -inf, inf, 0
    case = case_of("dot", {"x": x.shape}, dtype)
    inputs = inputs_of(case, x=x, y=y)
    assert not complaint(case, inputs, implementation)
    out = outputs_of(case, inputs, implementation)["out"].astype(np.float64)
    assert np.isnan(out).tolist() == [True, False, True, False]
    assert out[[1, 3]].tolist() == [-inf, 33]


@settings(max_examples=50)
@given(length=st.integers(1, 2000), dtype=st.sampled_from(FRACTIONS), seed=st.integers(0, 999))
def test_correct_products_pass(length: int, dtype: str, seed: int) -> None:
    """Products summed in pairs in the accumulating dtype are right."""
    rng = np.random.default_rng(seed)
    case = case_of("dot", {"x": (2, length)}, dtype)
    inputs = inputs_of(case, x=rng.random((2, length)), y=rng.random((2, length)))
    wide = accumulator_info(dtype).numpy
    x, y = (inputs.values[name].astype(wide) for name in ("x", "y"))
    assert passes(case, inputs, out=(x * y).sum(axis=-1))


@pytest.mark.parametrize("dtype", FRACTIONS)
def test_wrong_products_fail(dtype: str) -> None:
    """A skipped element, the sum over the other axis, x alone, and a conjugate are caught."""
    case = case_of("dot", {"x": (31, 31)}, dtype)
    inputs = inputs_of(case)
    x, y = inputs.wide["x"], inputs.wide["y"]
    assert passes(case, inputs, out=(x * y).sum(axis=1))
    wrongs = [(x * y)[:, :-1].sum(axis=1), (x * y).sum(axis=0), x.sum(axis=1), (x * x).sum(axis=1)]
    if dtype.startswith("complex"):
        wrongs += [(x.conj() * y).sum(axis=1), (x * y.conj()).sum(axis=1), (x * y).sum(axis=1).conj()]
    for wrong in wrongs:
        assert not passes(case, inputs, out=wrong)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"x": ()}, "should be 1 or 2"),
        ({"x": (2, 3, 4)}, "should be 1 or 2"),
        ({"x": (3,), "y": (4,)}, "should agree"),
        ({"x": (2, 3), "y": (3,)}, "should agree"),
        ({"x": (2, 3), "y": (3, 2)}, "should agree"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, says: str) -> None:
    """Other ranks and different shapes are refused, and the message shows them."""
    with pytest.raises(ShapeError, match=says):
        find_op("dot").infer(shapes, "float32", find_op("dot").params())


@pytest.mark.parametrize(("shape", "expected"), [((5,), ()), ((2, 5), (2,)), ((0,), ())])
def test_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """The last axis goes; y has the shape of x where none is given."""
    found = find_op("dot").infer({"x": shape}, "float32", find_op("dot").params())
    assert found.outputs["out"].shape == expected
    assert found.inputs["y"].shape == shape


def test_dtypes() -> None:
    """Small integers and bool are none of dot's dtypes."""
    assert not {"bool", "int8", "int16", "uint8"} & set(find_op("dot").dtypes)
