"""conv_data_grad: one to three axes, groups, strides, dilations, both layouts, with and without an addend."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import Case
from opgauge.harness.measure.cpu import CpuTimer
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.verify import expect
from opgauge.ops import FLOATS, ParameterError, ShapeError, find_kernel, find_op
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of, ours, outputs_of, passes
from tests.ops.conv_data_grad.scattering import MISTAKES, scatter

OP = "conv_data_grad"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution with its shapes channels first; `case` moves them where the data format says so."""

    x: Shape
    filter: Shape
    add: bool = False
    params: dict[str, Any] = field(default_factory=dict)

    def case(self, dtype: str, layout: str = "channels_first") -> Case:
        """The case in a dtype and a layout."""
        shapes = {"x_like": self.x, "filter": self.filter}
        if layout == "channels_last":
            shapes = {name: (shape[0], *shape[2:], shape[1]) for name, shape in shapes.items()}
        if self.add:
            shapes["add_to_output"] = shapes["x_like"]
        return case_of(OP, shapes, dtype, data_format=layout, **self.params)


FIXED = (
    Convolution((2, 3, 9), (4, 3, 3), params={"strides": 2, "padding_before": 1, "dilation_rate": 2}),
    Convolution(
        (2, 4, 7, 8), (6, 4, 2, 3), params={"strides": (2, 1), "padding_before": (1, 2), "dilation_rate": (3, 2)}
    ),
    Convolution(
        (2, 4, 6, 5), (6, 2, 3, 2), add=True, params={"strides": (1, 2), "padding_before": (2, 1), "groups": 2}
    ),
    Convolution((2, 3, 5, 6), (4, 3, 1, 1), add=True, params={"strides": 2}),
    Convolution((3, 5, 3, 4), (4, 5, 1, 1), add=True),
    Convolution((3, 5, 3, 4), (4, 5, 1, 1)),
    Convolution((3, 6, 3, 4), (4, 3, 1, 1), params={"groups": 2}),
    Convolution((40, 16, 1, 1), (24, 16, 1, 1), add=True),
    Convolution(
        (1, 4, 4, 3, 5), (2, 2, 2, 1, 3), add=True, params={"strides": (1, 2, 2), "padding_before": 1, "groups": 2}
    ),
)
LAYOUTS = ("channels_first", "channels_last")
ONE_CHANNEL_CUT = Convolution(
    (2, 1, 6, 9, 1), (1, 1, 2, 3, 3), params={"strides": (3, 1, 2), "padding_before": (0, 0, 1)}
)
"""A channel, whose layouts are the same, by a filter of which some taps meet no pixel."""
ONE_PIXEL_MISSED = Convolution((1, 2, 1), (1, 2, 1), params={"strides": 3, "padding_before": 1})
"""A pixel of two channels, whose layouts are the same, that no tap meets."""


def complaints(made: Convolution, layout: str) -> set[str]:
    """What the checker says of the optimized one, in this run's dtypes, with an addend or not; "" if it is right."""
    cases = (
        replace(made, add=add).case(dtype, layout)
        for add, dtype in product((False, True), drawn_of("conv_data_grad", FLOATS))
    )
    return {complaint(case, inputs_of(case), "optimized") for case in cases}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made", FIXED)
