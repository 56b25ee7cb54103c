"""fill_any_like: what fits into a dtype, and what a value becomes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ops import ParameterError, dtype_info, find_kernel, find_op
from ops._core.tuning import override
from ops.fill_any_like.cuda import LARGE_BYTES
from tests.ops.attempts import case_of, complaint, inputs_of, ours


def filled(dtype: str, implementation: str, value: float, target: str | None = None) -> Any:
    """A tensor of three elements, filled."""
    op = find_op("fill_any_like")
    params = op.params(value=value, dtype=target)
    spec = op.infer({"x": (3,)}, dtype, params).outputs["out"]
    out = np.zeros(spec.shape, dtype_info(spec.dtype).numpy)
    x = np.zeros(3, dtype_info(dtype).numpy)
    find_kernel("fill_any_like", implementation, "cpu", dtype).bind({"x": x}, params, {"out": out})()
    return out


@pytest.mark.parametrize("implementation", ours("fill_any_like"))
def test_values_become_elements(implementation: str) -> None:
    """Floats round, integers truncate, bool asks whether it is not zero; the output's dtype may differ from x's."""
    assert filled("float32", implementation, 1e-10).tolist() == [np.float32(1e-10)] * 3
    assert filled("float32", implementation, 1e-100).tolist() == [0.0] * 3
    assert filled("int32", implementation, 2.9).tolist() == [2] * 3
    assert filled("bool", implementation, 0.5).tolist() == [True] * 3
    assert filled("float32", implementation, 7.0, "int64").dtype == np.int64
    assert filled("int64", implementation, 2.0**40).tolist() == [2**40] * 3
    assert np.isnan(filled("float16", implementation, float("nan"))).all()
    assert np.isinf(filled("bfloat16", implementation, float("inf")).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("dtype", "value"), [("int8", 128.0), ("uint8", -1.0), ("float16", 1e6), ("int32", float("nan")), ("int64", 1e20)]
)
def test_values_out_of_range_are_refused(dtype: str, value: float) -> None:
    """A value that the dtype cannot hold is an error, as upstream words it."""
    op = find_op("fill_any_like")
    with pytest.raises(ParameterError, match="out of range for target type"):
        op.infer({"x": (3,)}, dtype, op.params(value=value))


@pytest.mark.gpu
@pytest.mark.parametrize("megabytes", [0, 5, 16])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_large_results_are_filled_to_their_ends(dtype: str, megabytes: int) -> None:
    """Whichever blocks write lines that are kept, and wherever the result begins."""
    size = LARGE_BYTES // dtype_info(dtype).itemsize + 4099
    case = case_of("fill_any_like", {"x": (size,)}, dtype, value=3)
    with override({"pointwise.kept_megabytes": megabytes}):
        for layout in (None, "offset"):
            assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""
