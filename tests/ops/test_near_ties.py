"""Rounded outputs: elements that lie next to a boundary may be either neighbour, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._function.near_ties import NEXT_TO, near_ties

ROWS, COLUMNS = 2000, 1000


def quantized(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Integers of 8 bits, by the largest magnitude of a row, in the precision of the input."""
    factor = 127 / np.abs(inputs["x"]).max(-1, keepdims=True)
    return {"q": np.rint(inputs["x"] * factor).astype(np.int8)}


def sorted_indices(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Indices that sort each row."""
    return {"index": np.argsort(inputs["x"], -1, kind="stable")}


def positive(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the sum of a row is positive."""
    return {"out": inputs["x"].sum(-1, dtype=inputs["x"].dtype) > 0}


def narrow(dtype: str) -> Any:
    """A function that scales by the largest magnitude and rounds to a float of 8 bits."""
    largest = float(ml_dtypes.finfo(dtype_info(dtype).numpy).max)  # type: ignore[no-untyped-call]

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        factor = largest / np.abs(inputs["x"]).max(-1, keepdims=True)
        return {"q": (inputs["x"] * factor).astype(dtype_info(dtype).numpy)}

    return call


def drawn(rows: int = ROWS, columns: int = COLUMNS) -> Any:
    """Numbers in float32."""
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


def bounds(call: Any, x: Any) -> tuple[Any, Any]:
    """The reference's output in float64, and its bound."""
    inputs = {"x": x.astype(np.float64)}
    (output,) = (outputs := call(inputs)).values()
    (bound,) = near_ties(call, inputs, outputs, "float32").values()
    return output, bound


@pytest.mark.parametrize(
    ("call", "middle"),
    [(quantized, 30.5 / 127), (narrow("float8_e4m3fn"), 17 / 16 / 448), (narrow("float8_e5m2"), 9 / 8 / 57344)],
)
def test_a_correct_kernel_in_float32_is_within_the_bound(call: Any, middle: float) -> None:
    """It differs from the reference in some of the elements between two results; few elements may."""
    x = drawn()
    x[:, 5] = middle * np.abs(x).max(-1)
    expected, bound = bounds(call, x)
    (got,) = call({"x": x}).values()
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    assert 0.02 * ROWS < np.count_nonzero(error) < 0.9 * ROWS
    assert np.all(error <= bound)
    assert np.count_nonzero(bound) < 0.01 * bound.size


def test_the_sign_of_a_sum_next_to_zero_is_either() -> None:
    """Rows whose elements cancel, and no others."""
    x = drawn(100)
    x[:10, COLUMNS // 2 :] = -x[:10, : COLUMNS // 2]
    _, bound = bounds(positive, x)
    assert np.all(bound[:10] == 1)
    assert np.count_nonzero(bound[10:]) < 3


def test_indices_have_no_neighbours() -> None:
    """Where two elements are nearly equal, the index of one is far from that of the other."""
    x = drawn(1)
    x[0, 700] = np.nextafter(x[0, 3], np.float32(9))
    _, bound = bounds(sorted_indices, x)
    assert not bound.any()


def test_outputs_of_exact_inputs_are_exact() -> None:
    """Without floating-point inputs nothing is rounded."""
    x = np.arange(10)
    assert near_ties(sorted_indices, {"x": x}, sorted_indices({"x": x}), "int64") == {}
    assert set(near_ties(quantized, {"x": drawn(2)}, quantized({"x": drawn(2)}), "float32")) == {NEXT_TO.format("q")}
