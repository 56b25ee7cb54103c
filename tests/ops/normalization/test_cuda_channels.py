"""Channels first on CUDA: a channel is a block's, or many blocks', which leave the workspace as they found it."""

from __future__ import annotations

import pytest

from opgauge.ops import FLOATS, dtype_info, find_kernel
from opgauge.ops._core.tuning import override
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops.normalization import channels_first, channels_first_plan
from opgauge.ops.normalization.call import VECTOR_BYTES, View
from opgauge.ops.normalization.channels_first_plan import (
    MOST_SHARING,
    MOST_STAGES,
    READERS,
    SHARING_STATIC_BYTES,
    SHARING_THREADS,
    WRITTEN,
    GroupLayout,
)
from tests.ops.attempts import case_of, complaint, inputs_of

IMAGES = (1, 2, 5, 16, 32, 99, 256)
CHANNELS = (1, 2, 31, 256, 2048)
POSTS = (2, 7, 49, 196, 1089, 3136, 65_536, 1 << 20)


def device(monkeypatch: pytest.MonkeyPatch, multiprocessors: int, shared_bytes: int = 227 << 10) -> None:
    """A device of so many multiprocessors, with so much shared memory a block."""
    for module in (channels_first, channels_first_plan):
        monkeypatch.setattr(module, "multiprocessors", lambda: multiprocessors)
        monkeypatch.setattr(module, "shared_memory_bytes", lambda: shared_bytes)


@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("adds", [False, True])
def test_a_block_holds_its_channel(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, dtype: str, adds: bool
) -> None:
    """Threads times vectors cover the channel that a block takes alone, by a kernel that is compiled for them."""
    device(monkeypatch, multiprocessors)
    info = dtype_info(dtype)
    for view in (View(images, channels, post) for images in IMAGES for channels in CHANNELS for post in POSTS):
        for width in (
            width for width in (1, 2, 4, 8) if width * info.itemsize <= VECTOR_BYTES and view.post % width == 0
        ):
            found = channels_first_plan.plan_alone(view, width * info.itemsize, width, adds=adds)
            if found is None:
                continue
            vectors, threads, together = found
            assert vectors * threads >= view.images * view.post // width, view
            most = channels_first_plan.alone_threads(vectors, width)
            assert max(WARP, threads * together) % WARP == 0 < threads * together <= most, view
            assert threads % WARP == 0 or threads & (threads - 1) == 0, view
            assert together == 1 or (threads <= WARP and threads & (threads - 1) == 0), view
            name = f"normalize_alone<{info.ctype}, {width}, {vectors}, {str(adds).lower()}>"
            assert name in channels_first.SOURCE.expressions, view


@pytest.mark.parametrize(
    ("view", "vector_bytes", "width", "adds", "expected"),
    [
        # many channels have small blocks, few ones and those with an addend of long vectors larger ones
        (View(32, 2048, 49), 4, 1, True, (7, 224, 1)),
        (View(32, 1024, 196), 8, 4, False, (7, 224, 1)),
        (View(32, 1024, 196), 16, 4, True, (4, 416, 1)),
        (View(2, 256, 3136), 16, 4, False, (4, 416, 1)),
        (View(32, 512, 784), 16, 4, False, None),
        # one vector per thread where a warp holds a channel, and of few channels in long vectors
        (View(1, 5, 64), 16, 4, False, (1, 16, 1)),
        (View(4, 64, 64), 16, 4, False, (4, 32, 1)),
        (View(8, 64, 256), 16, 8, True, (1, 256, 1)),
        (View(8, 512, 256), 16, 8, False, (4, 64, 1)),
        # long channels have seven vectors a thread, and larger blocks of single elements
        (View(8, 512, 784), 16, 8, False, (7, 128, 1)),
        (View(3, 2, 1023), 2, 1, False, (4, 768, 1)),
        (View(2, 3, 3025), 4, 1, True, (7, 896, 1)),
        (View(2, 3, 3025), 8, 1, False, (7, 896, 1)),
        (View(2, 3, 3025), 8, 1, True, None),
        # several channels of a block, where there are many of few vectors
        (View(4, 2000, 16), 16, 4, True, (1, 16, 8)),
        (View(8, 2048, 16), 16, 4, True, (1, 32, 4)),
        (View(2, 1601, 16), 16, 4, False, (1, 8, 16)),
        (View(1, 2048, 4), 16, 4, False, (1, 1, 32)),
    ],
)
def test_a_channel_has_its_block(
    monkeypatch: pytest.MonkeyPatch,
    view: View,
    vector_bytes: int,
    width: int,
    adds: bool,
    expected: tuple[int, int, int] | None,
) -> None:
    """Vectors per thread, and threads, of a block that normalizes a channel alone."""
    device(monkeypatch, 132)
    assert channels_first_plan.plan_alone(view, vector_bytes, width, adds=adds) == expected


