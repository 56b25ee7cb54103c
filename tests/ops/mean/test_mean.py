"""mean: its meaning, its CPU kernels, its bound."""

from __future__ import annotations

from math import inf, isnan, log2, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.ops import FLOATS, AxisError, KernelNotFoundError, dtype_info, find_kernel, find_op
from opgauge.ops._core.dtype import accumulator_info
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of, outputs_of, passes

IMPLEMENTATIONS = ("baseline", "optimized")
LONG = 70_001


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, bool]:
    """A shape of rank 0 to 4, any axes of it that leave at most two groups, and keepdim."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5, 17)), max_size=4)))
    if not shape:
        return shape, None, draw(st.booleans())
    axes = st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True).map(tuple)
    axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1) | axes)
    return shape, axis, draw(st.booleans())


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "torch"])
@settings(max_examples=50)
@given(problem=problems(), dtype=st.sampled_from(drawn_of("mean", FLOATS)))
def test_any_problem(implementation: str, problem: Any, dtype: str) -> None:
    """Right outputs for any shape, axes and dtype."""
    shape, axis, keepdim = problem
    case = case_of("mean", {"x": shape}, dtype, axis=axis, keepdim=keepdim)
    assert not complaint(case, inputs_of(case), implementation)


@pytest.mark.parametrize(
    "shape", [(1, 16, 40, 5, 5), (2, 3, 40, 2, 1), (2, 3, 40, 7, 1), (3, 70, 3, 2, 6), (1, 2, 3, 90, 2)]
)
def test_two_groups_of_axes(shape: tuple[int, ...]) -> None:
    """Means are right where runs between the groups are short, so that the outer group comes first, and where long."""
    for dtype in drawn_of("mean", FLOATS):
        case = case_of("mean", {"x": shape}, dtype, axis=(1, 3))
        assert not complaint(case, inputs_of(case), "optimized"), dtype


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_mean_is_numpys(axis: Any, *, keepdim: bool) -> None:
    """The reference and its shape are `numpy.mean`'s; everything reduced gives a 0-d tensor."""
    x = np.random.default_rng(1).standard_normal((2, 3, 4))
    params = find_op("mean").params(axis=axis, keepdim=keepdim)
    expected = np.mean(x, axis=axis, keepdims=keepdim)
    out = find_op("mean").reference({"x": x}, params)["out"]
    assert out == pytest.approx(expected, rel=1e-13)
    assert out.shape == np.shape(expected)
    assert find_op("mean").infer({"x": (2, 3, 4)}, "float32", params).outputs["out"].shape == np.shape(expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("shape", "axis", "count"), [((0,), None, 0), ((3, 0), 1, 3), ((0, 5), 0, 5), ((0, 5), 1, 0)])
def test_the_mean_of_nothing_is_nan(implementation: str, shape: tuple[int, ...], axis: Any, count: int) -> None:
    """0 / 0 is NaN, for as many elements as the output has."""
    case = case_of("mean", {"x": shape}, "float32", axis=axis)
    out = outputs_of(case, inputs_of(case), implementation)["out"]
    assert np.isnan(out).sum() == (count if axis is not None else 1)
    assert not complaint(case, inputs_of(case), implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_wider_than_16_bits(implementation: str, dtype: str) -> None:
    """70001 ones have mean 1: 1/n is not rounded to 16 bits, nor does the sum stop growing."""
    case = case_of("mean", {"x": (LONG,)}, dtype)
    assert float(outputs_of(case, inputs_of(case, x=np.ones(LONG)), implementation)["out"]) == 1
    assert float(outputs_of(case, inputs_of(case, x=np.full(LONG, 1000)), implementation)["out"]) == 1000


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_come_through(implementation: str, dtype: str) -> None:
    """A NaN, an infinity, and two of opposite signs make their own row's mean NaN or infinite."""
    x = np.ones((4, 257))
    x[0, 3], x[1, 5], x[2, 7], x[2, 9] = nan, -inf, inf, -inf
    case = case_of("mean", {"x": x.shape}, dtype, axis=1)
    inputs = inputs_of(case, x=x)
    out = outputs_of(case, inputs, implementation)["out"].astype(np.float64).tolist()
    assert isnan(out[0])
    assert out[1] == -inf
    assert isnan(out[2])
    assert out[3] == 1
    assert not complaint(case, inputs, implementation)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((LONG,), None), ((LONG, 3), 0), ((3, LONG), 1), ((2, 300, 2, 200), (1, 3))]
)
def test_our_sums_are_trees(shape: tuple[int, ...], axis: Any, dtype: str) -> None:
    """The optimized mean of positive numbers errs by less than log2 n + 4 half epsilons, whatever the axis."""
    x = np.random.default_rng(2).random(shape)
    case = case_of("mean", {"x": shape}, dtype, axis=axis)
    inputs = inputs_of(case, x=x)
    exact = find_op("mean").reference({"x": inputs.wide["x"].astype(np.longdouble)}, case.params)["out"]
    out = outputs_of(case, inputs, "optimized")["out"]
    allowed = (log2(x.size / max(out.size, 1)) + 5) * dtype_info(dtype).epsilon / 2
    assert np.max(np.abs(out - exact) / exact) < allowed


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 31, 33, 250, 257, 4096, 4097])
def test_row_lengths(dtype: str, length: int) -> None:
    """Rows of every length, in memory aligned to an element only."""
    case = case_of("mean", {"x": (3, length)}, dtype, axis=1)
    assert not complaint(case, inputs_of(case), "optimized", layout="offset")


