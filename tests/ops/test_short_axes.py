"""CPU kernels on short rows, few columns, small images and groups, by one thread and by several."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from opgauge.ops._core.dtype import FLOATS
from tests.draws import drawn_of
from tests.ops.attempts import case_of, complaint, inputs_of

CASES: tuple[tuple[str, dict[str, tuple[int, ...]], dict[str, Any]], ...] = (
    ("lerp_grad", {"x": (20, 700, 1), "y": (700, 1), "weight": (20, 700, 1)}, {}),
    ("lerp_grad", {"x": (5, 3), "y": (4, 5, 3), "weight": (6, 4, 5, 3)}, {}),
    ("lerp_grad", {"x": (7, 1), "y": (7, 90)}, {"weight": 0.3}),
    ("lerp_grad", {"x": (1, 2), "y": (4099, 2), "weight": (4099, 2)}, {}),
    ("lerp_grad", {"x": (3, 1, 5), "y": (3, 1009, 5)}, {"weight": 0.7}),
    ("lerp_grad", {"x": (5,), "y": (1009, 5), "weight": (1009, 1)}, {}),
    ("lerp_grad", {"x": (5,), "y": (1009, 5), "weight": (5,)}, {}),
    ("deformable_conv", {"x": (2, 6, 7, 5), "filter": (6, 1, 3, 3)}, {"paddings": 1, "groups": 6}),
    (
        "deformable_conv",
        {"x": (3, 34, 9, 8), "filter": (68, 1, 3, 2), "mask": (3, 12, 5, 4)},
        {"paddings": (1, 0), "strides": 2, "groups": 34, "deformable_groups": 2},
    ),
    ("dot", {"x": (50, 1)}, {}),
    ("dot", {"x": (40, 3)}, {}),
    ("dot", {"x": (5, 33)}, {}),
    ("mean", {"x": (12, 5, 1, 1)}, {"axis": (2, 3)}),
    ("mean", {"x": (20, 3, 4)}, {"axis": (1,)}),
    ("mean", {"x": (33, 64, 64)}, {"axis": (1,)}),
    ("mean", {"x": (33, 65, 5)}, {"axis": (1,)}),
    ("mean", {"x": (10007, 3)}, {"axis": (0,)}),
    ("mean", {"x": (2, 4099, 60)}, {"axis": (1,)}),
    ("normalization", {"x": (9, 3, 2)}, {"axis": 1}),
    ("normalization", {"x": (512, 3, 4)}, {"axis": 1}),
    ("normalization", {"x": (8, 5, 4, 4), "add_to_output": (8, 5, 4, 4)}, {"axis": 1}),
    ("normalization", {"x": (11, 4, 3), "moving_mean": (4,), "moving_variance": (4,)}, {"axis": 1, "training": False}),
    (
        "normalization",
        {"x": (17, 3, 5, 8), "moving_mean": (3,), "moving_variance": (3,), "add_to_output": (17, 3, 5, 8)},
        {"axis": 1, "training": False},
    ),
    ("normalization", {"x": (3, 5, 40)}, {"axis": 1}),
    ("normalization", {"x": (1009, 3), "add_to_output": (1009, 3)}, {"axis": 1}),
    ("normalization", {"x": (257, 5, 3)}, {"axis": 1}),
    ("normalization", {"x": (521, 2, 7), "moving_mean": (2,), "moving_variance": (2,)}, {"axis": 1, "training": False}),
    ("normalization", {"x": (70, 300)}, {"axis": 1}),
    ("mean", {"x": (3, 5000, 70)}, {"axis": (1,)}),
    ("p_norm_grad", {"x": (300, 3)}, {"axis": 1}),
    ("p_norm_grad", {"x": (300, 3)}, {"axis": 0, "porder": 1.0}),
    ("p_norm_grad", {"x": (4, 3, 5, 6, 7)}, {"axis": (1, 3), "porder": 3.0}),
    ("p_norm_grad", {"x": (4, 3, 5, 6)}, {"axis": (1, 3), "porder": 2.5}),
    ("p_norm_grad", {"x": (513, 32)}, {"axis": 1, "porder": 0.5}),
    ("p_norm_grad", {"x": (5, 7, 1)}, {"axis": 2, "porder": 2.5, "keepdim": True}),
    ("p_norm", {"x": (300, 3)}, {"axis": 1, "porder": -1.0}),
    ("p_norm", {"x": (517, 31)}, {"axis": 1, "porder": 2.5}),
    ("p_norm", {"x": (19, 0)}, {"axis": 1}),
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_short_axes_give_what_the_reference_says(number: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the sizes where one loop takes several rows, and beside them; several threads take one of the drawn dtypes."""
    op, shapes, params = CASES[number]
    monkeypatch.setattr(import_module(f"opgauge.ops.{op.removesuffix('_grad')}.cpu"), "count", lambda *_: threads)
    dtypes = drawn_of(op, FLOATS)
    for dtype in dtypes if threads == 1 else (dtypes[number % len(dtypes)],):
        case = case_of(op, shapes, dtype, **params)
        assert complaint(case, inputs_of(case), "optimized") == "", dtype