@pytest.mark.parametrize("multiprocessors", [1, 20, 132, 200])
@pytest.mark.parametrize("shared_bytes", [64 << 10, 227 << 10])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_groups_share_channels(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, shared_bytes: int, width: int
) -> None:
    """Blocks that wait for each other are resident, have vectors each, threads for those and room for their slices."""
    device(monkeypatch, multiprocessors, shared_bytes)
    planned = 0
    for view in (View(images, channels, post) for images in IMAGES for channels in CHANNELS for post in POSTS):
        how = GroupLayout.of(view, width) if view.post % width == 0 else None
        if how is None:
            continue
        planned += 1
        vectors = view.images * view.post // width
        assert how.across * how.splits <= min(multiprocessors, MOST_SHARING), view
        assert how.across <= view.channels, view
        assert how.share * (how.splits - 1) < vectors <= how.share * how.splits, view
        assert READERS + WARP < how.threads <= SHARING_THREADS, view
        assert (how.threads - READERS - WARP) * WRITTEN >= how.share, view
        assert 1 <= how.stages <= MOST_STAGES, view
        assert how.stages * how.share * VECTOR_BYTES <= shared_bytes - SHARING_STATIC_BYTES, view
    assert planned


def test_shares_of_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of an H200 share a channel of 4 MB; of 1.6 MB, groups take one each."""
    device(monkeypatch, 132)
    large, half = GroupLayout.of(View(16, 32, 65_536), 4), GroupLayout.of(View(256, 256, 3136), 8)
    assert large == GroupLayout(1, 132, 1986, 7)
    assert half == GroupLayout(3, 44, 2281, 6)


def attempts(shape: tuple[int, ...], dtype: str) -> None:
    """With and without an addend, moving statistics and a view that begins somewhere."""
    for adds, layout in ((False, None), (True, None), (True, "offset")):
        moving = {"moving_mean": shape[1:2], "moving_variance": shape[1:2]} if adds else {}
        case = case_of("normalization", {"x": shape} | moving | ({"add_to_output": shape} if adds else {}), dtype)
        assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape",
    [
        *((32, 40, 7, 7), (31, 600, 49), (9, 5, 14, 14), (3, 450, 98), (1, 3, 1792), (2, 2, 1024), (64, 401, 3)),
        *((2, 1601, 16), (2, 5237, 6)),
    ],
)
def test_channels_of_a_block_are_right(shape: tuple[int, ...], dtype: str) -> None:
    """Images that begin anywhere, threads that hold fewer vectors than others."""
    attempts(shape, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 5, 64), (127, 2, 63), (32, 3, 33, 33), (9, 2, 5001)])
def test_short_and_unaligned_channels_are_right(shape: tuple[int, ...], dtype: str) -> None:
    """One vector per thread, and clusters that take channels element by element."""
    attempts(shape, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("multiprocessors", "shared_bytes"), [(132, 227 << 10), (7, 64 << 10), (40, 20 << 10), (1, 99 << 10)]
)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 5, 4096), (7, 33, 1024), (2, 1, 2048), (5, 70, 40, 8), (1, 12, 2000)])
def test_shared_channels_are_right(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str, multiprocessors: int, shared_bytes: int
) -> None:
    """However many blocks share a channel, more or fewer channels than there are stages."""
    monkeypatch.setattr(channels_first, "_alone", lambda *_: None)
    monkeypatch.setattr(channels_first, "_once", lambda *_: None)
    device(monkeypatch, multiprocessors, shared_bytes)
    attempts(shape, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 5, 4097), (1, 3, 100_003), (70, 2, 1999), (2, 300, 1024)])
def test_two_launches_are_right(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str) -> None:
    """Statistics, then y, where nothing is kept."""
    for name in ("_alone", "_once", "_shared"):
        monkeypatch.setattr(channels_first, name, lambda *_: None)
    attempts(shape, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("megabytes", [0, 5, 16])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(9, 96, 56, 56), (97, 300, 7, 15)])
def test_inference_is_right(shape: tuple[int, ...], dtype: str, megabytes: int) -> None:
    """Whichever blocks write lines that are kept, by vectors or element by element, with and without an addend."""
    channels = shape[1:2]
    shapes = {"x": shape, "moving_mean": channels, "moving_variance": channels}
    with override({"pointwise.kept_megabytes": megabytes}):
        for adds, layout in ((False, None), (True, None), (True, "offset")):
            case = case_of("normalization", shapes | ({"add_to_output": shape} if adds else {}), dtype, training=False)
            assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""


@pytest.mark.gpu
def test_shared_channels_reset_their_partials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What blocks published each other in one launch is not taken for the next one's, whatever its shape."""
    import cupy as cp

    monkeypatch.setattr(channels_first, "_alone", lambda *_: None)
    monkeypatch.setattr(channels_first, "_once", lambda *_: None)
    workspace = cp.zeros(4 << 20, cp.uint8)
    for shape in ((16, 32, 65_536), (32, 256, 3136), (7, 3, 4096), (8, 300, 784), (16, 32, 65_536)):
        case = case_of("normalization", {"x": shape}, "float32")
        kernel = find_kernel("normalization", "optimized", "cuda", "float32")
        assert kernel.workspace is not None
        assert kernel.workspace(case.resolved, case.params) <= workspace.size
        x = cp.empty(shape, cp.float32)
        out = {name: cp.empty(spec.shape, cp.float32) for name, spec in case.resolved.outputs.items()}
        ones, zeros = cp.ones(shape[1:2], cp.float32), cp.zeros(shape[1:2], cp.float32)
        run = kernel.bind({"x": x, "gamma": ones, "beta": zeros}, case.params, out, workspace)
        for turn in range(20):
            x[...] = turn % 3
            x[::2] += 2
            run()
            run()
            middle = turn % 3 + 2 * ((shape[0] + 1) // 2) / shape[0]
            assert cp.allclose(out["mean"], middle, rtol=1e-4), shape
            assert (out["y"][0] > 0).all(), shape
        assert not workspace.any()
