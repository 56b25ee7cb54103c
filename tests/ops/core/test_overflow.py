"""Extreme inputs: results are judged by values that float64 does not overflow in, and infinities by their sign."""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import check, expect
from opgauge.ops import FLOATS, ParameterError, ShapeError, call, dtype_info, find_op
from tests.ops.attempts import Array, case_of, complaint, inputs_of, outputs_of, passes

BIG = 3e38
ORDERS = (1.0, 0.5, 2.0, 3.0, 10.0, -1.0)
COMPOSED: tuple[tuple[str, dict[str, tuple[int, ...]], dict[str, Any]], ...] = (
    ("mean", {"x": (3, 2)}, {"axis": 0}),
    ("dot", {"x": (2, 3)}, {}),
    ("scale", {"x": (6,)}, {"scale": 0.5, "bias": 1.0, "bias_after_scale": False}),
    ("lerp", {"x": (6,), "y": (6,)}, {"weight": 0.25}),
    ("lerp_grad", {"x": (3, 2), "y": (2,)}, {"weight": 0.25}),
    ("p_norm", {"x": (3, 2)}, {"porder": 2.0, "axis": 0}),
    ("p_norm_grad", {"x": (3, 2)}, {"porder": 2.0, "axis": 0}),
    ("normalization", {"x": (3, 2)}, {}),
    ("conv_data_grad", {"x_like": (1, 2, 3), "filter": (2, 2, 2)}, {}),
    ("deformable_conv", {"x": (1, 2, 1, 2), "filter": (2, 2, 1, 1), "mask": (1, 1, 1, 2)}, {}),
    ("deformable_conv_grad", {"x": (1, 2, 1, 2), "filter": (2, 2, 1, 1), "mask": (1, 1, 1, 2)}, {}),
)
"""Small cases of ops whose partial results may overflow."""
NORMED = ([1e200, 1.0, 1.0], [1e-200, 2e-200, 1e-190], [1e38, 1e20, 3e38], [1e308, 1e308, 0.5])


