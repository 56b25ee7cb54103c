"""normalization: statistics to the partial, stable far from zero, in every layout, with and without an addend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import Case
from opgauge.harness.worker.inputs import Inputs, with_derived
from opgauge.harness.worker.verify import expect
from opgauge.ops import FLOATS, AxisError, OpError, ParameterError, ShapeError, find_op
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of, ours, outputs_of, passes

OP = "normalization"
Shape = tuple[int, ...]
Outputs = dict[str, Any]


def case(x: Shape, dtype: str, *, moving: bool = False, add: bool = False, **params: Any) -> Case:
    """A case, the shapes of statistics and addend worked out."""
    channels = (x[params.get("axis", 1)],)
    shapes = {"x": x}
    if moving:
        shapes |= {"moving_mean": channels, "moving_variance": channels}
    if add:
        shapes |= {"add_to_output": x}
    return case_of(OP, shapes, dtype, **params)


@pytest.mark.parametrize(("shape", "axis"), [((4, 3), 1), ((3, 4, 5), 0), ((3, 4, 5), 2), ((2, 3, 2, 2, 2), 1)])
def test_reference_is_the_definition(shape: Shape, axis: int) -> None:
    """Mean, biased variance, unbiased running variance, scale, shift and addend, channel by channel."""
    made = case(shape, "float64", moving=True, add=True, axis=axis, epsilon=0.01, momentum=0.8)
    arrays = inputs_of(made).wide
    found = expect(made, inputs_of(made)).values
    for channel in range(shape[axis]):
        place = (slice(None),) * axis + (channel,)
        values = arrays["x"][place].reshape(-1).tolist()
        n = len(values)
        mean = fsum(values) / n
        variance = fsum((value - mean) ** 2 for value in values) / n
        inverse = 1 / sqrt(variance + 0.01)
        gamma, beta = float(arrays["gamma"][channel]), float(arrays["beta"][channel])
        y = [(value - mean) * inverse * gamma + beta for value in values]
        expected = np.array(y) + arrays["add_to_output"][place].reshape(-1)
        assert found["mean"][channel] == pytest.approx(mean, rel=1e-13, abs=1e-14)
        assert found["inv_variance"][channel] == pytest.approx(inverse, rel=1e-13)
        assert np.allclose(found["y"][place].reshape(-1), expected, rtol=1e-12, atol=1e-13)
        kept = 0.8 * arrays["moving_mean"][channel] + 0.2 * mean
        assert found["new_moving_mean"][channel] == pytest.approx(kept, rel=1e-13, abs=1e-14)
        kept = 0.8 * arrays["moving_variance"][channel] + 0.2 * variance * n / (n - 1)
        assert found["new_moving_variance"][channel] == pytest.approx(kept, rel=1e-13)


@pytest.mark.parametrize("training", [True, False])
def test_reference_is_that_of_torch(training: bool) -> None:
    """torch's batch_norm in float64, whose momentum is the share that is new, gives the same y and statistics."""
    import torch

    made = case((5, 3, 4, 2), "float64", moving=True, training=training, epsilon=1e-3, momentum=0.7)
    inputs = inputs_of(made)
    x, gamma, beta, mean, variance = (
        torch.from_numpy(inputs.wide[name].copy()) for name in ("x", "gamma", "beta", "moving_mean", "moving_variance")
    )
    y = torch.nn.functional.batch_norm(x, mean, variance, gamma, beta, training=training, momentum=0.3, eps=1e-3)
    found = expect(made, inputs).values
    assert np.allclose(found["y"], y.numpy(), rtol=1e-13, atol=1e-13)
    if training:
        assert np.allclose(found["new_moving_mean"], mean.numpy(), rtol=1e-13, atol=1e-14)
        assert np.allclose(found["new_moving_variance"], variance.numpy(), rtol=1e-13)


@dataclass(frozen=True)
class Drawn:
    """A normalization that hypothesis made."""

    shape: Shape
    dtype: str
    moving: bool
    add: bool
    params: dict[str, Any]