def test_reference_sends_every_product_to_its_place(made: Convolution, layout: str) -> None:
    """The reference, which goes tap by tap, agrees with taking every product by itself."""
    case = made.case("float64", layout)
    inputs = inputs_of(case)
    assert np.allclose(expect(case, inputs).values["dx"], scatter(case, inputs.wide), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("made", FIXED)
def test_reference_is_that_of_torch(made: Convolution) -> None:
    """torch.nn.grad's gradient of the input in float64, and then the addend."""
    import torch

    case = made.case("float64")
    inputs = inputs_of(case)
    rank, p = len(made.x) - 2, case.params
    function = getattr(torch.nn.grad, f"conv{rank}d_input")
    dy, weight = (torch.from_numpy(inputs.wide[name]) for name in ("dy", "filter"))
    dx = function(made.x, weight, dy, p.strides, p.padding_before, p.dilation_rate, p.groups).numpy()
    expected = dx + inputs.wide["add_to_output"] if made.add else dx
    assert np.allclose(expect(case, inputs).values["dx"], expected, rtol=1e-12, atol=1e-12)


def test_it_is_the_transpose_of_the_convolution() -> None:
    """For all x and dy, <conv(x), dy> is <x, dx>: checked by torch's convolution in float64."""
    import torch

    for made in FIXED:
        case = made.case("float64")
        inputs = inputs_of(case)
        rank, p = len(made.x) - 2, case.params
        x = np.random.default_rng(3).standard_normal(made.x)
        function = getattr(torch.nn.functional, f"conv{rank}d")
        weight = torch.from_numpy(inputs.wide["filter"])
        y = function(torch.from_numpy(x), weight, None, p.strides, p.padding_before, p.dilation_rate, p.groups).numpy()
        dx = expect(case, inputs).values["dx"] - (inputs.wide["add_to_output"] if made.add else 0)
        assert np.sum(y * inputs.wide["dy"]) == pytest.approx(np.sum(x * dx), rel=1e-11)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    """One to three axes of up to nine pixels, in every combination of the parameters."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def each(low: int, high: int) -> Shape:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    pointwise = draw(st.integers(0, 3)) == 0
    kernel = (1,) * rank if pointwise else each(1, 3)
    params = {
        "strides": (1,) * rank if pointwise else each(1, 3),
        "padding_before": (0,) * rank if pointwise else each(0, 2),
        "dilation_rate": each(1, 2),
    }
    least = [
        max(d * (k - 1) + 1 - 2 * p, 1)
        for d, k, p in zip(params["dilation_rate"], kernel, params["padding_before"], strict=True)
    ]
    size = [low + extra for low, extra in zip(least, each(0, 4), strict=True)]
    batch, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    outs = groups * draw(st.integers(1, 3))
    chosen: dict[str, Any] = {**params, "groups": groups}
    return Convolution((batch, per_group * groups, *size), (outs, per_group, *kernel), draw(st.booleans()), chosen)


@given(convolutions(), st.sampled_from(drawn_of("conv_data_grad", FLOATS)), st.sampled_from(LAYOUTS))
@example(ONE_CHANNEL_CUT, "float32", "channels_last")
@example(ONE_PIXEL_MISSED, "float32", "channels_first")
@settings(max_examples=80)
def test_random_convolutions(made: Convolution, dtype: str, layout: str) -> None:
    """Every implementation of ours is within the bound, whatever the rank, sizes, groups, layout and dtype."""
    case = made.case(dtype, layout)
    inputs = inputs_of(case)
    for implementation in ours(OP):
        assert complaint(case, inputs, implementation) == ""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [3, 7, 8, 9, 15, 16, 17, 31])
def test_rows_end_where_they_end(width: int, dtype: str) -> None:
    """However wide rows are and however many channels there are, all of dx is written and nothing behind it."""
    case = Convolution((2, 17, 5, width), (6, 17, 3, 3), params={"padding_before": 1}).case(dtype)
    inputs = inputs_of(case)
    attempt = Attempt(case, find_kernel(OP, "optimized", "cpu", dtype), inputs.values, CpuTimer())
    shape, item = case.resolved.outputs["dx"].shape, attempt.buffers.out["dx"].dtype
    room = np.full(prod(shape) + 64, np.nan, item)
    dx = attempt.buffers.out["dx"] = room[:-64].reshape(shape)
    attempt.call(attempt.bind(), 0)
    assert np.isnan(room[-64:].astype(np.float64)).all()
    assert passes(case, inputs, dx=dx)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_no_tap_reaches(dtype: str, add: bool) -> None:
    """Rows and planes of dx that see no pixel of dy are zero, or the addend, whatever lay there before."""
    for x_like, kernel in (((1, 5, 8, 40), (2, 2)), ((1, 5, 7, 3, 33), (2, 1, 2))):
        params = {"dilation_rate": tuple(5 if size == 2 else 1 for size in kernel)}
        for layout in LAYOUTS:
            case = Convolution(x_like, (4, 5, *kernel), add=add, params=params).case(dtype, layout)
            assert complaint(case, inputs_of(case), "optimized") == ""


@pytest.mark.parametrize("wrong", MISTAKES)
def test_mistakes_are_caught(wrong: str) -> None:
    """No mistake of the scattering passes where it changes anything, and each does somewhere."""
    changed = 0
    for made in FIXED:
        for layout in LAYOUTS:
            for dtype in ("float16", "float32"):
                case = made.case(dtype, layout)
                inputs = inputs_of(case)
                right, got = scatter(case, inputs.wide), scatter(case, inputs.wide, wrong)
                assert passes(case, inputs, dx=right)
                if not np.allclose(right, got, rtol=1e-12, atol=1e-12):
                    changed += 1
                    assert not passes(case, inputs, dx=got), (made, layout, dtype)
    assert changed


@pytest.mark.parametrize("outs", [4, 2048])
def test_tf32_is_caught(outs: int) -> None:
    """A product of operands cut to ten bits does not pass for float32, not even in a sum of 2048 terms."""
    case = Convolution((1, 16, 6, 7), (outs, 16, 1, 1), add=True).case("float32")
    inputs = inputs_of(case)
    cut = {
        name: (inputs.values[name].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        for name in ("dy", "filter")
    }
    op = find_op(OP)
    assert passes(case, inputs, **op.reference(inputs.wide, case.params))
    assert not passes(case, inputs, **op.reference({**inputs.wide, **cut}, case.params))


@pytest.mark.parametrize("implementation", ours(OP))
def test_values_of_x_like_do_not_matter(implementation: str) -> None:
    """x_like gives a shape: NaN in it reaches nothing."""
    case = FIXED[1].case("float32")
    inputs = inputs_of(case)
    blank = inputs_of(case, **{**inputs.values, "x_like": np.full(case.shapes["x_like"], np.nan)})
    expected, found = outputs_of(case, inputs, implementation), outputs_of(case, blank, implementation)
    assert np.array_equal(expected["dx"], found["dx"])


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_reaches_what_it_belongs_to(implementation: str, layout: str) -> None:
    """A NaN in dy comes through where its taps fall, one in the addend where it stands, and nowhere else."""
    case = FIXED[2].case("float32", layout)
    inputs = inputs_of(case)
    changed = {name: value.copy() for name, value in inputs.values.items()}
    changed["dy"].reshape(-1)[3] = np.nan
    changed["add_to_output"].reshape(-1)[-1] = np.nan
    assert complaint(case, inputs_of(case, **changed), implementation) == ""


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [(1, 1), (2, 3)])
def test_no_images(implementation: str, layout: str, kernel: Shape) -> None:
    """A batch may be empty."""
    case = Convolution((0, 2, 4, 5), (3, 2, *kernel), add=True).case("float32", layout)
    assert complaint(case, inputs_of(case), implementation) == ""


X, FILTER = (2, 4, 5, 5), (6, 4, 3, 3)


@pytest.mark.parametrize(
    ("shapes", "params", "message"),
    [
        ({"x_like": (2, 4), "filter": (6, 4)}, {}, "0 spatial axes; 1 to 3"),
        ({"x_like": (2, 4, 3, 3, 3, 3), "filter": (6, 4, 1, 1, 1, 1)}, {}, "4 spatial axes; 1 to 3"),
        ({"x_like": X, "filter": (6, 4, 3)}, {}, "filter .* rank 3, x_like has 4"),
        ({"x_like": X, "filter": (6, 3, 3, 3)}, {}, "3 channels per group; x_like has 4 in 1 groups"),
        ({"x_like": X, "filter": (5, 2, 3, 3)}, {"groups": 2}, "5 outputs, which 2 groups do not divide"),
        ({"x_like": X, "filter": FILTER}, {"data_format": "channels_last"}, "3 channels per group; x_like has 5"),
        ({"x_like": X, "filter": FILTER}, {"data_format": "NCHW"}, "Illegal value for data_format: 'NCHW'"),
        ({"x_like": X, "filter": FILTER}, {"strides": 0}, "strides 0 is below 1"),
        ({"x_like": X, "filter": FILTER}, {"strides": (1, 0)}, "strides .* is below 1"),
        ({"x_like": X, "filter": FILTER}, {"dilation_rate": 0}, "dilation_rate 0 is below 1"),
        ({"x_like": X, "filter": FILTER}, {"padding_before": -1}, "padding_before -1 is below 0"),
        ({"x_like": X, "filter": FILTER}, {"groups": 0}, "groups 0 is below 1"),
        ({"x_like": X, "filter": FILTER}, {"strides": (1, 1, 1)}, "strides .* 3 entries for 2 spatial axes"),
        ({"x_like": X, "filter": FILTER}, {"padding_before": (1,)}, "padding_before .* 1 entries for 2"),
        ({"x_like": X, "filter": FILTER}, {"dilation_rate": ()}, "dilation_rate .* 0 entries for 2"),
        ({"x_like": X, "filter": (6, 4, 6, 3)}, {}, "has no output"),
        ({"x_like": X, "filter": FILTER, "dy": (2, 6, 3, 4)}, {}, "dy is .* gives \\[2, 6, 3, 3\\]"),
        ({"x_like": X, "filter": FILTER, "add_to_output": (4, 5, 5)}, {}, "add_to_output is .* must agree"),
        ({"x_like": X, "filter": FILTER, "add_to_output": (2, 6, 3, 3)}, {}, "add_to_output is .* must agree"),
    ],
)
def test_what_is_refused(shapes: dict[str, Shape], params: dict[str, Any], message: str) -> None:
    """Ranks, channels, groups, layouts, signs, entries, sizes, dy and addends that do not fit."""
    op = find_op(OP)
    with pytest.raises((ShapeError, ParameterError), match=message):
        op.infer(shapes, "float32", op.params(**params))


def test_stride_leaves_the_size_open() -> None:
    """Sizes that a stride maps to the same dy are told apart by x_like."""
    op = find_op(OP)
    for length in (7, 8):
        found = op.infer({"x_like": (1, 1, length), "filter": (1, 1, 3)}, "float32", op.params(strides=2))
        assert found.inputs["dy"].shape == (1, 1, 3)
        assert found.outputs["dx"].shape == (1, 1, length)
