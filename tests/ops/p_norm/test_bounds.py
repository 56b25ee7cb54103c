"""What the bounds of p_norm and its gradient let pass: every correct kernel, and no wrong one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import FLOATS, dtype_info
from opgauge.ops._core.dtype import accumulator_info
from tests.draws import drawn_of
from tests.ops.attempts import case_of, inputs_of, passes

Array = NDArray[Any]
ORDERS = (-2.5, -1.0, 0.3, 0.5, 1.0, 1.5, 2.0, 2.2, 2.5, 3.0, 5.0, 12.0)
CASES = 50


def widened(inputs: Inputs, name: str, dtype: str) -> Array:
    """An input in the dtype in which `dtype` accumulates."""
    return np.asarray(inputs.values[name].astype(accumulator_info(dtype).numpy))


def operands(inputs: Inputs, dtype: str) -> tuple[Array, Array, Array]:
    """x, and y and dy with a last axis of 1, in the dtype in which `dtype` accumulates."""
    return (
        widened(inputs, "x", dtype),
        widened(inputs, "y", dtype)[..., None],
        widened(inputs, "dy", dtype)[..., None],
    )


def sum_in_sequence(powers: Array) -> Array:
    """A sum from left to right, one rounding an element."""
    return np.add.accumulate(powers, axis=-1, dtype=powers.dtype)[..., -1]


def sum_by_tree(powers: Array) -> Array:
    """NumPy's sum in pairs."""
    return np.asarray(powers.sum(axis=-1, dtype=powers.dtype))


def power_by_logarithm(x: Array, p: float) -> Array:
    """exp2(p log2 x), each step rounded: what a GPU kernel does."""
    return np.asarray(np.exp2(x.dtype.type(p) * np.log2(x)))


def power_by_library(x: Array, p: float) -> Array:
    """The library's power, right to the last place."""
    return np.asarray(x ** x.dtype.type(p))


@pytest.mark.parametrize("total", [sum_in_sequence, sum_by_tree])
@pytest.mark.parametrize("power", [power_by_logarithm, power_by_library])
@settings(max_examples=CASES)
@given(
    p=st.sampled_from(ORDERS),
    dtype=st.sampled_from(drawn_of("p_norm", FLOATS)),
    length=st.integers(1, 300),
    exponent=st.integers(-40, 38),
    seed=st.integers(0, 10_000),
)
def test_correct_norms_pass(
    total: Callable[[Array], Array],
    power: Callable[[Array, float], Array],
    p: float,
    dtype: str,
    length: int,
    exponent: int,
    seed: int,
) -> None:
    """Powers, sum and root in the accumulating dtype pass, however they are formed and whatever overflows."""
    rng = np.random.default_rng(seed)
    case = case_of("p_norm", {"x": (3, length)}, dtype, porder=p)
    scale = 10.0 ** (exponent if dtype_info(dtype).largest > 1e30 else exponent % 4)
    with np.errstate(all="ignore"):
        inputs = inputs_of(case, x=rng.standard_normal((3, length)) * scale)
        x = widened(inputs, "x", dtype)
        powers = np.abs(x) if p == 1 else np.square(x) if p == 2 else power(np.abs(x), p)
        summed = total(powers)
        y = summed if p == 1 else np.sqrt(summed) if p == 2 else power(summed, 1 / p)
    assert passes(case, inputs, y=y)


@pytest.mark.parametrize("power", [power_by_logarithm, power_by_library])
@settings(max_examples=2 * CASES)
@given(
    p=st.sampled_from(ORDERS),
    dtype=st.sampled_from(drawn_of("p_norm", FLOATS)),
    exponent=st.integers(-40, 38),
    seed=st.integers(0, 10_000),
)
def test_correct_gradients_pass(
    power: Callable[[Array, float], Array], p: float, dtype: str, exponent: int, seed: int
) -> None:
    """(|x| / y)^(p - 1) dy in the accumulating dtype passes, with x, y and dy rounded to 16 bits or not."""
    rng = np.random.default_rng(seed)
    case = case_of("p_norm_grad", {"x": (3, 31)}, dtype, porder=p)
    scale = 10.0 ** (exponent if dtype_info(dtype).largest > 1e30 else exponent % 4)
    with np.errstate(all="ignore"):
        inputs = inputs_of(case, x=rng.standard_normal((3, 31)) * scale)
        x, y, dy = operands(inputs, dtype)
        ratio = np.abs(x) / y
        slope = {1.0: np.ones_like(ratio), 2.0: ratio, 3.0: ratio * ratio}.get(p, power(ratio, p - 1))
        dx = np.where(x == 0 if p < 1 else y == 0, 0, np.sign(x) * slope * dy)
    assert passes(case, inputs, dx=dx)