@st.composite
def normalizations(draw: st.DrawFn) -> Drawn:
    """Two to five axes of up to nine entries, any of them the channels."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=5)))
    axis = draw(st.integers(0, len(shape) - 1))
    alone = np.prod(shape) == shape[axis]
    training = draw(st.booleans()) and not alone
    params = {
        "axis": axis,
        "training": training,
        "epsilon": draw(st.sampled_from([1e-5, 1e-3, 0.5])),
        "momentum": draw(st.sampled_from([0.0, 0.1, 0.9, 1.0])),
    }
    moving = not training or draw(st.booleans())
    return Drawn(shape, draw(st.sampled_from(drawn_of("normalization", FLOATS))), moving, draw(st.booleans()), params)


@given(normalizations())
@settings(max_examples=80)
def test_random_normalizations(drawn: Drawn) -> None:
    """Every implementation of ours is within the bound, whatever the rank, axis, dtype and statistics."""
    made = case(drawn.shape, drawn.dtype, moving=drawn.moving, add=drawn.add, **drawn.params)
    inputs = inputs_of(made)
    for implementation in ours(OP):
        assert complaint(made, inputs, implementation) == ""


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize(("dtype", "mean"), [("float32", 1e3), ("float32", -3e4), ("float64", 1e8), ("bfloat16", 64)])
@pytest.mark.parametrize("axis", [1, 2])
def test_far_from_zero(implementation: str, dtype: str, mean: float, axis: int) -> None:
    """Where the mean is a thousand deviations and more from zero, the variance keeps its accuracy."""
    made = case((4, 3, 512) if axis == 1 else (4, 512, 3), dtype, axis=axis)
    x = mean + np.random.default_rng(1).standard_normal(made.shapes["x"])
    assert complaint(made, inputs_of(made, x=x), implementation) == ""


def test_difference_of_squares_is_caught() -> None:
    """E[x^2] - E[x]^2 in float32 does not pass at mean 1000, deviation 1; in float64 it does."""
    made = case((4, 3, 1024), "float32")
    inputs = inputs_of(made, x=1000 + np.random.default_rng(2).standard_normal((4, 3, 1024)))
    for dtype, right in ((np.float32, False), (np.float64, True)):
        x = inputs.values["x"].astype(dtype)
        mean = x.mean(axis=(0, 2))
        inverse = 1 / np.sqrt(np.square(x).mean(axis=(0, 2)) - mean * mean + dtype(1e-5))
        y = (x - mean[:, None]) * (inverse * inputs.values["gamma"])[:, None] + inputs.values["beta"][:, None]
        assert passes(made, inputs, y=y, mean=mean, inv_variance=inverse) == right


@pytest.mark.parametrize("implementation", ours(OP))
def test_variance_zero(implementation: str) -> None:
    """Equal values leave beta and the addend, and 1 / sqrt(epsilon), by way of no division by zero."""
    made = case((3, 2, 4), "float32", add=True, epsilon=1e-4)
    inputs = inputs_of(made, x=np.full((3, 2, 4), 2.5))
    assert complaint(made, inputs, implementation) == ""
    found = outputs_of(made, inputs, implementation)
    assert np.allclose(found["inv_variance"], 100, rtol=1e-6)


@pytest.mark.parametrize("implementation", ours(OP))
def test_nan_stays_in_its_channel(implementation: str) -> None:
    """A value that is no number makes its own channel none, and no other."""
    made = case((2, 3, 4), "float32", add=True)
    inputs = inputs_of(made)
    x = inputs.values["x"].copy()
    x[1, 1, 2] = np.nan
    inputs = inputs_of(made, **{**inputs.values, "x": x})
    assert complaint(made, inputs, implementation) == ""
    found = outputs_of(made, inputs, implementation)
    assert np.isnan(found["mean"]).tolist() == [False, True, False]
    assert np.isnan(found["y"]).any(axis=(0, 2)).tolist() == [False, True, False]


@pytest.mark.parametrize("implementation", ours(OP))
@pytest.mark.parametrize("training", [True, False])
def test_no_channels(implementation: str, training: bool) -> None:
    """There may be no channels at all."""
    made = case((3, 0, 5), "float32", moving=True, training=training)
    assert complaint(made, inputs_of(made), implementation) == ""


@pytest.mark.parametrize("implementation", ours(OP))
def test_layouts_agree(implementation: str) -> None:
    """Channels last gives what channels first gives, transposed."""
    first = case((3, 5, 4, 7), "float64", add=True)
    last = case((3, 4, 7, 5), "float64", add=True, axis=3)
    values = inputs_of(first).values
    moved = {
        name: np.moveaxis(value, 1, -1) if name in ("x", "add_to_output") else value for name, value in values.items()
    }
    one = outputs_of(first, inputs_of(first, **values), implementation)
    two = outputs_of(last, inputs_of(last, **moved), implementation)
    assert np.allclose(np.moveaxis(one["y"], 1, -1), two["y"], rtol=1e-13, atol=1e-13)
    assert np.allclose(one["inv_variance"], two["inv_variance"], rtol=1e-13)


@pytest.mark.parametrize(
    ("shapes", "params", "error", "message"),
    [
        ({"x": (4,)}, {}, ShapeError, "rank 1; normalization needs at least 2"),
        ({"x": (4, 3)}, {"axis": 2}, AxisError, "axis 2 is out of range for rank 2"),
        ({"x": (4, 3)}, {"axis": -3}, AxisError, "axis -3 is out of range for rank 2"),
        ({"x": (4, 3), "moving_mean": (3,)}, {}, ShapeError, "only moving_mean is given"),
        ({"x": (4, 3), "moving_variance": (3,)}, {}, ShapeError, "only moving_variance is given"),
        ({"x": (4, 3)}, {"training": False}, ShapeError, "Must have moving mean and moving variance"),
        ({"x": (4, 3), "gamma": (4,)}, {}, ShapeError, "gamma is .* each of 3 channels"),
        ({"x": (4, 3), "beta": (1, 3)}, {}, ShapeError, "beta is .* each of 3 channels"),
        ({"x": (4, 3), "moving_mean": (4,), "moving_variance": (3,)}, {}, ShapeError, "moving_mean is"),
        ({"x": (4, 3), "add_to_output": (3,)}, {}, ShapeError, "add_to_output is .* must agree"),
        ({"x": (4, 3), "add_to_output": (3, 4)}, {}, ShapeError, "add_to_output is .* must agree"),
        ({"x": (1, 3)}, {}, ShapeError, "one value per channel"),
        ({"x": (0, 3)}, {}, ShapeError, "no value per channel"),
        ({"x": (4, 3)}, {"epsilon": -1e-5}, ParameterError, "epsilon"),
        *(({"x": (4, 3)}, {"epsilon": float(bad)}, ParameterError, "epsilon") for bad in ("nan", "inf")),
        ({"x": (4, 3)}, {"momentum": 1.5}, ParameterError, "momentum"),
        ({"x": (4, 3)}, {"momentum": -0.1}, ParameterError, "momentum"),
    ],
)
def test_what_is_refused(shapes: dict[str, Shape], params: dict[str, Any], error: type[OpError], message: str) -> None:
    """Ranks, axes, half of the statistics, none in inference, other shapes, one value, and bad numbers."""
    op = find_op(OP)
    with pytest.raises(error, match=message):
        op.infer(shapes, "float32", op.params(**params))


def test_statistics_are_wide() -> None:
    """gamma, beta and all statistics of 16-bit x are float32; of float64 x, float64."""
    for dtype, wide in (("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64",) * 2):
        resolved = case((4, 3), dtype, moving=True).resolved
        specs = {**resolved.inputs, **resolved.outputs}
        assert {specs.pop(name).dtype for name in ("x", "y")} == {dtype}
        assert {spec.dtype for spec in specs.values()} == {wide}


def spread(statistic: Any) -> Any:
    """One value for each channel of (N, C, L)."""
    return np.asarray(statistic)[:, None]


@dataclass(frozen=True)
class Known:
    """What a wrong kernel has to hand: inputs, right outputs, parameters, and the biased variance."""

    arrays: Any
    right: Outputs
    params: Any
    variance: Any
    n: int

    def normal(self, mean: Any, inverse: Any, **changed: Any) -> Outputs:
        """y by these statistics."""
        arrays = {**self.arrays, **changed}
        y = (arrays["x"] - spread(mean)) * spread(inverse * arrays["gamma"]) + spread(arrays["beta"])
        return {"y": y + arrays["add_to_output"]}


def _running(known: Known, momentum: float, mean: Any, variance: Any) -> Outputs:
    new = 1 - momentum
    return {
        "new_moving_mean": momentum * known.arrays["moving_mean"] + new * mean,
        "new_moving_variance": momentum * known.arrays["moving_variance"] + new * variance,
    }


MISTAKES: dict[str, Callable[[Known], Outputs]] = {
    "unbiased variance in y": lambda k: k.normal(
        k.right["mean"], 1 / np.sqrt(k.variance * k.n / (k.n - 1) + k.params.epsilon)
    ),
    "biased running variance": lambda k: {
        "new_moving_variance": _running(k, k.params.momentum, k.right["mean"], k.variance)["new_moving_variance"]
    },
    "momentum swapped": lambda k: _running(k, 1 - k.params.momentum, k.right["mean"], k.variance * k.n / (k.n - 1)),
    "running statistics unchanged": lambda k: _running(k, 1, 0, 0),
    "running statistics in training": lambda k: k.normal(
        k.arrays["moving_mean"], 1 / np.sqrt(k.arrays["moving_variance"] + k.params.epsilon)
    ),
    "epsilon left out": lambda k: k.normal(k.right["mean"], 1 / np.sqrt(k.variance)),
    "epsilon outside the root": lambda k: k.normal(k.right["mean"], 1 / (np.sqrt(k.variance) + k.params.epsilon)),
    "variance for its reciprocal root": lambda k: {"inv_variance": k.variance},
    "inv_variance without epsilon": lambda k: {"inv_variance": 1 / np.sqrt(k.variance)},
    "gamma ignored": lambda k: k.normal(
        k.right["mean"], k.right["inv_variance"], gamma=np.ones_like(k.arrays["gamma"])
    ),
    "beta ignored": lambda k: k.normal(k.right["mean"], k.right["inv_variance"], beta=np.zeros_like(k.arrays["beta"])),
    "gamma and beta swapped": lambda k: k.normal(
        k.right["mean"], k.right["inv_variance"], gamma=k.arrays["beta"], beta=k.arrays["gamma"]
    ),
    "mean not taken off": lambda k: k.normal(np.zeros_like(k.right["mean"]), k.right["inv_variance"]),
    "next channel's statistics": lambda k: k.normal(np.roll(k.right["mean"], 1), np.roll(k.right["inv_variance"], 1)),
    "addend dropped": lambda k: {"y": k.right["y"] - k.arrays["add_to_output"]},
    "addend doubled": lambda k: {"y": k.right["y"] + k.arrays["add_to_output"]},
    "addend subtracted": lambda k: {"y": k.right["y"] - 2 * k.arrays["add_to_output"]},
    "addend before the scale": lambda k: {
        "y": k.right["y"] + (spread(k.right["inv_variance"] * k.arrays["gamma"]) - 1) * k.arrays["add_to_output"]
    },
    "x in TF32": lambda k: k.normal(
        k.right["mean"],
        k.right["inv_variance"],
        x=(k.arrays["x"].astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32),
    ),
}


def known_of(made: Case, inputs: Inputs) -> Known:
    """The right outputs of a training case of (N, C, L)."""
    right = dict(expect(made, inputs).values)
    x = inputs.wide["x"]
    return Known(inputs.wide, right, made.params, x.var(axis=(0, 2)), x.size // x.shape[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("wrong", MISTAKES)
def test_mistakes_are_caught(wrong: str, dtype: str) -> None:
    """Nineteen wrong kernels do not pass, in any dtype in which they show."""
    made = case((5, 4, 6), dtype, moving=True, add=True, epsilon=0.05, momentum=0.7)
    inputs = inputs_of(made)
    known = known_of(made, inputs)
    assert passes(made, inputs, **known.right)
    if wrong == "x in TF32" and dtype in ("float16", "bfloat16"):
        return
    assert not passes(made, inputs, **{**known.right, **MISTAKES[wrong](known)})


@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_numbers_without_epsilon_may_have_any_output(dtype: str) -> None:
    """Their variance is rounding alone, so that y is NaN or any number; the mean is known, and other channels are."""
    made = case((5, 4, 6), dtype, moving=True, epsilon=0.0)
    same = inputs_of(made)
    same.values["x"][:, 2] = 3
    right = dict(expect(made, same := with_derived(made, same.values)).values)
    other = {name: array.copy() for name, array in right.items()}
    other["y"][:, 2], other["inv_variance"][2] = -1.5, 1e4
    assert passes(made, same, **right)
    assert passes(made, same, **other)
    for name, at in (("y", (0, 1, 0)), ("mean", 2), ("new_moving_variance", 2), ("inv_variance", 1)):
        wrong = {key: array.copy() for key, array in other.items()}
        wrong[name][at] += 0.1
        assert not passes(made, same, **wrong), name


def test_batch_statistics_in_inference_are_caught() -> None:
    """In inference the moving statistics count, not the batch's."""
    made = case((5, 4, 6), "float32", moving=True, training=False)
    inputs = inputs_of(made)
    arrays = inputs.wide
    x = arrays["x"]
    mean, inverse = x.mean(axis=(0, 2)), 1 / np.sqrt(x.var(axis=(0, 2)) + 1e-5)
    y = (x - spread(mean)) * spread(inverse * arrays["gamma"]) + spread(arrays["beta"])
    assert not passes(made, inputs, y=y)
    assert passes(made, inputs, **expect(made, inputs).values)


@pytest.mark.parametrize(("shape", "axis"), [((1, 2, 1 << 20), 1), ((1 << 20, 2), 1)])
@pytest.mark.parametrize("implementation", ["baseline", "optimized"])
def test_the_error_of_long_sums_does_not_grow(implementation: str, shape: Shape, axis: int) -> None:
    """The mean of a million times 0.95 in float32 is 0.95 to a few roundings, along rows and along columns."""
    made = case(shape, "float32", axis=axis)
    found = outputs_of(made, inputs_of(made, x=np.full(shape, 0.95)), implementation)
    assert np.max(np.abs(found["mean"] - np.float32(0.95))) <= 4 * np.finfo(np.float32).eps
