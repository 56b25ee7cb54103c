"""Composites that flush numbers below the normal range to zero are right; our own kernels preserve them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from opgauge.ops import find_op
from tests.ops.attempts import Array, case_of, inputs_of, ours, outputs_of, passes

TINY = 2.0**-126
"""Smallest normal number of float32."""
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "scale": {"x": (6,)},
    "dot": {"x": (2, 6)},
    "conv_data_grad": {"x_like": (1, 2, 4, 4), "filter": (3, 2, 2, 2)},
    "deformable_conv": {"x": (1, 2, 4, 4), "filter": (2, 2, 1, 1), "offset": (1, 2, 4, 4)},
}
OWN = ("scale", "dot", "deformable_conv")
"""Ops whose kernels are called."""
PARAMS: dict[str, dict[str, Any]] = {"scale": {"scale": 2.0**100}}


def flush(values: Array) -> Array:
    """The values, 0 in place of those below the normal range of float32."""
    return np.where(np.abs(values) < TINY, 0.0, values)


@pytest.mark.parametrize("small", ["x", "filter", "dy", "y"])
@pytest.mark.parametrize("op", sorted(SHAPES))
def test_inputs_that_are_flushed_are_right(op: str, small: str) -> None:
    """Half of the small values lie below the normal range; other inputs are large enough to make normal products."""
    case = case_of(op, SHAPES[op], "float32", **PARAMS.get(op, {}))
    inputs = inputs_of(case)
    if small not in inputs.values:
        pytest.skip("no such input")
    rng = np.random.default_rng(1)
    shape = inputs.values[small].shape
    given = rng.uniform(0.5, 1.0, shape) * TINY * rng.choice([0.5, 4.0], shape)
    other = {name: value * 2.0**90 for name, value in inputs.values.items() if name in ("x", "filter", "dy", "y")}
    inputs = inputs_of(case, **{**other, small: given})
    flushed = inputs_of(case, **{**other, small: flush(given)})
    outputs = reference(case, flushed)
    assert any(np.any(outputs[name] != value) for name, value in reference(case, inputs).items())
    assert passes(case, inputs, **outputs)
    assert not passes(case, inputs, **{name: value * 8.0 for name, value in outputs.items()})


def reference(case: Any, inputs: Any) -> Mapping[str, Array]:
    """Outputs by the op's reference."""
    return find_op(case.op).reference(inputs.wide, case.params)


@pytest.mark.parametrize("op", sorted(SHAPES))
def test_products_that_are_flushed_are_right_and_kernels_preserve_them(op: str) -> None:
    """The product of normal factors lies below the normal range: a composite may give 0, kernels of ours do not."""
    size = TINY if op == "scale" else 2.0**-65
    case = case_of(op, SHAPES[op], "float32", **({"scale": 0.25} if op == "scale" else {}))
    drawn = inputs_of(case).values
    inputs = inputs_of(case, **{name: np.full(one.shape, size) for name, one in drawn.items() if name != "offset"})
    outputs = reference(case, inputs)
    assert passes(case, inputs, **{name: np.zeros_like(value) for name, value in outputs.items()})
    for name in ours(op) if op in OWN else ():
        for key, value in outputs_of(case, inputs, name).items():
            np.testing.assert_allclose(value, outputs[key], rtol=1e-6, atol=2.0**-148)


def test_a_gradient_of_flushed_inputs_is_right() -> None:
    """deformable_conv_grad: each gradient is judged by the terms of the inputs that count as 0."""
    shapes = {"out_grad": (1, 2, 4, 4), "x": (1, 2, 4, 4), "filter": (2, 2, 1, 1), "offset": (1, 2, 4, 4)}
    case = case_of("deformable_conv_grad", shapes, "float32")
    rng, drawn = np.random.default_rng(1), inputs_of(case_of("deformable_conv_grad", shapes, "float32")).values
    small = rng.uniform(0.5, 1.0, shapes["x"]) * TINY * rng.choice([0.5, 4.0], shapes["x"])
    large = {name: drawn[name] * 2.0**60 for name in ("out_grad", "filter")}
    inputs, flushed = inputs_of(case, **large, x=small), inputs_of(case, **large, x=flush(small))
    assert passes(case, inputs, **reference(case, flushed))
