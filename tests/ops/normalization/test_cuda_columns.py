"""Channels last on CUDA: blocks share rows, put their statistics together, and leave the workspace as they found it."""

from __future__ import annotations

import pytest

from opgauge.ops import FLOATS, find_kernel
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops.normalization import channels_last
from opgauge.ops.normalization.call import MOST_PARTIALS, View
from opgauge.ops.normalization.channels_last import (
    COLUMN_THREADS,
    MINIMUM_ROUNDS,
    WIDE_SPLITS,
    Tiles,
)
from tests.ops.attempts import case_of, complaint, inputs_of

IMAGES = (1, 2, 5, 16, 32, 99, 784, 6272, 25_088, 1 << 20)
CHANNELS = (1, 2, 5, 8, 24, 64, 250, 256, 2048, 32_768)
PLANS = ((1, False), *((width, wide) for width in (2, 4, 8) for wide in (False, True)))


@pytest.fixture
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of so many multiprocessors, with so much shared memory a block."""
    multiprocessors, shared_bytes = request.param
    monkeypatch.setattr(channels_last, "multiprocessors", lambda: multiprocessors)
    monkeypatch.setattr(channels_last, "shared_memory_bytes", lambda: shared_bytes)


@pytest.mark.parametrize("multiprocessors", [1, 20, 132])
@pytest.mark.parametrize(("width", "wide"), PLANS)
def test_blocks_cover_rows_and_columns(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, width: int, wide: bool
) -> None:
    """Every row and column is some block's, no block is without rows, and a block has a thread for each column."""
    monkeypatch.setattr(channels_last, "multiprocessors", lambda: multiprocessors)
    for view in (View(images, channels, 1) for images in IMAGES for channels in CHANNELS if channels % width == 0):
        tiles = Tiles.of(view, width, wide=wide)
        assert tiles.across * tiles.lanes * width >= view.channels, view
        assert tiles.share * (tiles.splits - 1) < view.images <= tiles.share * tiles.splits, view
        assert tiles.tile * tiles.rounds >= tiles.share, view
        assert tiles.threads % WARP == 0, view
        assert tiles.lanes * width <= tiles.threads <= COLUMN_THREADS, view
        assert view.channels * tiles.splits <= MOST_PARTIALS or tiles.splits == 1, view
        assert not wide or tiles.splits <= WIDE_SPLITS, view
        assert wide or tiles.splits == 1 or tiles.rounds >= MINIMUM_ROUNDS, view


@pytest.mark.parametrize("multiprocessors", [1, 20, 132])
@pytest.mark.parametrize(("width", "wide"), PLANS)
def test_blocks_that_wait_are_resident(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, width: int, wide: bool
) -> None:
    """Blocks wait for each other only in launches of no more blocks than there are multiprocessors."""
    monkeypatch.setattr(channels_last, "multiprocessors", lambda: multiprocessors)
    for view in (View(images, channels, 1) for images in IMAGES for channels in CHANNELS):
        tiles = Tiles.of(view, width, wide=wide)
        assert tiles.splits == 1 or tiles.across * tiles.splits <= multiprocessors, view


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(132, 227 << 10), (7, 64 << 10), (40, 20 << 10), (132, 11 << 10)], indirect=True)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(3000, 64), (5001, 24), (1100, 2048), (2111, 31), (9001, 1), (300, 4104), (4099, 264), (6000, 250)]
)
@pytest.mark.usefixtures("sizes")
def test_shared_rows_are_right(shape: tuple[int, int], dtype: str) -> None:
    """Whatever part of x stays in shared memory, y and the statistics are right, and no flagged partial is left."""
    for add, layout in ((False, None), (True, None), (True, "offset")):
        shapes = {"x": shape, "moving_mean": shape[1:], "moving_variance": shape[1:]}
        case = case_of("normalization", shapes | ({"add_to_output": shape} if add else {}), dtype)
        assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""


@pytest.mark.gpu
def test_one_workspace_serves_many_launches() -> None:
    """What blocks published each other in one launch is not taken for the next one's."""
    import cupy as cp

    for shape in ((6272, 256), (5001, 24), (30_000, 8), (2000, 2048), (3000, 264)):
        case = case_of("normalization", {"x": shape}, "float32")
        kernel = find_kernel("normalization", "optimized", "cuda", "float32")
        assert kernel.workspace is not None
        workspace = cp.zeros(kernel.workspace(case.resolved, case.params), cp.uint8)
        x = cp.empty(shape, cp.float32)
        out = {name: cp.empty(spec.shape, cp.float32) for name, spec in case.resolved.outputs.items()}
        ones, zeros = cp.ones(shape[1:], cp.float32), cp.zeros(shape[1:], cp.float32)
        run = kernel.bind({"x": x, "gamma": ones, "beta": zeros}, case.params, out, workspace)
        for turn in range(50):
            x[...] = turn % 3
            x[::2] += 2
            run()
            run()
            low, high = (x[row] for row in (1, 0))
            assert cp.allclose(out["mean"], low + 2 * ((shape[0] + 1) // 2) / shape[0], rtol=1e-4), shape
            assert (out["y"][0] > 0).all(), shape
            assert (high > low).all()
        assert not workspace.any()