Wrong = Callable[[Array, Array, Array, float], Array]


def power_of_p(x: Array, y: Array, dy: Array, p: float) -> Array:
    """The exponent of the design document's formula, off by one."""
    return np.asarray(np.sign(x) * (np.abs(x) / y) ** p * dy)


def norm_to_the_p(x: Array, y: Array, dy: Array, p: float) -> Array:
    """y to the p instead of p - 1."""
    return np.asarray(np.sign(x) * np.abs(x) ** (p - 1) / y**p * dy)


def no_sign(x: Array, y: Array, dy: Array, p: float) -> Array:
    """The sign of x forgotten."""
    return np.asarray((np.abs(x) / y) ** (p - 1) * dy)


def no_dy(x: Array, y: Array, dy: Array, p: float) -> Array:
    """The incoming gradient forgotten."""
    return np.asarray(np.sign(x) * (np.abs(x) / y) ** (p - 1) + 0 * dy)


def next_row(x: Array, y: Array, dy: Array, p: float) -> Array:
    """The norm of the neighbouring row."""
    return np.asarray(np.sign(x) * (np.abs(x) / np.roll(y, 1, axis=0)) ** (p - 1) * dy)


def ten_bits(x: Array, y: Array, dy: Array, p: float) -> Array:
    """x truncated to TF32 before it is used."""
    cut = (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.asarray(np.sign(x) * (np.abs(cut) / y) ** (p - 1) * dy)


def with_epsilon(x: Array, y: Array, dy: Array, p: float) -> Array:
    """A thousandth added to y in place of a mask."""
    return np.asarray(np.sign(x) * (np.abs(x) / (y + 1e-3)) ** (p - 1) * dy)


WRONG = (power_of_p, norm_to_the_p, no_sign, no_dy, next_row)


def gradient_case(p: float, dtype: str, x: Any = None) -> tuple[Case, Inputs]:
    """A (5, 31) case of the gradient and its inputs."""
    case = case_of("p_norm_grad", {"x": (5, 31)}, dtype, porder=p)
    return case, inputs_of(case, **({} if x is None else {"x": x}))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize(
    "wrong",
    [power_of_p, norm_to_the_p, no_sign, no_dy, next_row, ten_bits, with_epsilon],
    ids=lambda item: item.__name__,
)
def test_wrong_gradients_fail(wrong: Wrong, p: float) -> None:
    """Each way to get the formula wrong is caught in float32."""
    case, inputs = gradient_case(p, "float32")
    assert not passes(case, inputs, dx=wrong(*operands(inputs, "float64"), p))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda item: item.__name__)
def test_wrong_gradients_fail_in_16_bits(wrong: Wrong, dtype: str) -> None:
    """16 bits are enough to tell a wrong formula."""
    case, inputs = gradient_case(3.0, dtype)
    assert not passes(case, inputs, dx=wrong(*operands(inputs, "float64"), 3.0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.5, 1.5, 2.0, 3.0])
