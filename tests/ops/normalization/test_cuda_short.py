"""Few rows on CUDA, channels last: every row is some thread's, whatever numbers there are of both."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops import FLOATS
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops.normalization import channels_last
from opgauge.ops.normalization.call import View
from opgauge.ops.normalization.channels_last import COLUMN_THREADS, Short
from tests.ops.attempts import case_of, complaint, inputs_of

ROWS = (2, 3, 4, 15, 16, 17, 31, 32, 33, 64, 99, 255, 256, 257, 511, 513, 1000, 1023, 1024)
CHANNELS = (1, 3, 8, 250, 256, 4095, 4096, 32_768)


@pytest.mark.parametrize("width", [1, 2])
def test_warps_hold_all_rows(width: int) -> None:
    """Threads times vectors cover a warp's rows, warps a block's, each with some, and blocks cover the channels."""
    for view in (View(rows, channels, 1) for rows in ROWS for channels in CHANNELS):
        how = Short.of(view, width)
        if how is None:
            continue
        share, warps = how.share(view.images), how.warps(view.images)
        assert share <= how.deep * how.vectors, view
        assert WARP * warps <= COLUMN_THREADS, view
        if how.shared:
            assert share * (warps - 1) < view.images <= share * warps, view
            assert share % how.deep == 0, view
        across = 1 if how.shared else warps
        assert how.blocks(view.channels) * across * how.lanes * width >= view.channels, view
        assert {how.expression(ctype) for ctype in ("__half", "__nv_bfloat16")} <= set(
            channels_last.SOURCE.expressions
        ), view
        assert width > 1 or how.expression("double") in channels_last.SOURCE.expressions, view


def test_more_rows_are_shared_by_blocks() -> None:
    """Where a block cannot hold all rows, or lines of many channels are worth more, other kernels take them."""
    assert Short.of(View(1024, 256, 1), 1) is not None
    assert Short.of(View(1025, 256, 1), 1) is None
    assert Short.of(View(256, 32_768, 1), 1) is not None
    assert Short.of(View(257, 32_768, 1), 1) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (16, 256), (17, 250), (9, 4100), (65, 1), (200, 4099), (1000, 250)])
def test_few_rows_are_right(shape: tuple[int, int], dtype: str) -> None:
    """With and without addend and moving statistics, rows that begin anywhere."""
    for add, layout in ((False, None), (True, None), (True, "offset")):
        shapes = {"x": shape, "moving_mean": shape[1:], "moving_variance": shape[1:]}
        case = case_of("normalization", shapes | ({"add_to_output": shape} if add else {}), dtype)
        assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [16, 200, 1000])
def test_what_is_not_finite_stays_in_its_channel(rows: int) -> None:
    """An infinity or NaN reaches its channel's y alone; channels far from zero store_statistics their variance."""
    case = case_of("normalization", {"x": (rows, 40)}, "float32")
    x = 1000 + np.array(inputs_of(case).values["x"])
    x[0, 0], x[rows - 1, 1], x[rows // 2, 39] = np.inf, np.nan, -np.inf
    assert complaint(case, inputs_of(case, x=x), "optimized", None, "cuda") == ""
