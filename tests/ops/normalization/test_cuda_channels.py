"""Channels first on CUDA: a block takes a channel that its registers hold."""

from __future__ import annotations

from pathlib import Path

import pytest

import ops
from ops import FLOATS, dtype_info
from ops.normalization import cuda
from ops.normalization.cuda import ALONE_THREADS, PACK_BYTES, WARP, View
from tests.ops.attempts import case_of, complaint, inputs_of

IMAGES = (1, 2, 5, 16, 32, 99, 256)
CHANNELS = (1, 2, 31, 256, 2048)
POSTS = (2, 7, 49, 196, 1089, 3136, 65_536, 1 << 20)


def device(monkeypatch: pytest.MonkeyPatch, multiprocessors: int, shared_bytes: int = 227 << 10) -> None:
    """A device of so many multiprocessors, with so much shared memory a block."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: multiprocessors)
    monkeypatch.setattr(cuda, "shared_memory_bytes", lambda: shared_bytes)


@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("adds", [False, True])
def test_a_block_holds_its_channel(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, dtype: str, adds: bool
) -> None:
    """Threads times packs cover the channel that a block takes alone, by a kernel that is compiled for them."""
    device(monkeypatch, multiprocessors)
    info = dtype_info(dtype)
    for view in (View(images, channels, post) for images in IMAGES for channels in CHANNELS for post in POSTS):
        for width in (
            width for width in (1, 2, 4, 8) if width * info.itemsize <= PACK_BYTES and view.post % width == 0
        ):
            found = cuda._plan_alone(view, width * info.itemsize, width, adds=adds)
            if found is None:
                continue
            packs, threads = found
            assert packs * threads >= view.images * view.post // width, view
            assert threads % WARP == 0 < threads <= ALONE_THREADS[packs], view
            name = f"normalize_alone<{info.ctype}, {width}, {packs}, {str(adds).lower()}>"
            assert name in cuda.SOURCE.expressions, view


def test_blocks_of_the_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many channels have small blocks, few ones and those with an addend of long packs larger ones."""
    device(monkeypatch, 132)
    assert cuda._plan_alone(View(32, 2048, 49), 4, 1, adds=True) == (7, 224)
    assert cuda._plan_alone(View(32, 1024, 196), 8, 4, adds=False) == (7, 224)
    assert cuda._plan_alone(View(32, 1024, 196), 16, 4, adds=True) == (4, 416)
    assert cuda._plan_alone(View(2, 256, 3136), 16, 4, adds=False) == (4, 416)
    assert cuda._plan_alone(View(32, 512, 784), 16, 4, adds=False) is None


def test_host_and_device_agree_on_threads() -> None:
    """The kernels are compiled for as many threads, packs and blocks as the host counts on."""
    text = (Path(ops.__file__).parent / "normalization" / "kernels.cu").read_text(encoding="utf-8")
    assert f"ALONE_THREADS = P == 7 ? {ALONE_THREADS[7]} : {ALONE_THREADS[4]};" in text


def attempts(shape: tuple[int, ...], dtype: str) -> None:
    """With and without an addend, moving statistics and a view that begins somewhere."""
    for adds, layout in ((False, None), (True, None), (True, "offset")):
        moving = {"moving_mean": shape[1:2], "moving_variance": shape[1:2]} if adds else {}
        case = case_of("normalization", {"x": shape} | moving | ({"add_to_output": shape} if adds else {}), dtype)
        assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == ""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(32, 40, 7, 7), (31, 600, 49), (9, 5, 14, 14), (3, 450, 98), (1, 3, 1792), (2, 2, 1024), (64, 401, 3)]
)
def test_channels_of_a_block_are_right(shape: tuple[int, ...], dtype: str) -> None:
    """Images that begin anywhere, threads that hold fewer packs than others."""
    attempts(shape, dtype)
