"""What p_norm and its gradient are: the reference by examples, finite differences and autograd; the errors."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opgauge.ops import AxisError, ParameterError, find_op

ORDERS = (-inf, -2.5, -1.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, inf, "fro")
AXES = (0, 1, -1, (0, 1), (0, 2), (2, 1), None)
STEP = 1e-6


def norm(x: Any, porder: Any = 2.0, axis: Any = -1, *, keepdim: bool = False) -> NDArray[Any]:
    """p_norm by its reference."""
    op = find_op("p_norm")
    params = op.params(porder=porder, axis=axis, keepdim=keepdim)
    y: NDArray[Any] = op.reference({"x": np.asarray(x, np.float64)}, params)["y"]
    return y


def grad(x: Any, dy: Any, porder: Any = 2.0, axis: Any = -1, y: Any = None) -> NDArray[Any]:
    """p_norm_grad by its reference; y is the norm of x unless given."""
    op = find_op("p_norm_grad")
    params = op.params(porder=porder, axis=axis)
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        y = norm(x, porder, axis) if y is None else np.asarray(y, np.float64)
        arrays = {"x": x, "y": y, "dy": np.asarray(dy, np.float64).reshape(y.shape)}
        dx: NDArray[Any] = op.reference(arrays, params)["dx"]
        return dx


def tensor(shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Numbers away from zero, no two of one magnitude."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    magnitude = 0.5 + rng.permutation(size) / size
    return np.asarray(magnitude * rng.choice([-1, 1], size)).reshape(shape)


@pytest.mark.parametrize(
    ("porder", "expected"),
    [(0, 2), (1, 7), (2, 5), ("fro", 5), (inf, 4), (-inf, 0), (3, 91 ** (1 / 3)), (0.5, (2 + 3**0.5) ** 2), (-1, 0)],
)
def test_order(porder: Any, expected: float) -> None:
    """Each order gives what its formula says of (3, 0, -4)."""
    with np.errstate(divide="ignore"):
        assert norm([3.0, 0.0, -4.0], porder) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("porder", [1, 2, "fro", inf, -inf, 3.0, 0])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_norm_is_numpys(porder: Any, axis: int) -> None:
    """Over one axis the norm is `numpy.linalg.norm`."""
    x = tensor((2, 3, 4), 1)
    assert norm(x, porder, axis) == pytest.approx(
        np.linalg.norm(x, ord=2 if porder == "fro" else porder, axis=axis), rel=1e-13
    )


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_shape(axis: Any, *, keepdim: bool) -> None:
    """The reduced axes go, or stay with length 1; two axes are one vector, not a matrix norm."""
    x = tensor((2, 3, 4), 2)
    axes = tuple(range(3)) if axis is None else axis
    assert norm(x, 3.0, axis, keepdim=keepdim) == pytest.approx(
        np.sum(np.abs(x) ** 3, axis=axes, keepdims=keepdim) ** (1 / 3)
    )
    inferred = find_op("p_norm").infer({"x": (2, 3, 4)}, "float32", find_op("p_norm").params(2.0, axis, keepdim))
    assert inferred.outputs["y"].shape == np.sum(x, axis=axes, keepdims=keepdim).shape


@pytest.mark.parametrize("porder", ORDERS)
def test_empty_is_zero(porder: Any) -> None:
    """The norm of nothing is 0 for every order, infinite and negative ones too."""
    assert np.array_equal(norm(np.zeros((3, 0)), porder), np.zeros(3))
    assert norm(np.zeros((0, 5)), porder).shape == (0,)


@pytest.mark.parametrize("porder", [p for p in ORDERS if p != 0])
def test_nan_comes_through(porder: Any) -> None:
    """A NaN makes the norm NaN, infinite orders included; order 0 counts it."""
    assert np.isnan(norm([1.0, nan, 2.0], porder))
    assert norm([1.0, nan, 0.0], 0) == 2


@pytest.mark.parametrize(("porder", "expected"), [(0.5, 0.0), (2, 0.0), (inf, 0.0), (-inf, 0.0), (-1, 0.0), (0, 0.0)])
def test_norm_of_zeros(porder: Any, expected: float) -> None:
    """The norm of zeros is 0, by way of infinity for negative orders."""
    with np.errstate(divide="ignore"):
        assert norm(np.zeros(4), porder) == expected


@pytest.mark.parametrize("porder", [p for p in ORDERS if p != 0])
@pytest.mark.parametrize("axis", AXES)
def test_gradient_is_the_derivative(porder: Any, axis: Any) -> None:
    """Central differences of the norm agree, for every order and axis."""
    x = tensor((3, 2, 4), 3)
    shape = norm(x, porder, axis).shape
    dy = np.random.default_rng(4).standard_normal(shape)
    expected = np.empty_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = STEP
        slope = (norm(x + step, porder, axis) - norm(x - step, porder, axis)) / (2 * STEP)
        expected[place] = np.sum(dy * slope)
    assert grad(x, dy, porder, axis) == pytest.approx(expected, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("porder", ORDERS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), zeros=st.booleans(), axis=st.sampled_from([0, 1, None]))
def test_gradient_is_torchs(porder: Any, seed: int, axis: int | None, *, zeros: bool) -> None:
    """Autograd through `torch.linalg.vector_norm` in float64 agrees, zeros and ties included."""
    import torch

    p = 2.0 if porder == "fro" else porder
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (3, 5)).astype(np.float64) if zeros else rng.standard_normal((3, 5))
    if p < 0 and zeros:  # torch divides by 0 where we mask
        return
    dy = rng.standard_normal(norm(x, porder, axis).shape)
    leaf = torch.from_numpy(x).requires_grad_()
    y = torch.linalg.vector_norm(leaf, p, None if axis is None else (axis,))
    if p == 0:
        assert not np.any(grad(x, dy, porder, axis))
        return
    (expected,) = torch.autograd.grad(y, leaf, torch.from_numpy(np.asarray(dy)).reshape(y.shape))
    assert grad(x, dy, porder, axis) == pytest.approx(expected.numpy(), rel=1e-11, abs=1e-13)


def test_order_0_has_no_gradient() -> None:
    """A count does not change with x: its gradient is 0."""
    assert not np.any(grad([1.0, 0.0, -2.0], 5.0, 0))


def test_order_1_is_the_sign() -> None:
    """The gradient of the sum of magnitudes is the sign, 0 at 0."""
    assert grad([3.0, 0.0, -2.0], 5.0, 1).tolist() == [5.0, 0.0, -5.0]


@pytest.mark.parametrize("porder", [0.3, 0.5, -1.0, -2.5])
def test_zero_elements_are_masked_below_order_1(porder: float) -> None:
    """Where |x|^(p-1) is infinite, at x = 0, the gradient is 0 and not NaN."""
    dx = grad([[0.0, 2.0], [0.0, 0.0]], [1.0, 1.0], porder)
    assert np.isfinite(dx).all()
    assert dx[0, 0] == 0
    assert not dx[1].any()


@pytest.mark.parametrize("porder", [1.5, 2.0, 3.0, 5.0, "fro"])
def test_zero_rows_are_masked(porder: Any) -> None:
    """Where y = 0 the gradient is 0 and not 0 / 0, and the other rows are not touched."""
    dx = grad([[0.0, 0.0], [3.0, 0.0]], [7.0, 7.0], porder)
    assert dx[[0, 0, 1], [0, 1, 1]].tolist() == [0.0, 0.0, 0.0]
    assert dx[1, 0] == pytest.approx(7.0, rel=1e-14)  # powers are rounded otherwise on another processor


@pytest.mark.parametrize("porder", [inf, -inf])
def test_ties_share_evenly(porder: float) -> None:
    """Elements that tie for the extreme share dy; they do not get it in full."""
    x = [2.0, -2.0, 2.0, 9.0 if porder < 0 else 1.0]
    assert grad(x, 6.0, porder).tolist() == [2.0, -2.0, 2.0, 0.0]


def test_a_smallest_magnitude_of_zero_has_no_gradient() -> None:
    """min |x| = 0 has sign 0, hence gradient 0 everywhere."""
    assert not grad([0.0, 3.0, -0.0], 6.0, -inf).any()


def test_ties_are_counted_over_both_axes() -> None:
    """Over two axes a tie is among all elements of both."""
    x = np.ones((2, 3, 2))
    assert grad(x, [6.0, 12.0, 18.0], inf, (0, 2))[:, :, 0].tolist() == [[1.5, 3.0, 4.5]] * 2


@pytest.mark.parametrize("porder", [inf, -inf])
def test_nan_ties_with_a_nan_norm(porder: float) -> None:
    """A NaN is the extreme of its slice: it alone has a gradient, and that is NaN."""
    dx = grad([1.0, nan, 2.0], 6.0, porder)
    assert np.isnan(dx[1])
    assert dx[[0, 2]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("porder", [0.5, 1.5, 2.0, 3.0])
def test_a_nan_makes_its_row_nan_and_no_other(porder: float) -> None:
    """NaN reaches every element of its row through y, and none of the next."""
    dx = grad([[1.0, nan], [1.0, 2.0]], [1.0, 1.0], porder)
    assert np.isnan(dx[0]).all()
    assert np.isfinite(dx[1]).all()


def test_powers_that_overflow_apart_do_not_together() -> None:
    """|x|^q / y^q is computed from |x| / y, which neither overflows nor underflows before it must."""
    y = 2**0.25 * 1e200
    assert grad([1e200, -1e200], 1.0, 4, y=y) == pytest.approx([2**-0.75, -(2**-0.75)], rel=1e-14)


@pytest.mark.parametrize(
    ("params", "error", "says"),
    [
        ({"porder": "banana"}, ParameterError, "banana"),
        ({"porder": nan}, ParameterError, "not a number"),
        ({"axis": ()}, ParameterError, "needs an axis"),
        ({"axis": (0, 1, 2), "porder": 0}, ParameterError, "porder 0"),
        ({"axis": (0, 1), "porder": 0}, ParameterError, "porder 0"),
    ],
)
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
def test_parameters_outside_the_domain(op: str, params: dict[str, Any], error: type[Exception], says: str) -> None:
    """A parameter outside its domain is refused where it is given, and named."""
    with pytest.raises(error, match=says):
        find_op(op).params(**params)


@pytest.mark.parametrize("axis", [3, -4, (0, 3), (1, 1), (1, -2)])
@pytest.mark.parametrize("op", ["p_norm", "p_norm_grad"])
def test_axes_outside_the_rank(op: str, axis: Any) -> None:
    """An axis outside [-rank, rank - 1], or named twice, is refused by the shape rule."""
    with pytest.raises(AxisError, match="axis"):
        find_op(op).infer({"x": (2, 3, 4)}, "float32", find_op(op).params(axis=axis))
