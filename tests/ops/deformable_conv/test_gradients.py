"""deformable_conv_grad: against finite differences and autograd, at whole coordinates, and each gradient alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import FLOATS, ParameterError, find_op
from tests.ops.attempts import case_of, complaint, inputs_of, ours, passes
from tests.ops.deformable_conv.sampled import by_grid_sample
from tests.ops.deformable_conv.shapes import CASES, Drawn, convolution, convolutions, scattered

OP = "deformable_conv_grad"
STEP = 1e-6


def off_the_grid(case: Case, seed: int) -> Inputs:
    """Inputs whose offsets stay a hundredth away from whole numbers, where slopes jump."""
    inputs = scattered(case, seed)
    offset = inputs.values["offset"]
    whole = np.floor(offset)
    kept = whole + 0.01 + 0.98 * (offset - whole)
    return inputs_of(case, **{**inputs.values, "offset": kept})


@pytest.mark.parametrize("number", range(len(CASES)))
def test_gradients_are_finite_differences(number: int) -> None:
    """Each gradient is the slope of sum(out * out_grad) in every element of its input."""
    case = CASES[number]("float64", OP)
    inputs = off_the_grid(case, number)
    found = expect(case, inputs).values
    forward = find_op("deformable_conv")
    params = CASES[number]("float64").params

    def loss(arrays: dict[str, Any]) -> float:
        return float(np.sum(forward.reference(arrays, params)["out"] * inputs.wide["out_grad"]))

    rng = np.random.default_rng(number)
    for name in ("x", "offset", "filter", *(["mask"] if "mask" in inputs.wide else [])):
        size = inputs.wide[name].size
        for place in rng.choice(size, min(size, 40), replace=False):
            moved = []
            for step in (STEP, -STEP):
                changed = inputs.wide[name].copy()
                changed.reshape(-1)[place] += step
                moved.append(loss({**inputs.wide, name: changed}))
            slope = (moved[0] - moved[1]) / (2 * STEP)
            assert found[f"{name}_grad"].reshape(-1)[place] == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_gradients_are_those_of_autograd(number: int) -> None:
    """torch's autograd through its own bilinear sampling gives the same in float64."""
    case = CASES[number]("float64", OP)
    inputs = off_the_grid(case, number)
    expected = by_grid_sample(case, inputs.wide)
    for name, value in expect(case, inputs).values.items():
        assert np.allclose(value, expected[name], rtol=1e-10, atol=1e-11), name


@given(convolutions())
@settings(max_examples=40)
def test_random_convolutions(drawn: Drawn) -> None:
    """Every implementation of ours is within the bound, whatever the sizes, groups, steps and offsets."""
    case = drawn.case(OP)
    inputs = scattered(case, drawn.seed)
    for implementation in ours(OP):
        assert complaint(case, inputs, implementation) == ""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["deformable_conv", OP])