def test_a_missing_mask_fails(p: float, dtype: str) -> None:
    """NaN where zeros should have been masked is caught, and so is a mask that covers too much."""
    x = np.random.default_rng(5).standard_normal((5, 31))
    x[1], x[2, ::3] = 0, 0
    case, inputs = gradient_case(p, dtype, x)
    with np.errstate(all="ignore"):
        wide, y, dy = operands(inputs, "float64")
        dx = np.sign(wide) * (np.abs(wide) / y) ** (p - 1) * dy
    assert not passes(case, inputs, dx=dx)
    masked = np.where((wide == 0) | (y == 0), 0, dx)
    assert passes(case, inputs, dx=masked)
    assert not passes(case, inputs, dx=np.where((wide == 0).any(axis=-1, keepdims=True), 0, masked))


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_epsilon_instead_of_a_mask_fails_in_float16(p: float) -> None:
    """1e-12 is 0 in float16: the document's epsilon gives NaN at x = y = 0."""
    x = np.random.default_rng(6).standard_normal((5, 31))
    x[1] = 0
    case, inputs = gradient_case(p, "float16", x)
    half, y, dy = (item.astype(np.float16) for item in operands(inputs, "float16"))
    with np.errstate(all="ignore"):
        dx = np.abs(half) ** (p - 1) * np.sign(half) * dy * (y + np.float16(1e-12)) ** (1 - p)
    assert np.isnan(dx.astype(np.float64)).any()
    assert not passes(case, inputs, dx=dx)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [inf, -inf])
def test_ties_in_full_fail(p: float, dtype: str) -> None:
    """Every tied element getting all of dy, or only the first getting any, is caught; NaN not counted, too."""
    x = np.random.default_rng(7).integers(-2, 3, (5, 31))
    x = np.where(x == 0, 1, x).astype(np.float64)
    case, inputs = gradient_case(p, dtype, x)
    wide, y, dy = operands(inputs, "float64")
    tied = np.abs(wide) == y
    count = tied.sum(axis=-1, keepdims=True)
    first = np.arange(31) == np.argmax(tied, axis=-1, keepdims=True)
    assert passes(case, inputs, dx=np.sign(wide) * tied * dy / count)
    assert not passes(case, inputs, dx=np.sign(wide) * tied * dy)
    assert not passes(case, inputs, dx=np.sign(wide) * first * dy)
    assert not passes(case, inputs, dx=np.sign(wide) * tied * dy / (count + 1))


def test_a_swallowed_nan_fails() -> None:
    """The largest of the numbers, past a NaN, is not the norm; nor is its gradient finite."""
    x = np.random.default_rng(8).standard_normal((5, 31))
    x[2, 3] = nan
    for p in (inf, -inf, 2.0, 2.2):
        case = case_of("p_norm", {"x": (5, 31)}, "float32", porder=p)
        inputs = inputs_of(case, x=x)
        clean = np.abs(np.where(np.isnan(x), 0 if p > 0 else inf, x))
        assert not passes(case, inputs, y=np.linalg.norm(clean, ord=p, axis=-1))


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_wrong_norms_fail(p: float) -> None:
    """A root or a power off by one, a skipped last element, a sum without root, and TF32 are caught."""
    case = case_of("p_norm", {"x": (5, 257)}, "float32", porder=p)
    inputs = inputs_of(case)
    x = widened(inputs, "x", "float64")
    powers = np.abs(x) ** p
    assert passes(case, inputs, y=powers.sum(axis=-1) ** (1 / p))
    assert not passes(case, inputs, y=powers.sum(axis=-1) ** (1 / (p + 1)))
    assert not passes(case, inputs, y=(np.abs(x) ** (p + 1)).sum(axis=-1) ** (1 / p))
    assert not passes(case, inputs, y=powers[:, :-1].sum(axis=-1) ** (1 / p))
    assert not passes(case, inputs, y=np.abs(powers.sum(axis=-1) ** (1 / p)) * (1 - 2.0**-12))
    if p != 1:
        assert not passes(case, inputs, y=powers.sum(axis=-1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_count_is_exact(dtype: str) -> None:
    """Order 0 off by one is caught."""
    case = case_of("p_norm", {"x": (5, 31)}, dtype, porder=0)
    inputs = inputs_of(case)
    assert passes(case, inputs, y=np.full(5, 31.0))
    assert not passes(case, inputs, y=np.full(5, 30.0))


def test_bounds_are_tight_where_nothing_overflows() -> None:
    """For ordinary numbers a norm may be off by less than 50 float32 epsilons, a gradient by less than 20."""
    for op, output, most in (("p_norm", "y", 50), ("p_norm_grad", "dx", 20)):
        for p in (2.0, 3.0):
            case = case_of(op, {"x": (5, 257)}, "float32", porder=p)
            expected = expect(case, inputs_of(case))
            share = expected.bounds[output] / np.abs(expected.values[output])
            assert np.max(share) < most * np.finfo(np.float32).eps
