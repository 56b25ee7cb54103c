"""The checker: what passes, what does not, and what it says."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from opgauge.harness.case.case import Case
from opgauge.harness.worker import verify
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.verify import CHUNK, Expected, check, expect
from opgauge.ops import TensorSpec, dtype_info, find_op
from opgauge.ops._function.near_ties import NEXT_TO


def expected(values: Any, dtype: str = "float32", bound: Any = 0.0, reference: Any = np.float64) -> Expected:
    """One output called y."""
    array = np.asarray(values, reference)
    return Expected({"y": TensorSpec(array.shape, dtype)}, {"y": array}, {"y": bound})


def verdict(got: Any, want: Any, dtype: str = "float32", bound: Any = 0.0, reference: Any = np.float64) -> bool:
    """Whether `got` passes for `want`."""
    output = np.asarray(got).astype(dtype_info(dtype).numpy)
    return check({"y": output}, expected(want, dtype, bound, reference)).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@settings(max_examples=50)
@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_one_rounding_is_always_right(dtype: str, values: list[float]) -> None:
    """The reference rounded to the dtype passes with no bound at all, whatever the numbers."""
    with np.errstate(all="ignore"):
        assert verdict(np.asarray(values), values, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@settings(max_examples=50)
@given(value=st.floats(min_value=-1e4, max_value=1e4))
def test_two_units_off_is_wrong(dtype: str, value: float) -> None:
    """With no bound, the neighbour but one of the right number fails."""
    rounded = np.asarray(value).astype(dtype_info(dtype).numpy)
    far = ml_dtypes_nextafter(ml_dtypes_nextafter(rounded))
    assert not verdict(far, value, dtype)


def ml_dtypes_nextafter(value: Any) -> Any:
    """The next larger number of the same dtype."""
    if value.dtype == ml_dtypes.bfloat16:
        step = np.asarray(inf).astype(ml_dtypes.bfloat16)
        return np.nextafter(value, step)
    return np.nextafter(value, np.asarray(inf, value.dtype))


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        (nan, nan, True),
        (nan, 1.0, False),
        (1.0, nan, False),
        (0.0, nan, False),
        (inf, nan, False),
        (inf, inf, True),
        (-inf, inf, False),
        (3e38, inf, False),
        (nan, inf, False),
        (inf, 1.0, False),
        (inf, 3.4028235e38, False),
        (inf, 3.5e38, True),
        (-inf, 3.5e38, False),
        (inf, 1e300, True),
        (3.4028235e38, 1e300, False),
        (3.4028235e38, 3.4028236e38, True),
        (0.0, 1e-300, True),
        (0.0, -1e-46, True),
        (0.0, 1e-44, False),
        (-0.0, 0.0, True),
        (1e-45, 0.0, False),
    ],
)
def test_special_numbers_in_float32(got: float, want: float, ok: bool) -> None:
    """NaN meets NaN, infinities meet their sign, overflow gives infinity, subnormals count."""
    with np.errstate(over="ignore"):
        assert verdict([got, 2.0], [want, 2.0]) is ok


def test_infinity_passes_where_the_bound_reaches_beyond_the_range() -> None:
    """A sum that may round past float16's largest number may be infinite, or be right."""
    assert verdict(inf, 65000.0, "float16", bound=600.0)
    assert verdict(65000.0, 65000.0, "float16", bound=600.0)
    assert not verdict(inf, 65000.0, "float16", bound=100.0)


def test_bounds_are_absolute_and_per_element() -> None:
    """Each element has its own bound, which broadcasts; relaxed multiplies it."""
    want = np.ones((2, 3))
    bound = np.array([[0.1], [0.0]])
    right = np.array([[1.05, 0.95, 1.0], [1, 1, 1]], np.float32)
    assert check({"y": right}, expected(want, bound=bound)).ok
    assert not check({"y": right[::-1].copy()}, expected(want, bound=bound)).ok
    assert not check({"y": right * 1.1}, expected(want, bound=bound)).ok
    assert check({"y": right}, expected(want, bound=bound / 10), relaxed=10).ok
    assert not check({"y": right}, expected(want, bound=bound / 10)).ok


def test_a_reason_shows_digits_that_differ() -> None:
    """Nine digits, and all seventeen where those are the same."""
    for got, shown in ((1.1, "y[0] is 1.1, expected 1,"), (1 + 2e-16, "y[0] is 1.0000000000000002, expected 1,")):
        found = check({"y": np.array([got])}, expected([1.0], "float64"))
        assert found.reason.startswith(shown)


def test_a_bound_that_is_not_a_number_fails() -> None:
    """NaN as a bound never lets anything pass by accident."""
    assert not verdict(2.0, 1.0, bound=nan)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
