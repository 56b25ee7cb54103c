"""Summed gradients of lerp on CUDA: whoever shares a sum, it is right, and the workspace is left as it was found."""

from __future__ import annotations

import pytest

from opgauge.ops import FLOATS, find_kernel
from tests.ops.attempts import case_of, complaint, inputs_of

Shape = tuple[int, ...]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((140, 1, 17, 8), (140, 20, 1, 8)),
        ((134, 64, 1, 8), (134, 1, 65, 8)),
        ((67, 1, 21, 264), (67, 18, 1, 264)),
        ((133, 18, 1, 4), (133, 1, 18, 4)),
        ((5, 1, 20, 4104), (5, 18, 1, 4104)),
        ((9, 1, 64, 250), (9, 64, 1, 250)),
    ],
)
def test_both_sums_are_right(x: Shape, y: Shape, dtype: str) -> None:
    """Over two adjacent axes, whichever is shorter, columns that fill their blocks or do not."""
    case = case_of("lerp_grad", {"x": x, "y": y}, dtype, weight=0.3)
    assert complaint(case, inputs_of(case), "optimized", None, "cuda") == ""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((3, 1), (3, 100_003)),
        ((600, 1), (600, 3000)),
        ((16, 1, 1), (16, 3, 50_176)),
        ((250,), (6000, 250)),
        ((4096,), (701, 4096)),
        ((600, 1, 40), (600, 90, 40)),
        ((5, 1, 4100), (5, 150, 4100)),
    ],
)
def test_one_sum_is_right(x: Shape, y: Shape, dtype: str) -> None:
    """Along rows and columns, by one block and by many, with and without the other gradient."""
    for wanted in ({}, {"need_y": False}):
        case = case_of("lerp_grad", {"x": x, "y": y}, dtype, weight=0.3, **wanted)
        assert complaint(case, inputs_of(case), "optimized", None, "cuda") == ""
    case = case_of("lerp_grad", {"x": y, "y": x}, dtype, weight=0.3)
    assert complaint(case, inputs_of(case), "optimized", None, "cuda") == ""


@pytest.mark.gpu
def test_one_workspace_serves_many_launches() -> None:
    """What blocks told each other in one launch is not taken for the next one's: flags are zero again."""
    import cupy as cp

    for x, y, tensor in (
        ((16, 1), (16, 150_528), None),
        ((4096,), (2000, 4096), None),
        ((9000, 1), (1, 70), None),
        ((16, 1), (16, 150_528), (150_528,)),
        ((40,), (9000, 40), (9000, 1)),
        ((1, 24, 1), (9, 24, 3000), (3000,)),
        ((1, 24, 1), (1, 24, 1), (9, 24, 3000)),
    ):
        weights = {"weight": 0.25} if tensor is None else {}
        shapes = {"x": x, "y": y} if tensor is None else {"x": x, "y": y, "weight": tensor}
        case = case_of("lerp_grad", shapes, "float32", **weights)
        kernel = find_kernel("lerp_grad", "optimized", "cuda", "float32")
        assert kernel.workspace is not None
        workspace = cp.zeros(kernel.workspace(case.resolved, case.params), cp.uint8)
        dout = cp.empty(case.resolved.inputs["dout"].shape, cp.float32)
        out = {name: cp.empty(spec.shape, cp.float32) for name, spec in case.resolved.outputs.items()}
        inputs = {name: cp.full(shape, 0.25, cp.float32) for name, shape in shapes.items()} | {"dout": dout}
        run = kernel.bind(inputs, case.params, out, workspace)
        for turn in range(50):
            dout[...] = turn % 3
            run()
            run()
            assert (out["dx"] == 0.75 * (turn % 3) * (dout.size // out["dx"].size)).all(), (x, y)
        assert not workspace.any()
