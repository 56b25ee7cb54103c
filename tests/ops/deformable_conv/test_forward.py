"""deformable_conv: where it samples, to the letter; its errors; every kernel on whatever is allowed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import ParameterError, ShapeError, find_op
from tests.ops.attempts import case_of, complaint, inputs_of, ours, outputs_of, passes
from tests.ops.deformable_conv.scalar import MISTAKES, NOWHERE, convolve
from tests.ops.deformable_conv.shapes import CASES, Drawn, convolutions, scattered

Shape = tuple[int, ...]
TINY = 2.0**-40


def scalar_output(case: Case, inputs: Inputs, wrong: str = "") -> Any:
    """What the scalar loop makes of a case, with a mistake or without."""
    return convolve(inputs.wide, case.params, case.resolved.outputs["out"].shape[2:], wrong)


def one_sample(h: float, w: float, dtype: str = "float64") -> tuple[Case, Inputs]:
    """A 3 x 4 image of the numbers from 1, sampled at (h, w) alone."""
    case = case_of("deformable_conv", {"x": (1, 1, 3, 4), "filter": (1, 1, 3, 4)}, dtype)
    image = np.arange(1.0, 13.0)
    weight = np.zeros(12)
    weight[0] = 1
    offset = np.zeros((12, 2))
    offset[0] = h, w
    return case, inputs_of(case, x=image, filter=weight, offset=offset)


@pytest.mark.parametrize("implementation", ours("deformable_conv"))
@pytest.mark.parametrize(
    ("h", "w", "expected"),
    [
        (0, 0, 1),
        (2, 3, 12),
        (0.5, 0, 3),
        (0, 2.25, 3.25),
        (1.5, 1.5, 8.5),
        (-1, 0, 0),
        (-1 + TINY, 0, TINY),
        (-0.25, 0, 0.75),
        (0, -0.25, 0.75),
        (-0.25, -0.25, 0.5625),
        (2.75, 3, 3),
        (2, 3.75, 3),
        (2.75, 3.75, 0.75),
        (3 - TINY * 4, 0, 9 * TINY * 4),
        (3, 0, 0),
        (0, 4, 0),
        (0, -1, 0),
        (-1.5, 1, 0),
        (1, 4.5, 0),
        (1e30, 1, 0),
        *[(bad, 1, 0) for bad in NOWHERE],
        *[(1, bad, 0) for bad in NOWHERE],
    ],
)
def test_boundary_rule(implementation: str, h: float, w: float, expected: float) -> None:
    """A sample counts strictly inside (-1, H) x (-1, W), with 0 for corners outside; no number, no sample."""
    case, inputs = one_sample(h, w)
    found = expect(case, inputs).values["out"]
    assert found.reshape(-1)[0] == pytest.approx(expected, rel=1e-12)
    assert scalar_output(case, inputs).reshape(-1)[0] == pytest.approx(expected, rel=1e-12)
    assert complaint(case, inputs, implementation) == ""


@pytest.mark.parametrize("number", range(len(CASES)))
def test_reference_is_the_scalar_loop(number: int) -> None:
    """The reference agrees with a loop over pixels and taps to fourteen digits."""
    case = CASES[number]("float64")
    inputs = scattered(case, number)
    expected = scalar_output(case, inputs)
    assert np.allclose(expect(case, inputs).values["out"], expected, rtol=1e-12, atol=1e-13)


@given(convolutions())
@settings(max_examples=40)
def test_random_convolutions(drawn: Drawn) -> None:
    """Every implementation of ours is within the bound, whatever the sizes, groups, steps and offsets."""
    case = drawn.case("deformable_conv")
    inputs = scattered(case, drawn.seed)
    for implementation in ours("deformable_conv"):
        assert complaint(case, inputs, implementation) == ""


@pytest.mark.parametrize("wrong", MISTAKES)
def test_mistakes_are_caught(wrong: str) -> None:
    """No mistake of the scalar loop passes where it changes anything, and each does somewhere."""
    changed = 0
    for number, make in enumerate(CASES):
        for dtype in ("float16", "float32"):
            case = make(dtype)
            inputs = scattered(case, number)
            if wrong == "kernel sides swapped" and case.shapes["filter"][2] == case.shapes["filter"][3]:
                continue
            right, got = scalar_output(case, inputs), scalar_output(case, inputs, wrong)
            assert passes(case, inputs, out=right)
            if not np.allclose(right, got, rtol=1e-12, atol=1e-12):
                changed += 1
                assert not passes(case, inputs, out=got), (number, dtype)
    assert changed


def truncated(array: Any) -> Any:
    """Float32 numbers cut to the ten bits of TF32."""
    return (array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("channels", [3, 512])
def test_tf32_is_caught(channels: int) -> None:
    """A product of operands cut to ten bits does not pass for float32, not even in a sum of 4608 terms."""
    case = case_of("deformable_conv", {"x": (1, channels, 6, 5), "filter": (16, channels, 3, 3)}, "float32", paddings=1)
    inputs = scattered(case, 1)
    cut = {**inputs.wide, "filter": truncated(inputs.values["filter"]), "x": truncated(inputs.values["x"])}
    assert passes(case, inputs, **find_op("deformable_conv").reference(inputs.wide, case.params))
    assert not passes(case, inputs, **find_op("deformable_conv").reference(cut, case.params))


@pytest.mark.parametrize("implementation", ours("deformable_conv"))
@pytest.mark.parametrize("op", ["deformable_conv", "deformable_conv_grad"])
def test_step_changes_nothing(op: str, implementation: str) -> None:
    """Whatever im2col_step is, the outputs are the same bits."""
    shapes = {"x": (4, 4, 6, 5), "filter": (6, 2, 3, 2), "mask": (4, 12, 4, 4)}
    found = []
    for step in (1, 2, 4, 64):
        case = case_of(op, shapes, "float32", groups=2, deformable_groups=2, im2col_step=step)
        inputs = inputs_of(case, **inputs_of(case_of(op, shapes, "float32", groups=2, deformable_groups=2)).values)
        found.append(outputs_of(case, inputs, implementation))
    for other in found[1:]:
        assert all(np.array_equal(found[0][name], other[name]) for name in other)


@pytest.mark.parametrize("implementation", ours("deformable_conv"))
@pytest.mark.parametrize("op", ["deformable_conv", "deformable_conv_grad"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_unread_pixels_do_not_matter(op: str, implementation: str, number: float) -> None:
    """A pixel that is no number reaches nothing where no sample reads it."""
    case = case_of(op, {"x": (1, 2, 4, 5), "filter": (2, 2, 2, 2), "mask": (1, 4, 3, 4)}, "float32")
    inputs = inputs_of(case)
    x, offset = inputs.values["x"].copy(), np.zeros_like(inputs.values["offset"])
    x[..., :2, :2] = number
    offset[..., ::2, :, :] = np.where(np.arange(3)[:, None] == 1, 1.25, 100)
    assert complaint(case, inputs_of(case, **{**inputs.values, "x": x, "offset": offset}), implementation) == ""


def test_output_is_that_of_grid_sample() -> None:
    """Tap by tap, torch's bilinear sampling with zeros outside gives the same sum in float64."""
    from tests.ops.deformable_conv.sampled import by_grid_sample

    for number, make in enumerate(CASES):
        case = make("float64")
        inputs = scattered(case, number)
        expected = by_grid_sample(case, inputs.wide)["out"]
        assert np.allclose(expect(case, inputs).values["out"], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_output_is_that_of_torchvision() -> None:
    """torchvision's own operator gives the same in float64."""
    import torch
    from torchvision.ops import deform_conv2d

    for number, make in enumerate(CASES):
        case = make("float64")
        inputs = scattered(case, number)
        x, offset, weight = (torch.from_numpy(inputs.wide[name]) for name in ("x", "offset", "filter"))
        mask = torch.from_numpy(inputs.wide["mask"]) if "mask" in inputs.wide else None
        p = case.params
        options = {"stride": p.strides, "padding": p.paddings, "dilation": p.dilations}
        expected = deform_conv2d(x, offset, weight, None, mask=mask, **options).numpy()
        assert np.allclose(expect(case, inputs).values["out"], expected, rtol=1e-11, atol=1e-12)


X, FILTER = (2, 4, 5, 5), (6, 4, 3, 3)


@pytest.mark.parametrize(
    ("shapes", "params", "message"),
    [
        ({"x": (4, 5, 5), "filter": FILTER}, {}, "must both have rank 4"),
        ({"x": X, "filter": (6, 4, 3)}, {}, "must both have rank 4"),
        ({"x": X, "filter": FILTER}, {"strides": (1, 1, 1)}, "strides .* 3 entries"),
        ({"x": X, "filter": FILTER}, {"paddings": (1,)}, "paddings .* 1 entries"),
        ({"x": X, "filter": FILTER}, {"dilations": (1, 1, 1)}, "dilations .* 3 entries"),
        ({"x": X, "filter": FILTER}, {"strides": 0}, "strides 0 is below 1"),
        ({"x": X, "filter": FILTER}, {"strides": (1, -1)}, "strides .* is below 1"),
        ({"x": X, "filter": FILTER}, {"dilations": 0}, "dilations 0 is below 1"),
        ({"x": X, "filter": FILTER}, {"paddings": -1}, "paddings -1 is below 0"),
        ({"x": X, "filter": FILTER}, {"groups": 0}, "groups 0 is below 1"),
        ({"x": X, "filter": FILTER}, {"deformable_groups": 0}, "deformable_groups 0 is below 1"),
        ({"x": X, "filter": FILTER}, {"im2col_step": 0}, "im2col_step 0 is below 1"),
        ({"x": X, "filter": (6, 3, 3, 3)}, {}, "3 channels per group; x has 4 in 1 groups"),
        ({"x": X, "filter": (5, 2, 3, 3)}, {"groups": 2}, "5 outputs, which 2 groups do not divide"),
        ({"x": X, "filter": FILTER}, {"deformable_groups": 3}, "4 channels, which 3 deformable groups do not"),
        ({"x": (4, 4, 5, 5), "filter": FILTER}, {"im2col_step": 3}, "3 does not divide the batch of 4"),
        ({"x": X, "filter": (6, 4, 6, 3)}, {}, "has no output"),
        ({"x": X, "filter": FILTER, "offset": (2, 18, 3, 4)}, {}, "offset is .* must be"),
        ({"x": X, "filter": FILTER, "offset": (2, 27, 3, 3)}, {}, "offset is .* must be"),
        ({"x": X, "filter": FILTER, "mask": (2, 9, 4, 3)}, {}, "mask is .* must be"),
        ({"x": X, "filter": FILTER, "mask": (2, 18, 3, 3)}, {}, "mask is .* must be"),
    ],
)
@pytest.mark.parametrize("op_name", ["deformable_conv", "deformable_conv_grad"])
def test_what_is_refused(op_name: str, shapes: dict[str, Shape], params: dict[str, Any], message: str) -> None:
    """Ranks, entries, signs, channels, groups, steps, sizes, offsets and masks that do not fit."""
    op = find_op(op_name)
    with pytest.raises((ShapeError, ParameterError), match=message):
        op.infer(shapes, "float32", op.params(**params))


def test_groups_need_not_divide_the_output() -> None:
    """Deformable groups divide the channels of x, those of the output whether or no."""
    op = find_op("deformable_conv")
    shapes = {"x": (1, 6, 4, 4), "filter": (5, 6, 3, 3)}
    assert op.infer(shapes, "float32", op.params(deformable_groups=3)).outputs["out"].shape == (1, 5, 2, 2)


def test_a_large_step_takes_any_batch() -> None:
    """im2col_step above the batch takes it whole."""
    op = find_op("deformable_conv")
    assert op.infer({"x": X, "filter": FILTER}, "float32", op.params(im2col_step=64)).outputs


@pytest.mark.parametrize("shape", [(0, 2, 4, 4), (1, 2, 4, 4)])
def test_no_images(shape: Shape) -> None:
    """A batch may be empty."""
    for op in ("deformable_conv", "deformable_conv_grad"):
        case = case_of(op, {"x": shape, "filter": (3, 2, 2, 2)}, "float32")
        for implementation in ours(op):
            assert complaint(case, inputs_of(case), implementation) == ""


def test_drawn_cases_are_varied() -> None:
    """The fixed cases cover a mask and none, groups, deformable groups, steps and uneven axes."""
    cases = [make("float32") for make in CASES]
    assert {"mask" in case.shapes for case in cases} == {True, False}
    assert any(case.params.groups > 1 for case in cases)
    assert any(case.params.deformable_groups > 1 for case in cases)
    assert any(case.params.im2col_step > 1 for case in cases)
    assert any(case.params.strides != case.params.paddings for case in cases)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, int]:
    """A batch and a step that it allows."""
    batch = draw(st.integers(1, 6))
    return batch, draw(st.sampled_from([step for step in range(1, 9) if step >= batch or batch % step == 0]))


@given(batches())
@settings(max_examples=20)
def test_steps_that_are_allowed(pair: tuple[int, int]) -> None:
    """Divisors of the batch, and anything from the batch on."""
    batch, step = pair
    op = find_op("deformable_conv")
    found = op.infer({"x": (batch, 4, 5, 5), "filter": FILTER}, "float32", op.params(im2col_step=step))
    assert found.outputs["out"].shape == (batch, 6, 3, 3)
