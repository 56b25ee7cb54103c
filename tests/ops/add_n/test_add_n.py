"""add_n: one addition, rounded once, without broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.ops import FLOATS, ShapeError, dtype_info, find_op
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of, ours, outputs_of, passes

OP = "add_n"
Shape = tuple[int, ...]


@given(st.lists(st.integers(0, 9), max_size=5), st.sampled_from(drawn_of("add_n", FLOATS)))
@settings(max_examples=50)
def test_random_shapes(shape: list[int], dtype: str) -> None:
    """Every implementation of ours is exact to one rounding, of any shape, empty and 0-d ones among them."""
    case = case_of(OP, {"in_0": tuple(shape)}, dtype)
    for implementation in ours(OP):
        assert complaint(case, inputs_of(case), implementation) == ""


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize("size", [(1 << 15) - 1, 1 << 15, (1 << 15) + 13])
def test_cut_into_pieces(implementation: str, size: int) -> None:
    """Tensors about the size where threads start are whole."""
    case = case_of(OP, {"in_0": (size,)}, "float32")
    assert complaint(case, inputs_of(case), implementation) == ""


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_numbers(implementation: str, dtype: str) -> None:
    """Infinities, NaN, overflow and subnormals follow IEEE 754, with the sign of zero."""
    info = dtype_info(dtype)
    tiny = float(np.nextafter(info.numpy.type(0), info.numpy.type(1)))
    first = [np.inf, -np.inf, np.inf, np.nan, info.largest, tiny, -0.0, 1.0]
    second = [1.0, -np.inf, -np.inf, 1.0, info.largest, tiny, -0.0, info.epsilon / 2]
    case = case_of(OP, {"in_0": (8,)}, dtype)
    inputs = inputs_of(case, in_0=first, in_1=second)
    assert complaint(case, inputs, implementation) == ""
    found = outputs_of(case, inputs, implementation)["out"].astype(np.float64)
    assert np.array_equal(found, [np.inf, -np.inf, np.nan, np.nan, np.inf, 2 * tiny, 0, 1], equal_nan=True)
    assert np.signbit(found[6])


@pytest.mark.parametrize("second", [(3,), (1, 3), (3, 2), (2, 3, 1), ()])
def test_other_shapes_are_refused(second: Shape) -> None:
    """Shapes that differ are refused, though they broadcast."""
    op = find_op(OP)
    with pytest.raises(ShapeError, match="add_n does not broadcast"):
        op.infer({"in_0": (2, 3), "in_1": second}, "float32", op.params())


@pytest.mark.parametrize("dtype", FLOATS)
def test_mistakes_are_caught(dtype: str) -> None:
    """Eleven wrong sums do not pass, not even the one that is a unit in the last place off."""
    case = case_of(OP, {"in_0": (7, 33)}, dtype)
    inputs = inputs_of(case)
    one, two = inputs.wide["in_0"], inputs.wide["in_1"]
    epsilon = dtype_info(dtype).epsilon
    wrong: dict[str, Any] = {
        "first alone": one,
        "second alone": two,
        "first twice": 2 * one,
        "difference": one - two,
        "product": one * two,
        "mean": (one + two) / 2,
        "shifted": one + np.roll(two, 1),
        "transposed": one + np.ascontiguousarray(two.T).reshape(two.shape),
        "row repeated": one + two[:1],
        "magnitudes": np.abs(one) + np.abs(two),
        "a unit off": (one + two) * (1 + epsilon),
    }
    assert passes(case, inputs, out=one + two)
    assert not [name for name, out in wrong.items() if passes(case, inputs, out=out)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 7, 1024, 4097, 1_200_013])
def test_packs_and_what_is_behind_them(size: int, dtype: str) -> None:
    """Sums of whole blocks, of a last one that is not full, and of elements behind the last vector are right."""
    case = case_of(OP, {"in_0": (size,)}, dtype)
    assert complaint(case, inputs_of(case), "optimized", backend="cuda") == ""