@pytest.mark.parametrize("shape", [(3, 640, 3), (2, 97, 5), (1, 90, 64), (2, 64, 65), (2, 30, 7)])
def test_narrow_columns(shape: tuple[int, ...]) -> None:
    """Several rows are averaged as one, where their number divides the rows: few and many, wide enough and prime."""
    for dtype in drawn_of("mean", FLOATS):
        case = case_of("mean", {"x": shape}, dtype, axis=1)
        assert not complaint(case, inputs_of(case), "optimized"), dtype


def test_wrong_means_fail() -> None:
    """A divisor off by one, the sum, a skipped element, the mean over the other axis and of magnitudes are caught."""
    case = case_of("mean", {"x": (31, 31)}, "float32", axis=1)
    inputs = inputs_of(case)
    x = inputs.wide["x"]
    assert passes(case, inputs, out=x.mean(axis=1))
    for wrong in (
        x.sum(axis=1) / 30,
        x.sum(axis=1),
        x[:, :-1].sum(axis=1) / 31,
        x.mean(axis=0),
        np.abs(x).mean(axis=1),
    ):
        assert not passes(case, inputs, out=wrong)


def test_multiplying_by_a_rounded_reciprocal_fails_in_float16() -> None:
    """The design-time kernel, which sums x times float16(1 / n), is caught."""
    case = case_of("mean", {"x": (3, 3001)}, "float16", axis=1)
    inputs = inputs_of(case, x=np.random.default_rng(3).random((3, 3001)) + 1)
    scaled = inputs.wide["x"] * np.float64(np.float16(1 / 3001))
    assert not passes(case, inputs, out=scaled.sum(axis=1))


@settings(max_examples=50)
@given(
    length=st.integers(1, 2000),
    dtype=st.sampled_from(drawn_of("mean", FLOATS)),
    low=st.sampled_from([-1.0, 0.0]),
    seed=st.integers(0, 999),
)
def test_correct_means_pass(length: int, dtype: str, low: float, seed: int) -> None:
    """A sum from left to right in the accumulating dtype, divided once, is right."""
    case = case_of("mean", {"x": (2, length)}, dtype, axis=1)
    inputs = inputs_of(case, x=np.random.default_rng(seed).uniform(low, 1, (2, length)))
    wide = accumulator_info(dtype).numpy
    total = np.add.accumulate(inputs.values["x"].astype(wide), axis=1)[:, -1]
    assert passes(case, inputs, out=total / wide.type(length))


@pytest.mark.parametrize("axis", [2, -3, (0, 2), (1, 1)])
def test_axes_outside_the_rank(axis: Any) -> None:
    """An axis outside the rank or named twice is refused."""
    with pytest.raises(AxisError, match="axis"):
        find_op("mean").infer({"x": (3, 5)}, "float32", find_op("mean").params(axis=axis))


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_integers_are_refused(dtype: str) -> None:
    """mean is of floats; no kernel takes integers."""
    assert dtype not in find_op("mean").dtypes
    with pytest.raises(KernelNotFoundError):
        find_kernel("mean", "optimized", "cpu", dtype)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_any_set_of_axes_is_averaged(implementation: str, dtype: str) -> None:
    """Three and four separate groups of axes, given as NumPy's integers, are averaged within the bound."""
    for axis in ((0, 2, 4), (1, 3, 5), (0, 2, 4, 6)):
        case = case_of("mean", {"x": (2, 3, 4, 3, 2, 5, 3)}, dtype, axis=tuple(np.int64(item) for item in axis))
        assert type(case.params.axis[0]) is int
        assert not complaint(case, inputs_of(case), implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_long_columns_are_summed_as_exactly_as_short_ones(implementation: str) -> None:
    """Columns of more elements than may be added one by one in float32 stay within the bound."""
    case = case_of("mean", {"x": (200_000, 3)}, "float32", axis=0)
    assert not complaint(case, inputs_of(case, x=np.full((200_000, 3), 0.95)), implementation)


def test_a_sum_that_overflows_may_be_infinite_and_nothing_else() -> None:
    """The mean of three 3e38 may be 3e38 or infinite in float32: another finite number is wrong."""
    case = case_of("mean", {"x": (3,)}, "float32", axis=None)
    inputs = inputs_of(case, x=np.full(3, 3e38))
    assert passes(case, inputs, out=3e38)
    assert passes(case, inputs, out=inf)
    assert not passes(case, inputs, out=-5.0)
    assert not passes(case, inputs_of(case, x=np.full(3, 1e38)), out=inf)
