"""Variations of inputs: independent slices are found by probing, small ones preferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.worker import variation
from opgauge.harness.worker.variation import LARGE_SLICE, Exchange, find_variation, slice_elements
from opgauge.ops import find_op


def found(op: str, shapes: Mapping[str, tuple[int, ...]], **params: Any) -> tuple[Case, Exchange]:
    """A case in float32, and its independent slices."""
    case = Case(op, "probed", shapes, "float32", find_op(op).params(**params))
    variation = find_variation(case)
    assert isinstance(variation, Exchange)
    return case, variation


@pytest.mark.parametrize("batch", [2, 16])
def test_small_slices_are_preferred_to_a_small_batch(batch: int) -> None:
    """Channels of a sum rather than its images, each of which would need a large reference."""
    case, axes = found("add_n", {"in_0": (batch, 256, 56, 56), "in_1": (batch, 256, 56, 56)})
    assert axes.size == 256
    assert axes.inputs == {"in_0": 1, "in_1": 1}
    assert slice_elements(case, axes) == 3 * batch * 56 * 56


def test_small_slices_stay_those_of_the_first_axis() -> None:
    """Rows rather than columns, if rows are small enough."""
    case, axes = found("add_n", {"in_0": (64, 97), "in_1": (64, 97)})
    assert axes.size == 64
    assert slice_elements(case, axes) <= LARGE_SLICE


def test_large_slices_are_kept_if_no_others_are_independent() -> None:
    """The rows of a norm depend on all of their elements."""
    case, axes = found("p_norm", {"x": (2, 1 << 20)}, porder=2.0, axis=-1)
    assert axes.size == 2
    assert slice_elements(case, axes) > LARGE_SLICE


def test_an_axis_that_leaves_inputs_out_is_not_preferred() -> None:
    """The images of a convolution's gradient: along its channels, dy would never change."""
    shapes = {"x_like": (2, 64, 56, 56), "filter": (64, 64, 3, 3)}
    _, axes = found("conv_data_grad", shapes, padding_before=1)
    assert axes.inputs == {"dy": 0, "x_like": 0}


@pytest.mark.parametrize("dtype", ["complex64", "float32", "int8"])
def test_references_are_given_arrays_without_axes(dtype: str) -> None:
    """An input of shape () is multiplied to another such array, not to a number."""
    case = Case("sign", "probed", {"x": ()}, dtype, find_op("sign").params())
    assert find_variation(case) is not None


def test_slices_leave_inputs_without_axes_as_they_are() -> None:
    """A weight of shape () keeps it beside slices of other inputs."""
    case = Case("lerp", "probed", {"x": (7, 5), "y": (7, 5), "weight": ()}, "float32", find_op("lerp").params())
    axes = find_variation(case)
    assert isinstance(axes, Exchange)
    given: dict[str, Any] = {"x": np.ones((7, 5)), "y": np.ones((7, 5)), "weight": np.ones(())}
    taken: dict[str, tuple[int, ...]] = {}
    op = find_op("lerp")

    def shapes_of(arrays: Mapping[str, Any], params: Any) -> dict[str, Any]:
        taken.update({name: value.shape for name, value in arrays.items()})
        return op.reference(arrays, params)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(variation, "find_op", lambda _: replace(op, reference=shapes_of))
        assert variation.expect_slices(case, axes, given, [0, 3]) is not None
    assert taken["weight"] == ()
