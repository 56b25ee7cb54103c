"""lerp and lerp_grad: broadcasting in every operand, sums back to the inputs' shapes, and the errata."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.ops import FLOATS, ParameterError, ShapeError, call, dtype_info, find_kernel, find_op
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of, ours, outputs_of, passes

Shape = tuple[int, ...]


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[Shape, Shape, Shape]:
    """Three shapes that broadcast, up to rank 4."""
    full = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))

    def partly() -> Shape:
        start = draw(st.integers(0, len(full)))
        return tuple(length if draw(st.booleans()) else 1 for length in full[start:])

    return partly(), partly(), partly()


@given(broadcasts(), st.sampled_from(drawn_of("lerp", FLOATS)), st.booleans())
@settings(max_examples=60)
def test_random_broadcasts(shapes: tuple[Shape, Shape, Shape], dtype: str, as_number: bool) -> None:
    """Both ops, every implementation of ours, agree with the reference on whatever broadcasts."""
    x, y, weight = shapes
    given_shapes = {"x": x, "y": y} if as_number else {"x": x, "y": y, "weight": weight}
    params: dict[str, Any] = {"weight": 0.3} if as_number else {}
    for op in ("lerp", "lerp_grad"):
        case = case_of(op, given_shapes, dtype, **params)
        for implementation in ours(op):
            assert complaint(case, inputs_of(case), implementation) == ""


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(("rows", "length"), [(5, 3), (5, 7), (5, 9), (5, 300), (300, 2), (130, 5), (90, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lines_on_the_cpu(rows: int, length: int, pieces: int, dtype: str) -> None:
    """Each operand varies along the line or does not, in lines of every kind, divided between threads within a line."""
    rng = np.random.default_rng(length)
    for shapes in product(((rows, length), (rows, 1), (length,)), repeat=3):
        x, y, weight = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        full = np.broadcast_shapes(*shapes)
        out = np.zeros(full, dtype)
        run = find_kernel("lerp", "optimized", "cpu", dtype).bind(
            {"x": x, "y": y, "weight": weight}, find_op("lerp").params(), {"out": out}
        )
        assert isinstance(run, partial)
        run.func(*run.args[:-1], pieces)
        expected = find_op("lerp").reference({"x": x, "y": y, "weight": weight}, find_op("lerp").params())["out"]
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((4,), (3, 4)),
        ((3, 4), (4,)),
        ((), (3, 4)),
        ((2, 1, 2, 5, 5), (2, 2, 1, 5, 5)),
        ((16, 1, 1, 1), (16, 3, 40, 40)),
    ],
)
@pytest.mark.parametrize("implementation", ours("lerp_grad"))
def test_gradients_are_summed_to_their_input(implementation: str, x: Shape, y: Shape) -> None:
    """Missing and repeated axes are summed, where upstream returned the first row for x [4], y [3, 4]."""
    case = case_of("lerp_grad", {"x": x, "y": y}, "float64", weight=0.25)
    inputs = inputs_of(case)
    assert complaint(case, inputs, implementation) == ""
    full = case.resolved.inputs["dout"].shape
    if x == (4,) and full == (3, 4):
        dout = inputs.values["dout"]
        assert not passes(case, inputs, dx=0.75 * dout[0], dy=0.25 * dout)


@pytest.mark.parametrize(
    ("x", "y", "weight"),
    [
        ((300, 4), (300, 4), (4,)),
        ((300, 4), (300, 4), (300, 1)),
        ((40, 3, 5), (40, 3, 5), (3, 1)),
        ((40, 3, 5), (40, 3, 5), (40, 1, 5)),
        ((7, 129), (7, 129), (129,)),
        ((5,), (1024, 5), (5,)),
        ((1, 5), (1021, 5), (1, 5)),
        ((6, 1, 5), (6, 100, 5), (5,)),
        ((6, 1, 5), (6, 100, 5), (6, 1, 5)),
        ((2, 2, 5), (70, 2, 2, 5), (5,)),
        ((4, 5), (70, 4, 5), (1, 4, 1)),
        ((3, 1, 4), (3, 90, 1), (1, 1, 4)),
        ((2, 3, 1, 4), (2, 3, 50, 4), (3, 1, 1)),
    ],
)
def test_gradients_of_short_lines_on_the_cpu(x: Shape, y: Shape, weight: Shape) -> None:
    """Copied and repeated weights: a row for all, a number for each, of an axis between; lines that are too long."""
    for dtype in drawn_of("lerp", FLOATS):
        case = case_of("lerp_grad", {"x": x, "y": y, "weight": weight}, dtype)
        assert complaint(case, inputs_of(case), "optimized") == "", dtype


def test_weight_near_one_keeps_its_accuracy() -> None:
    """(1 - w) dout is right to the last bits at w = 1 - 2^-20 in float32, where dout - w dout is not."""
    case = case_of("lerp_grad", {"x": (64,), "y": (64,)}, "float32", weight=1 - 2.0**-20)
    inputs = inputs_of(case)
    dout = inputs.values["dout"]
    exact = outputs_of(case, inputs, "optimized")
    assert passes(case, inputs, **exact)
    weight = np.float32(1 - 2.0**-20)
    assert not passes(case, inputs, dx=dout - weight * dout, dy=weight * dout)


@pytest.mark.parametrize("implementation", [name for name in ours("lerp_grad") if name != "subtract"])
def test_infinite_gradients_stay_infinite(implementation: str) -> None:
    """dout = inf gives inf for 0 < w < 1, not NaN."""
    case = case_of("lerp_grad", {"x": (3,), "y": (3,)}, "float32", weight=0.5)
    inputs = inputs_of(case, dout=[np.inf, -np.inf, 1.0])
    found = outputs_of(case, inputs, implementation)
    assert found["dx"].tolist() == [np.inf, -np.inf, 0.5]


@pytest.mark.parametrize("weight", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    ("x", "y"),
    [((2,), (1,)), ((5, 1), (5, 7)), ((5, 7), (7,)), ((3, 1, 4), (3, 5, 1)), ((999,), (1,)), ((4, 70), (4, 1))],
)
def test_weights_that_are_not_finite(weight: float, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """An infinite weight gives infinite gradients, summed or not; only an infinite sum of both signs is NaN."""
    case = case_of("lerp_grad", {"x": x, "y": y}, "float32", weight=weight)
    for implementation in ours("lerp_grad"):
        assert complaint(case, inputs_of(case), implementation) == ""


def test_one_gradient_alone() -> None:
    """Either gradient may be left out, not both."""
    for wanted in ({"need_x": False}, {"need_y": False}):
        case = case_of("lerp_grad", {"x": (5, 1), "y": (5, 7)}, "float32", weight=0.4, **wanted)
        for implementation in ours("lerp_grad"):
            assert complaint(case, inputs_of(case), implementation) == ""
    with pytest.raises(ParameterError, match="both false"):
        find_op("lerp_grad").params(weight=0.5, need_x=False, need_y=False)


def test_gradients_are_those_of_torch() -> None:
    """float64 autograd through torch.lerp gives the reference's gradients."""
    import torch

    case = case_of("lerp_grad", {"x": (2, 1, 3), "y": (4, 1), "weight": (3,)}, "float64")
    arrays = inputs_of(case).values
    x, y, weight = (torch.from_numpy(arrays[name].copy()) for name in ("x", "y", "weight"))
    x.requires_grad_()
    y.requires_grad_()
    torch.lerp(*torch.broadcast_tensors(x, y), weight).backward(torch.from_numpy(arrays["dout"].copy()))
    found = find_op("lerp_grad").reference(arrays, case.params)
    for name, tensor in (("dx", x), ("dy", y)):
        assert tensor.grad is not None
        assert np.allclose(found[name], tensor.grad.numpy(), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("shapes", "params", "message"),
    [
        ({"x": (0,), "y": (1,)}, {"weight": 0.5}, "input x must not be empty"),
        ({"x": (3,), "y": (4,)}, {"weight": 0.5}, "do not broadcast"),
        ({"x": (1,) * 7, "y": (1,)}, {"weight": 0.5}, "rank 7"),
        ({"x": (3,), "y": (3,)}, {}, "weight must be given once"),
        ({"x": (3,), "y": (3,), "weight": (3,)}, {"weight": 0.5}, "weight must be given once"),
    ],
)
def test_what_is_refused(shapes: dict[str, Shape], params: dict[str, float], message: str) -> None:
    """Empty inputs, shapes that do not broadcast, a rank above 6, a weight given twice or not at all."""
    for name in ("lerp", "lerp_grad"):
        op = find_op(name)
        with pytest.raises((ShapeError, ParameterError), match=message):
            op.infer(shapes, "float32", op.params(**params))


