"""deformable_conv_grad channels last: how its buffers lie, and on a GPU every gradient of odd shapes and groups."""

from __future__ import annotations

from itertools import product

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.verify import expect
from opgauge.ops import dtype_info, find_kernel
from opgauge.ops.deformable_conv import cuda_grad
from opgauge.ops.deformable_conv.cuda_fused import DTYPES
from opgauge.ops.deformable_conv.cuda_spread import SpreadLayout, spread_layout
from opgauge.ops.deformable_conv.op import geometry
from tests.launches import H200
from tests.ops.deformable_conv.shapes import convolution, grouped, scattered

OP = "deformable_conv_grad"
SIZES = (
    ((2, 5, 9, 7), (7, 5, 3, 3)),
    ((1, 33, 6, 11), (65, 33, 2, 3)),
    ((1, 130, 5, 13), (129, 130, 3, 3)),
    ((3, 64, 4, 5), (40, 64, 3, 1)),
)
GROUPED = ((1, 1), (2, 1), (1, 2), (2, 4), (4, 2), (1, 8))


def complaints(case: Case) -> str:
    """What the checker has against the kernels, with tensor cores and without; empty where nothing."""
    timer, found = timer_for("cuda"), []
    inputs = scattered(case, 3)
    expected = expect(case, inputs)
    with timer.session("numpy"), pytest.MonkeyPatch.context() as patch:
        for few in (False, True):
            patch.setattr(cuda_grad, "few", lambda _, few=few: few)
            for implementation in ("optimized", "deterministic"):
                kernel = find_kernel(OP, implementation, "cuda", case.dtype)
                found.append(Attempt(case, kernel, inputs.values, timer).judge(expected).reason)
    return "; ".join(filter(None, found))


@pytest.mark.parametrize(("groups", "parts"), GROUPED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_of_a_deformable_group_lie_together(dtype: str, groups: int, parts: int) -> None:
    """Whole vectors of 16 bytes for each group and each deformable group, and lanes for them."""
    for each in (1, 4, 12, 40):
        case = grouped(OP, dtype, groups, parts, each, mask=True)
        found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
        made = spread_layout(found, dtype, H200)
        assert isinstance(made, SpreadLayout)
        vector = 16 // dtype_info(dtype).itemsize
        width = made.depth // parts
        assert width * parts == made.channels.depth * groups == made.depth
        assert width % vector == made.channels.padded % vector == 0
        assert made.channels.padded >= made.channels.segment == each
        assert made.lanes in {1, 2, 4, 8}
        assert made.lanes * vector < 2 * width
        assert made.grid[0] // found.taps * (256 // made.lanes) >= found.batch * found.pixels


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: str) -> None:
    """Right for channels that fill no vector, no chunk and no tile."""
    for x, weight in SIZES:
        assert complaints(convolution(OP, dtype, x, weight, mask=True, paddings=1)) == ""


@pytest.mark.gpu
@pytest.mark.parametrize(("groups", "parts"), GROUPED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups(dtype: str, groups: int, parts: int) -> None:
    """Groups and deformable groups of one, of few and of many channels, with and without a mask."""
    for each, mask in product((1, 4, 12, 40), (True, False)):
        assert complaints(grouped(OP, dtype, groups, parts, each, mask=mask)) == ""
