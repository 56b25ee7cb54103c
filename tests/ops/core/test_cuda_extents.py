"""Flat pointwise kernels on CUDA where part of a result is kept in the cache."""

from __future__ import annotations

from typing import Any

import pytest

from opgauge.ops import FLOATS, dtype_info
from opgauge.ops._core.tuning import override
from opgauge.ops._cuda.pointwise import VECTOR_BYTES
from opgauge.ops.lerp import cuda as lerp
from tests.ops.attempts import case_of, complaint, inputs_of

CALLS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("add_n", ("in_0", "in_1"), {}),
    ("flatten", ("x",), {"copy": True}),
    ("lerp", ("x", "y"), {"weight": 0.3}),
    ("lerp", ("x", "y", "weight"), {}),
    ("scale", ("x",), {"scale": 1.5, "bias": 0.25}),
    ("sign", ("x",), {}),
]


@pytest.mark.gpu
@pytest.mark.parametrize("large_bytes", [0, 512 << 20])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "names", "params"), CALLS)
def test_parts_that_are_kept_and_parts_that_are_not(
    op: str,
    names: tuple[str, ...],
    params: dict[str, Any],
    dtype: str,
    large_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every element is right in either part, in a block that is not full and behind the last vector."""
    width = VECTOR_BYTES // dtype_info(dtype).itemsize
    vectors = (12 << 20) // VECTOR_BYTES + 3
    monkeypatch.setattr(lerp, "LARGE_BYTES", large_bytes)
    with override({"pointwise.kept_megabytes": 5}):
        for elements in (vectors * width, vectors * width + 1):
            case = case_of(op, dict.fromkeys(names, (elements,)), dtype, **params)
            for layout in (None, "offset"):
                assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""