@pytest.mark.parametrize(
    ("batch", "channels", "each", "parts"),
    [(1, 2, 1, 1), (3, 7, 1, 1), (1, 35, 3, 1), (2, 36, 2, 3), (1, 130, 1, 2), (5, 6, 2, 6), (1, 600, 1, 1)],
)
def test_depthwise_convolutions(batch: int, channels: int, each: int, parts: int, op: str, dtype: str) -> None:
    """Channels that fill panels of vectors or not, several outputs of each, blocks of pixels that are full or not."""
    shapes = (batch, channels, 13, 12), (channels * each, 1, 2, 2)
    case = convolution(op, dtype, *shapes, mask=batch > 1, groups=channels, deformable_groups=parts)
    assert complaint(case, scattered(case, channels), "optimized") == ""


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("wanted", ["need_x", "need_offset", "need_filter", "need_mask"])
def test_one_gradient_alone(implementation: str, wanted: str, groups: int) -> None:
    """Any gradient may be asked for by itself, and is then the only output, depthwise too."""
    needs = {name: name == wanted for name in ("need_x", "need_offset", "need_filter", "need_mask")}
    x, weight = (2, 4, 5, 4), (4, 4 // groups, 2, 3)
    case = convolution(OP, "float32", x, weight, mask=True, groups=groups, deformable_groups=2, **needs)
    assert list(case.resolved.outputs) == [f"{wanted.removeprefix('need_')}_grad"]
    assert complaint(case, scattered(case, 3), implementation) == ""


def test_no_gradient_is_refused() -> None:
    """At least one gradient is wanted; the mask's is none where there is no mask."""
    needs = {"need_x": False, "need_offset": False, "need_filter": False}
    with pytest.raises(ParameterError, match="no gradient is wanted"):
        case_of(OP, {"x": (1, 1, 3, 3), "filter": (1, 1, 1, 1)}, "float32", **needs).resolved  # noqa: B018


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize(("place", "slope"), [(-1, 0), (0, 4), (1, 4), (2, -9), (3, 0), (np.nan, 0), (np.inf, 0)])
def test_slope_at_whole_coordinates(implementation: str, place: float, slope: float) -> None:
    """It is the slope to the right inside, and 0 at -1 and at H, where torchvision has the inner slope."""
    case = case_of(OP, {"x": (1, 1, 3, 4), "filter": (1, 1, 3, 4)}, "float64")
    weight, offset = np.zeros(12), np.zeros((12, 2))
    weight[0] = 1
    offset[0, 0] = place
    given_out = np.ones(1)
    inputs = inputs_of(case, x=np.arange(1.0, 13.0), filter=weight, offset=offset, out_grad=given_out)
    assert expect(case, inputs).values["offset_grad"].reshape(-1)[0] == slope
    assert complaint(case, inputs, implementation) == ""


@pytest.mark.parametrize(
    ("place", "slope", "is_right"),
    [(-1, 1, True), (-1, 0, True), (3, -9, True), (3, 0, True), (-1.25, 1, False), (3.25, -9, False), (0, 0, False)],
)
def test_either_slope_is_right_at_the_edge(place: float, slope: float, is_right: bool) -> None:
    """At -1 and at H: implementations take either. Beyond them it is 0, and to the right elsewhere."""
    case = case_of(OP, {"x": (1, 1, 3, 4), "filter": (1, 1, 3, 4)}, "float32")
    weight, offset = np.zeros(12, np.float32), np.zeros((12, 2), np.float32)
    weight[0], offset[0, 0] = 1, place
    x, given_out = np.arange(1, 13, dtype=np.float32), np.ones(1, np.float32)
    inputs = inputs_of(case, x=x, filter=weight, offset=offset, out_grad=given_out)
    found = {name: array.astype(np.float32) for name, array in expect(case, inputs).values.items()}
    found["offset_grad"].reshape(-1)[0] = slope
    assert passes(case, inputs, **found) == is_right


def wrong_gradients(case: Case, inputs: Inputs, right: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What kernels have been seen to leave, by what they do wrong."""
    arrays, op = inputs.wide, find_op(OP)

    def reference(**changed: Any) -> dict[str, Any]:
        return op.reference({**arrays, **changed}, case.params)

    ones = np.ones_like(arrays["mask"])
    batch, outs = arrays["out_grad"].shape[:2]
    offset = right["offset_grad"]
    pairs = offset.reshape(batch, -1, 2, *offset.shape[2:])
    stepped = np.swapaxes(arrays["out_grad"].reshape(-1, 2, outs, *offset.shape[2:]), 1, 2)
    untransposed = np.ascontiguousarray(stepped).reshape(arrays["out_grad"].shape)
    return {
        "mask ignored in x": {"x_grad": reference(mask=ones)["x_grad"]},
        "mask ignored in offset": {"offset_grad": reference(mask=ones)["offset_grad"]},
        "mask ignored in filter": {"filter_grad": reference(mask=ones)["filter_grad"]},
        "mask's own gradient masked": {"mask_grad": right["mask_grad"] * arrays["mask"]},
        "offset pairs swapped": {"offset_grad": pairs[:, :, ::-1].reshape(offset.shape)},
        "offset planar": {"offset_grad": np.swapaxes(pairs, 1, 2).reshape(offset.shape)},
        "offset's sign": {"offset_grad": -offset},
        "im2col_step's layout": reference(out_grad=untransposed),
        "last image only": {"filter_grad": _of_image(case, arrays, -1)},
        "first image only": {"filter_grad": _of_image(case, arrays, 0)},
        "filter sides swapped": {
            "filter_grad": np.swapaxes(right["filter_grad"], 2, 3).reshape(right["filter_grad"].shape)
        },
        "nothing moved": {"x_grad": reference(offset=np.zeros_like(offset))["x_grad"]},
        "nearest pixel": {"x_grad": reference(offset=np.rint(arrays["offset"]))["x_grad"]},
        "transposed filter": {"x_grad": reference(filter=arrays["filter"][..., ::-1, ::-1])["x_grad"]},
    }


def _of_image(case: Case, arrays: Any, image: int) -> Any:
    one = {**arrays, "out_grad": np.zeros_like(arrays["out_grad"])}
    one["out_grad"][image] = arrays["out_grad"][image]
    return find_op(OP).reference(one, case.params)["filter_grad"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_mistakes_are_caught(dtype: str) -> None:
    """Fourteen wrong gradients do not pass, in any dtype."""
    case = convolution(OP, dtype, (4, 4, 5, 6), (6, 4, 2, 3), mask=True, im2col_step=2, deformable_groups=2)
    inputs = scattered(case, 5)
    right = dict(expect(case, inputs).values)
    assert passes(case, inputs, **right)
    survivors = [
        name
        for name, wrong in wrong_gradients(case, inputs, right).items()
        if passes(case, inputs, **{**right, **wrong})
    ]
    assert not survivors


@pytest.mark.parametrize("name", ["x_grad", "filter_grad"])
def test_tf32_is_caught(name: str) -> None:
    """Operands cut to ten bits show in the gradients of x and of the filter, on an image that is not small too."""
    case = convolution(OP, "float32", (1, 16, 48, 64), (8, 16, 3, 3), mask=True, paddings=1)
    inputs = scattered(case, 2)
    cut = {
        key: (value.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        for key, value in inputs.values.items()
        if key in ("filter", "out_grad")
    }
    right = dict(expect(case, inputs).values)
    wrong = find_op(OP).reference({**inputs.wide, **cut}, case.params)
    assert passes(case, inputs, **right)
    assert not passes(case, inputs, **{**right, name: wrong[name]})


@pytest.mark.parametrize("implementation", ours(OP))
def test_rounding_to_a_whole_coordinate_is_forgiven(implementation: str) -> None:
    """40 + 0.99999994 is 41 in float32: the slope on its right is as good as that on its left."""
    case = convolution(OP, "float32", (1, 2, 48, 7), (2, 2, 1, 1), mask=False)
    inputs = inputs_of(case)
    offset = np.zeros(inputs.values["offset"].shape, np.float32)
    offset[:, 0] = np.nextafter(np.float32(1), np.float32(0))
    assert complaint(case, inputs_of(case, **{**inputs.values, "offset": offset}), implementation) == ""