def test_mutants_of_the_gradient_are_caught() -> None:
    """The wrong factor, the wrong axis and a forgotten sum do not pass."""
    case = case_of("lerp_grad", {"x": (4, 1), "y": (4, 4)}, "float32", weight=0.3)
    inputs = inputs_of(case)
    dout = inputs.values["dout"].astype(np.float64)
    right = {"dx": 0.7 * dout.sum(1, keepdims=True), "dy": 0.3 * dout}
    assert passes(case, inputs, **right)
    wrong = [
        {**right, "dx": 0.3 * dout.sum(1, keepdims=True)},
        {**right, "dx": 0.7 * dout.sum(0)[:, None]},
        {**right, "dx": 0.7 * dout[:, :1]},
        {**right, "dx": dout.sum(1, keepdims=True)},
        {**right, "dy": 0.7 * dout},
        {**right, "dy": 0.3 * dout.T},
    ]
    assert not any(passes(case, inputs, **outputs) for outputs in wrong)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("as_number", [True, False])
def test_blends_of_the_largest_numbers_are_finite(dtype: str, weight: float, as_number: bool) -> None:
    """A difference that overflows does not make the blend infinite, and weights 0 and 1 give x and y exactly."""
    info = dtype_info(dtype)
    large = 0.9 * info.largest
    x = np.array([-large, large, large, 1.7, -0.3], info.numpy)
    y = np.array([large, -large, large, -2.9, -0.3], info.numpy)
    share = weight if as_number else np.full(5, weight, info.numpy)
    found = call("lerp", x=x, y=y, weight=share)
    assert np.isfinite(found.astype(np.float64)).all()
    assert (found[[2, 4]] == x[[2, 4]]).all()
    if weight in {0.0, 1.0}:
        assert (found == (y if weight else x)).all()


def test_the_composite_passes_on_long_columns() -> None:
    """The bound of a summed gradient allows what NumPy loses where it adds rows one after the other."""
    case = case_of("lerp_grad", {"x": (3,), "y": (20_000, 3)}, "float32", weight=0.3)
    assert complaint(case, inputs_of(case), "baseline") == ""
