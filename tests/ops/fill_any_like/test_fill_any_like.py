"""fill_any_like: what fits into a dtype, and what a value becomes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opgauge.ops import ParameterError, dtype_info, find_kernel, find_op
from opgauge.ops._core.tuning import override
from opgauge.ops._cpu import streaming, threads
from opgauge.ops._cuda.fill import LARGE_BYTES
from opgauge.ops.fill_any_like import cpu
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
    assert filled("int64", implementation, -(2**53) - 1).tolist() == [-(2**53) - 1] * 3
    assert np.isnan(filled("float16", implementation, float("nan"))).all()
    assert np.isinf(filled("bfloat16", implementation, float("inf")).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", 128.0), ("uint8", -1.0), ("float16", 1e6), ("int32", float("nan")), ("int64", 1e20), ("int64", 2**63)],
)
def test_values_out_of_range_are_refused(dtype: str, value: float) -> None:
    """A value that the dtype cannot hold is an error, as upstream words it."""
    op = find_op("fill_any_like")
    with pytest.raises(ParameterError, match="out of range for target type"):
        op.infer({"x": (3,)}, dtype, op.params(value=value))


@pytest.mark.parametrize("turn", [100, 8192, cpu.STRAIGHT])
@pytest.mark.parametrize(("dtype", "size"), [("uint8", 32768), ("float32", 32965), ("float64", 40959)])
def test_turns_fill_all_and_no_more(dtype: str, size: int, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether halves of a part are whole turns or not."""
    monkeypatch.setattr(cpu, "turn_of", lambda flat: turn if flat.size == size else 0)
    monkeypatch.setattr(threads, "PAYS_NS", 0.0)
    op = find_op("fill_any_like")
    room = np.zeros(size + 200, dtype)
    x, out = room[:size], room[100:-100]
    find_kernel("fill_any_like", "optimized", "cpu", dtype).bind({"x": x}, op.params(value=3), {"out": out})()
    assert (out == 3).all()
    assert not room[:100].any()
    assert not room[-100:].any()


def test_turns_are_for_what_fills_most_of_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread switches after `TURN_BYTES`, and not at all if that is less than an element or the size is another."""
    monkeypatch.setattr(streaming, "last_cache_bytes", lambda: 1600)
    assert cpu.turn_of(np.zeros(700, np.uint8)) == cpu.STRAIGHT
    assert cpu.turn_of(np.zeros(701, np.uint8)) == 2048
    assert cpu.turn_of(np.zeros(175, np.float64)) == 2048 // 8
    assert cpu.turn_of(np.zeros(1401, np.uint8)) == cpu.STRAIGHT
    monkeypatch.setattr(cpu, "TURN_BYTES", 0)
    assert cpu.turn_of(np.zeros(1000, np.uint8)) == cpu.STRAIGHT


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
