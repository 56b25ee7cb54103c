"""Axes of a reduction: merged, grouped, and reduced in steps."""

from __future__ import annotations

from itertools import chain, combinations
from math import prod

import numpy as np
import pytest

from opgauge.ops._core.axes import as_reduction, merge_axes, reduction_steps, sum_array
from opgauge.ops._core.errors import AxisError

Shape = tuple[int, ...]


@pytest.mark.parametrize("axes", [axes for rank in range(7) for axes in combinations(range(6), rank)])
def test_steps_and_merged_axes_reduce_what_numpy_does(axes: Shape) -> None:
    """A reduction in steps, and offsets by strides, give what NumPy sums over any set of axes."""
    for shape in ((2, 3, 1, 4, 2, 3), (3, 1, 2, 2, 1, 2)):
        x = np.arange(prod(shape), dtype=np.int64)
        wanted = x.reshape(shape).sum(axis=axes).reshape(-1)
        found = x
        for step in reduction_steps(shape, axes):
            found = found.reshape(step.shape).sum(axis=(1, 3))
        assert np.array_equal(found.reshape(-1), wanted)
        merged = merge_axes(shape, axes)
        offsets = np.zeros(1, np.int64)
        for reduced in (False, True):
            for length, stride in merged.strides(reduced=reduced):
                offsets = (offsets[:, None] + stride * np.arange(length)).reshape(-1)
        assert np.array_equal(x[offsets].reshape(merged.count, merged.length).sum(axis=1), wanted)


@pytest.mark.parametrize("shape", [(16_384, 4, 1), (700, 3, 300), (5, 300, 2, 40), (20, 30, 7), (1, 513)])
def test_sums_of_equal_numbers_do_not_drift(shape: Shape) -> None:
    """The rounding of a sum in sequence goes one way; sums over any axes are those of float64 up to some roundings."""
    x = np.full(shape, 3.1, np.float32)
    for axes in chain.from_iterable(combinations(range(x.ndim), count) for count in range(1, x.ndim + 1)):
        for keepdim in (False, True):
            wanted = x.sum(axis=axes, keepdims=keepdim, dtype=np.float64)
            found = sum_array(x, axes, keepdim=keepdim)
            assert (found.shape, found.dtype) == (wanted.shape, x.dtype)
            np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_three_groups_are_no_reduction_of_two() -> None:
    """as_reduction raises AxisError for three separate groups, and takes what is between two axes of length 1."""
    assert as_reduction((2, 1, 3, 4), (0, 2)).shape == (1, 6, 1, 1, 4)
    with pytest.raises(AxisError, match="3 separate groups"):
        as_reduction((2, 3, 4, 5, 6), (0, 2, 4))
