"""flatten: shapes, errors, views that move nothing, and copies of strided tensors."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops import AxisError, ParameterError, find_kernel, find_op
from opgauge.ops.flatten.op import flat_shape
from tests.ops.attempts import ours

PARAMS = find_op("flatten").params


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((3, 2, 5, 4), (0, -1), (120,)),
        ((3, 2, 5, 4), (1, 2), (3, 10, 4)),
        ((3, 2, 5, 4), (-2, -1), (3, 2, 20)),
        ((3, 2, 5, 4), (2, 2), (3, 2, 5, 4)),
        ((3, 2, 3, 2, 4, 4), (3, 5), (3, 2, 3, 32)),
        ((), (0, -1), (1,)),
        ((0, 4), (0, 1), (0,)),
    ],
)
def test_shapes(shape: tuple[int, ...], axes: tuple[int, int], expected: tuple[int, ...]) -> None:
    """The merged shape, for negative axes, one axis, a 0-d tensor and an empty one."""
    assert flat_shape(shape, PARAMS(*axes)) == expected


def test_what_is_refused() -> None:
    """A stop before the start, and axes out of range."""
    with pytest.raises(ParameterError, match="stop_axis should be greater"):
        flat_shape((2, 3), PARAMS(1, 0))
    with pytest.raises(AxisError, match="start_axis 2"):
        flat_shape((2, 3), PARAMS(2, -1))
    with pytest.raises(AxisError, match="0-d"):
        flat_shape((), PARAMS(1, -1))


@pytest.mark.parametrize("implementation", ours("flatten"))
def test_a_view_shares_memory(implementation: str) -> None:
    """Without a copy the result is x's own memory; a strided x has no such view."""
    x = np.arange(12.0).reshape(3, 4)
    kernel = find_kernel("flatten", implementation, "cpu", "float64")
    (view,) = kernel.bind({"x": x}, PARAMS(copy=False), {})()
    assert view.shape == (12,)
    assert np.shares_memory(view, x)
    with pytest.raises(ParameterError, match="not contiguous"):
        kernel.bind({"x": x.T}, PARAMS(copy=False), {})()


@pytest.mark.parametrize("implementation", ours("flatten"))
@pytest.mark.parametrize("size", [3, 300])
def test_copies_keep_the_order(implementation: str, size: int) -> None:
    """A copy of a transposed tensor has the elements in the order of its indices."""
    x = np.arange(float(size * 4 * size)).reshape(size, 4, size).transpose(2, 0, 1)
    out = np.empty(x.size)
    find_kernel("flatten", implementation, "cpu", "float64").bind({"x": x}, PARAMS(), {"out": out})()
    assert np.array_equal(out, x.reshape(-1))
