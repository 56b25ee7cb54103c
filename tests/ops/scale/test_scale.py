"""scale: order of bias, truncated integer parameters, wrap-around, a scale given as a tensor."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from opgauge.ops import ParameterError, ShapeError, find_kernel, find_op
from tests.ops.attempts import case_of, complaint, inputs_of, ours, passes


def scaled(x: Any, implementation: str = "optimized", **params: Any) -> Any:
    """What a kernel makes of `x`."""
    out = np.zeros_like(x)
    kernel = find_kernel("scale", implementation, "cpu", x.dtype.name)
    kernel.bind({"x": x}, find_op("scale").params(**params), {"out": out})()
    return out


@pytest.mark.parametrize("implementation", ours("scale"))
def test_integer_parameters_are_truncated(implementation: str) -> None:
    """A scale of 2.7 is 2 for integers, a bias of -1.5 is -1."""
    x = np.array([1, 2, -3], np.int32)
    assert scaled(x, implementation, scale=2.7, bias=-1.5).tolist() == [1, 3, -7]


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "int64"])
@pytest.mark.parametrize("implementation", ours("scale"))
def test_integers_wrap_around(implementation: str, dtype: str) -> None:
    """The product wraps as the dtype does."""
    x = np.array([100, 3], dtype)
    assert scaled(x, implementation, scale=3).tolist() == (x * np.array(3, dtype)).tolist()


def test_bias_before_and_after() -> None:
    """(x + b) s differs from x s + b, and the checker sees it."""
    case = case_of("scale", {"x": (5,)}, "float32", scale=2.0, bias=1.0, bias_after_scale=False)
    inputs = inputs_of(case)
    x = inputs.values["x"]
    assert passes(case, inputs, out=(x + 1) * 2)
    assert not passes(case, inputs, out=x * 2 + 1)


def test_overflow_is_infinite() -> None:
    """float16 beyond its range is infinite, as the upstream case's is."""
    x = np.array([7, -7], np.float16)
    assert scaled(x, scale=1e4, bias=-1.0, bias_after_scale=False).tolist() == [6e4, -np.inf]


def test_scale_may_be_a_tensor_of_one_element() -> None:
    """A tensor scale is read when the kernel runs, also with more axes than x; more than one element is refused."""
    for x, scale in (((4,), (1,)), ((3,), (1, 1)), ((), (1,))):
        case = case_of("scale", {"x": x, "scale": scale}, "float32", bias=0.5)
        for implementation in (*ours("scale"), *(["torch"] if find_spec("torch") else [])):
            assert complaint(case, inputs_of(case), implementation) == "", implementation
    with pytest.raises(ShapeError, match="one element"):
        find_op("scale").infer({"x": (4,), "scale": (2,)}, "float32", find_op("scale").params())


def test_no_integer_is_infinite() -> None:
    """An infinite scale of an integer tensor is refused."""
    params = find_op("scale").params(scale=float("inf"))
    with pytest.raises(ParameterError, match="no infinity"):
        find_op("scale").infer({"x": (4,)}, "int32", params)