def test_integers_are_exact(dtype: str) -> None:
    """Integers and bool must be equal, whatever the bound."""
    want = np.array([0, 1, 1], dtype)
    got = np.array([0, 1, 0], dtype)
    assert verdict(want, want, dtype, bound=5, reference=dtype)
    assert not verdict(got, want, dtype, bound=5, reference=dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool"])
def test_exact_outputs_next_to_a_boundary_may_be_either(dtype: str) -> None:
    """Only the elements that rounding may change, and only by one."""
    want = np.array([0, 1, 1], dtype)
    bounds = {NEXT_TO.format("y"): np.array([0.0, 0.0, 1.0])}
    one = expected(want, dtype, reference=dtype)
    for got, ok in (([0, 1, 0], True), ([0, 0, 1], False), ([0, 1, 3], False)):
        array = np.array(got, np.uint8).view(np.bool_) if dtype == "bool" else np.array(got, dtype)
        assert check({"y": array}, replace(one, bounds=bounds)).ok is ok


def test_large_integers_do_not_pass_through_float64() -> None:
    """Two int64 that are the same float64 are still different."""
    large = 2**62
    assert not verdict(np.array([large + 1]), np.array([large]), "int64", reference=np.int64)


def test_a_bool_must_be_zero_or_one() -> None:
    """A byte of garbage in a bool output is wrong, though NumPy calls it true."""
    garbage = np.array([0xA5, 1], np.uint8).view(np.bool_)
    assert not check({"y": garbage}, expected([True, True], "bool", reference=np.bool_)).ok


def test_complex_parts_are_judged_apart() -> None:
    """NaN in one part, a wrong imaginary part and a wrong sign of infinity all fail."""
    want = np.array([1 + 2j, complex(inf, 0)])
    for got, ok in (
        ([1 + 2j, complex(inf, 0)], True),
        ([1 + 2.001j, complex(inf, 0)], False),
        ([complex(1, nan), complex(inf, 0)], False),
        ([1 + 2j, complex(-inf, 0)], False),
    ):
        assert verdict(got, want, "complex64", reference=np.complex128) is ok


def test_the_reason_names_output_index_got_and_expected() -> None:
    """The first wrong element is named, and how many there are."""
    found = check({"y": np.array([[1, 2], [3, 5]], np.float32)}, expected([[1, 2], [3, 4]], bound=0.1))
    assert found.reason == "y[1, 1] is 5, expected 4, 10 times the allowed error; 1 of 4 elements is wrong"
    assert found.worst == pytest.approx(10, rel=1e-3)
    assert found.max_abs_error == 1
    assert found.max_rel_error == 0.25


def test_relative_errors_do_not_explode_near_zero() -> None:
    """Beside large elements, an error of a small one is relative to the output's scale."""
    found = check({"y": np.array([1e-9, 1, 1], np.float32)}, expected([0, 1, 1], bound=1e-8))
    assert found.ok
    assert found.max_rel_error == pytest.approx(1.5e-9, rel=1e-3)


def test_errors_beside_a_vanishing_scale_are_counted() -> None:
    """Where the reference is next to nothing, a relative error may overflow and still be reported."""
    found = check({"y": np.ones(3)}, expected(np.full(3, 1e-320), "float64"))
    assert not found.ok
    assert found.max_rel_error == inf


def test_the_worst_of_many_chunks_is_found() -> None:
    """An error in the last element of a long output is seen, with its index."""
    want = np.zeros((3, CHUNK))
    got = want.astype(np.float32)
    got[2, CHUNK - 1] = 1
    bound = np.linspace(0, 1e-3, CHUNK)
    for allowed in (0.0, bound, np.broadcast_to(bound, want.shape).copy()):
        found = check({"y": got}, expected(want, bound=allowed))
        assert not found.ok
        assert f"y[2, {CHUNK - 1}] is 1, expected 0" in found.reason


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_scalars_and_empty_outputs(shape: tuple[int, ...]) -> None:
    """Outputs without axes or elements are checked like others."""
    assert check({"y": np.ones(shape, np.float32)}, expected(np.ones(shape))).ok
    wrong = check({"y": np.zeros(shape, np.float32)}, expected(np.ones(shape)))
    assert wrong.ok is (0 in shape)


def test_shape_dtype_and_absence_are_wrong() -> None:
    """An output of another shape or dtype, or none at all, is said to be so."""
    want = expected(np.ones((2, 3)))
    assert check({"y": np.ones((3, 2), np.float32)}, want).reason == "y: shape [3, 2] instead of [2, 3]"
    assert check({"y": np.ones((2, 3), np.float64)}, want).reason == "y: dtype float64 instead of float32"
    assert check({}, want).reason == "y: no such output came back"


def test_a_reference_takes_as_many_threads_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of NumPy's BLAS, of reference and bounds alike; afterwards there are as many as before."""
    seen: list[list[int]] = []

    def threads() -> list[int]:
        return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]

    class Noting:
        def __init__(self, name: str) -> None:
            self.op = find_op(name)

        def expected(self, *given: Any) -> Any:
            seen.append(threads())
            return self.op.expected(*given)

        def bound(self, *given: Any) -> Any:
            seen.append(threads())
            return self.op.bound(*given)

    monkeypatch.setattr(verify, "find_op", Noting)
    case, before = Case("sign", "test", {"x": (3,)}, "float32", find_op("sign").params()), threads()
    assert before
    expect(case, make_inputs(case), threads=1)
    assert seen == [[1] * len(before)] * 2
    assert threads() == before
    expect(case, make_inputs(case))
    assert seen[2:] == [before] * 2


def test_a_reference_of_the_wrong_shape_is_a_fault_of_the_op() -> None:
    """The reference must have the shape that the shape rule says."""
    case = Case("p_norm", "small", {"x": (2, 3)}, "float32", find_op("p_norm").params())
    found = expect(case, make_inputs(case))
    assert found.values["y"].shape == (2,)


def test_a_reference_less_exact_than_its_case_is_a_fault_of_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to float32, it would call every kernel of a float64 case wrong; a float32 case may have it."""
    op = find_op("p_norm")

    def reference(*given: Any) -> dict[str, Any]:
        return {name: value.astype(np.float32) for name, value in op.reference(*given).items()}

    monkeypatch.setattr(verify, "find_op", lambda _: replace(op, reference=reference))
    case = Case("p_norm", "small", {"x": (2, 3)}, "float32", op.params())
    assert expect(case, make_inputs(case)).values["y"].dtype == np.float32
    case = replace(case, dtype="float64")
    with pytest.raises(ValueError, match="the reference's y is float32, not float64: do not convert it"):
        expect(case, make_inputs(case))