def extremes(dtype: str) -> st.SearchStrategy[float]:
    """Numbers near the limits of a dtype, and ordinary ones."""
    largest = dtype_info(dtype).largest
    return st.sampled_from(
        [largest, -largest, largest / 3, -largest / 5, largest**0.5, -1.0, 0.0, 1.0, 1e-30, -(1e-38)]
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_composites_of_extreme_numbers_are_right(data: st.DataObject) -> None:
    """NumPy's composites agree with every op's bound at the largest numbers; the opposite result never does."""
    op, shapes, params = data.draw(st.sampled_from(COMPOSED))
    if "porder" in params:
        params = {**params, "porder": data.draw(st.sampled_from(ORDERS))}
    dtype = data.draw(st.sampled_from(FLOATS))
    case = case_of(op, shapes, dtype, **params)
    drawn = {
        name: data.draw(st.lists(extremes(spec.dtype), min_size=spec.size, max_size=spec.size))
        for name, spec in case.resolved.inputs.items()
    }
    inputs = inputs_of(case, **drawn)
    assert judged(case, inputs) == ""


def test_bounds_beyond_float64_allow_finite_results() -> None:
    """The variance overflows, so that y is beta in every library, too far from the formula's for float64."""
    largest = dtype_info("float64").largest
    case = case_of("normalization", {"x": (3, 2)}, "float64")
    x = [largest, largest, largest, -largest / 5, largest, -largest]
    assert judged(case, inputs_of(case, x=x, gamma=[largest] * 2, beta=[largest] * 2)) == ""
    x = [largest, largest, -largest, largest, largest, largest]
    assert judged(case, inputs_of(case, x=x, gamma=[largest / 3, largest], beta=[largest] * 2)) == ""


def judged(case: Case, inputs: Inputs) -> str:
    """Complaint about the composite, whose warnings of overflow are expected."""
    with np.errstate(all="ignore"):
        return complaint(case, inputs, "baseline")


def exact_norm(values: list[float], p: float) -> float:
    """Norm in 50 digits."""
    with localcontext(prec=50):
        total = sum((abs(Decimal(value)) ** Decimal(p) for value in values), Decimal(0))
        return float(total ** (1 / Decimal(p)))


def exact_sign(value: complex) -> complex:
    """Quotient of a complex number and its magnitude, in 50 digits."""
    with localcontext(prec=50):
        real, imaginary = Decimal(value.real), Decimal(value.imag)
        size = (real * real + imaginary * imaginary).sqrt() or Decimal(1)
        return complex(float(real / size), float(imaginary / size))


@pytest.mark.parametrize("implementation", ["baseline", "optimized"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 1), 0), ((1, 3), 1), ((3, 40), 0), ((40, 3), 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_gradient_remains_none_where_a_ratio_vanishes(
    dtype: str, shape: tuple[int, int], axis: int, implementation: str
) -> None:
    """Below order 1 the power of a ratio of 0 is infinite, and no gradient of y times that is 0."""
    largest = dtype_info(dtype).largest
    case = case_of("p_norm_grad", {"x": shape}, dtype, porder=0.5, axis=axis)
    line = np.array([largest / 16, largest**-0.8, largest**0.5])
    x = np.broadcast_to(line[:, None] if axis == 0 else line, shape)
    assert complaint(case, inputs_of(case, x=x.ravel(), dy=np.zeros(x.size // 3)), implementation) == ""


@pytest.mark.parametrize("p", [0.5, 2.0, 3.0, 10.0, 60.0, -2.0])
@pytest.mark.parametrize(
    "values", [[1e200, 1.0, 1.0], [1e-200, 2e-200, 1e-190], [1e38, 1e20, 3e38], [1e308, 1e308, 0.5]]
)
def test_norms_beyond_the_range_of_their_powers(p: float, values: list[float]) -> None:
    """The reference agrees with 50 digits though its powers exceed float64, or vanish in it."""
    case = case_of("p_norm", {"x": (3,)}, "float64", porder=p)
    found = expect(case, inputs_of(case, x=values)).values["y"]
    assert found == pytest.approx(exact_norm(values, p), rel=1e-13)


@pytest.mark.parametrize("wrong", [-5.0, -inf, nan, 0.0, 1.0001e20])
def test_norms_that_overflow_accept_infinity_alone(wrong: float) -> None:
    """The norm of [1e20, 1, 1] in float32 is 1e20, or infinite; never negative, and a number."""
    case = case_of("p_norm", {"x": (3,)}, "float32", porder=2.0)
    inputs = inputs_of(case, x=[1e20, 1.0, 1.0])
    assert passes(case, inputs, y=1e20)
    assert passes(case, inputs, y=inf)
    assert not passes(case, inputs, y=wrong)


@pytest.mark.parametrize(("dtype", "big"), [("float32", BIG), ("bfloat16", BIG), ("float64", 1.5e308)])
def test_means_of_the_largest_numbers(dtype: str, big: float) -> None:
    """Three equal numbers have their own mean; its infinity is right, the other one, NaN and -5 are not."""
    case = case_of("mean", {"x": (3,)}, dtype)
    inputs = inputs_of(case, x=[big] * 3)
    assert passes(case, inputs, out=float(inputs.wide["x"][0]))
    assert passes(case, inputs, out=inf)
    assert not any(passes(case, inputs, out=wrong) for wrong in (-inf, nan, -5.0))
    mixed = inputs_of(case, x=[big, big, -big])
    assert all(passes(case, mixed, out=out) for out in (float(mixed.wide["x"][0]) / 3, inf, -inf, nan))


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.75, 1.0])
@pytest.mark.parametrize(("dtype", "big"), [("float32", BIG), ("float64", 1.5e308)])
def test_blends_of_opposite_largest_numbers(dtype: str, big: float, weight: float) -> None:
    """The composite's difference overflows, and it may be infinite; a finite blend is exact to the bound."""
    case = case_of("lerp", {"x": (2,), "y": (2,)}, dtype, weight=weight)
    inputs = inputs_of(case, x=[-big, big], y=[big, -big])
    assert judged(case, inputs) == ""
    exact = (1 - weight) * inputs.wide["x"] + weight * inputs.wide["y"]
    assert passes(case, inputs, out=exact)
    assert not passes(case, inputs, out=exact + 0.01 * big)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_signs_of_complex_numbers_whose_magnitude_overflows(dtype: str) -> None:
    """x / |x| of huge, subnormal and ordinary numbers agrees with 50 digits, in the composite too."""
    largest, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    values = [complex(largest, largest), complex(-largest, largest / 3), complex(3 * tiny, -4 * tiny), 3 - 4j, 0j]
    case = case_of("sign", {"x": (5,)}, dtype)
    inputs = inputs_of(case, x=values)
    exact = [exact_sign(one) for one in inputs.wide["x"].tolist()]
    assert np.allclose(expect(case, inputs).values["out"], exact, rtol=1e-15)
    assert passes(case, inputs, out=exact)
    assert judged(case, inputs) == ""
    assert not passes(case, inputs, out=-np.asarray(exact))


@pytest.mark.parametrize(
    ("op", "name", "rest"),
    [
        ("lerp", "weight", {}),
        ("lerp_grad", "weight", {}),
        ("scale", "scale", {}),
        ("scale", "bias", {}),
        ("p_norm", "porder", {}),
        ("p_norm_grad", "porder", {}),
        ("normalization", "epsilon", {}),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_that_the_dtype_lacks_are_refused(op: str, name: str, rest: dict[str, Any], dtype: str) -> None:
    """A parameter that kernels would read as infinite or as zero is refused by its name; float64 has both."""
    shapes = {item.name: (4, 3) for item in find_op(op).inputs if item.required or (item.name == "y" and "lerp" in op)}
    for value in (1e39, 1e-60):
        params = find_op(op).params(**{name: value, **rest})
        if dtype == "float64":
            find_op(op).infer(shapes, dtype, params)
        else:
            with pytest.raises(ParameterError, match=f"{name} .* out of range for float32"):
                find_op(op).infer(shapes, dtype, params)
    find_op(op).infer(shapes, dtype, find_op(op).params(**{name: 1e4, **rest}))


@pytest.mark.parametrize(("dtype", "value"), [("int8", 300.0), ("uint8", -1.0), ("int32", 3e9), ("int64", 1e19)])
@pytest.mark.parametrize("name", ["scale", "bias"])
def test_integers_refuse_numbers_beyond_their_range(name: str, dtype: str, value: float) -> None:
    """A scale or bias that an integer dtype lacks is refused, rather than wrapped."""
    with pytest.raises(ParameterError, match=f"{name} .* out of range for {dtype}"):
        find_op("scale").infer({"x": (3,)}, dtype, find_op("scale").params(**{name: value}))


PLAIN: list[tuple[str, str, Any]] = [
    ("mean", "axis", np.int64(1)),
    ("mean", "axis", np.array([0, 1])),
    ("mean", "keepdim", np.bool_(True)),
    ("p_norm", "porder", np.float32(2)),
    ("scale", "scale", np.float32(0.5)),
    ("lerp", "weight", np.int64(1)),
    ("fill_any_like", "value", np.int64(2)),
    ("flatten", "start_axis", np.int32(0)),
    ("normalization", "axis", np.int64(1)),
    ("conv_data_grad", "strides", np.int64(2)),
    ("conv_data_grad", "padding_before", np.array([1, 1])),
    ("deformable_conv", "groups", np.int64(1)),
    ("resnet50_adds", "batch", np.int64(2)),
]
"""Parameters as NumPy's scalars or arrays."""


@pytest.mark.parametrize(("op", "name", "value"), PLAIN)
def test_parameters_are_plain(op: str, name: str, value: Any) -> None:
    """NumPy's scalars and arrays become Python's numbers and tuples, so that cases can be stored."""
    found = getattr(find_op(op).params(**{name: value}), name)
    assert type(found) in {bool, int, float, tuple}
    assert np.array_equal(found, value)


def test_arguments_of_numpy_types() -> None:
    """`call` takes NumPy's integers and booleans for axes, strides and options."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = call("mean", x=x, axis=np.int64(-1), keepdim=np.bool_(True), implementation="baseline")
    assert np.array_equal(found, x.mean(-1, keepdims=True))


EMPTY: list[tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = [
    ("add_n", {"in_0": (0, 3)}, {}),
    ("dot", {"x": (2, 0)}, {}),
    ("fill_any_like", {"x": (0,)}, {}),
    ("flatten", {"x": (0, 3)}, {}),
    ("mean", {"x": (0, 3)}, {"axis": 1}),
    ("p_norm", {"x": (0, 3)}, {"axis": 0}),
    ("p_norm_grad", {"x": (3, 0)}, {"axis": 0}),
    ("scale", {"x": (0,)}, {}),
    ("sign", {"x": (0, 2)}, {}),
    ("normalization", {"x": (3, 0, 2)}, {}),
    ("normalization", {"x": (0, 3, 2), "moving_mean": (3,), "moving_variance": (3,)}, {"training": False}),
    ("conv_data_grad", {"x_like": (0, 2, 5), "filter": (3, 2, 2)}, {}),
    ("deformable_conv", {"x": (0, 2, 4, 4), "filter": (3, 2, 2, 2)}, {}),
    ("deformable_conv_grad", {"x": (0, 2, 4, 4), "filter": (3, 2, 2, 2)}, {}),
]
"""Cases without elements that are defined."""


@pytest.mark.parametrize(("op", "shapes", "params"), EMPTY)
def test_empty_arrays(op: str, shapes: dict[str, tuple[int, ...]], params: dict[str, Any]) -> None:
    """Arrays without elements, empty batches among them, are computed by the composite and judged right."""
    case = case_of(op, shapes, "float32", **params)
    assert complaint(case, inputs_of(case), "baseline") == ""


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        ("normalization", {"x": (0, 3, 2)}, "no value per channel"),
        ("lerp", {"x": (0,), "y": (1,)}, "must not be empty"),
        ("conv_data_grad", {"x_like": (1, 2, 5), "filter": (3, 2, 0)}, "no taps"),
        ("conv_data_grad", {"x_like": (1, 2, 5), "filter": (0, 2, 2)}, "no channels"),
        ("conv_data_grad", {"x_like": (1, 2, 0), "filter": (1, 2, 1)}, "no pixels"),
        ("deformable_conv", {"x": (1, 2, 4, 4), "filter": (3, 2, 0, 2)}, "no taps"),
        ("deformable_conv", {"x": (1, 2, 4, 4), "filter": (0, 2, 2, 2)}, "no channels"),
        ("deformable_conv_grad", {"x": (1, 2, 0, 4), "filter": (3, 2, 1, 1)}, "no pixels"),
    ],
)
def test_undefined_shapes_are_refused(op: str, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    """Statistics of nothing and filters without taps, outputs or pixels are refused, by every op alike."""
    params = find_op(op).params(**({"weight": 0.5} if op == "lerp" else {}))
    with pytest.raises(ShapeError, match=message):
        find_op(op).infer(shapes, "float32", params)


@pytest.mark.parametrize("op", ["mean", "p_norm"])
def test_three_separate_axes(op: str) -> None:
    """Reductions over three axes that are not adjacent agree with NumPy's, by every composite and order."""
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 2, 3, 2)).astype(np.float32)
    case = case_of(op, {"x": x.shape}, "float32", axis=(0, 2, 4))
    found: Array = next(iter(outputs_of(case, inputs_of(case, x=x), "baseline").values()))
    exact = x.astype(float).mean((0, 2, 4)) if op == "mean" else np.sqrt(np.square(x.astype(float)).sum((0, 2, 4)))
    assert np.allclose(found, exact, rtol=1e-5)
    assert check({"out" if op == "mean" else "y": exact.astype(np.float32)}, expect(case, inputs_of(case, x=x))).ok


@pytest.mark.parametrize("op", ["deformable_conv", "deformable_conv_grad"])
def test_a_column_that_overflows_excuses_what_it_enters(op: str) -> None:
    """Samples of the second image exceed float16: outputs there may be infinite or NaN, others may not."""
    case = case_of(op, {"x": (2, 2, 3, 3), "filter": (2, 2, 1, 1), "mask": (2, 1, 3, 3)}, "float16")
    values = {name: np.full(spec.shape, 0.5) for name, spec in case.resolved.inputs.items()}
    values["offset"][...] = 0
    values["x"][1, 0, 1, 1] = 60000.0
    values["mask"][1, 0, 1, 1] = 2.0
    inputs = inputs_of(case, **{name: value.reshape(-1).tolist() for name, value in values.items()})
    expected = expect(case, inputs)
    right = {name: value.astype(case.resolved.outputs[name].dtype) for name, value in expected.values.items()}
    assert check(right, expected).ok
    excused = {
        "out": {(1, channel, 1, 1) for channel in range(2)},
        "offset_grad": {(1, axis, 1, 1) for axis in range(2)},
        "mask_grad": {(1, 0, 1, 1)},
        "filter_grad": {(channel, 0, 0, 0) for channel in range(2)},
        "x_grad": set(),
    }
    for name, value in right.items():
        for place in np.ndindex(value.shape):
            wrong = value.copy()
            wrong[place] = inf
            may_be = check({**right, name: wrong}, expected).ok
            assert may_be == (place in excused[name]) or not np.isfinite(value[place]), (name, place)
