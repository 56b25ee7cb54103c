"""1x1 convolutions in 16 bits by large tiles: on a GPU every shape, ring and edge."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from opgauge.ops._cuda.gemm import cooperative, gemm
from opgauge.ops._cuda.gemm.cooperative import SHAPES
from opgauge.ops._cuda.gemm.gemm import Matrix
from tests.ops.conv_data_grad.trial import Size, in_every_way, judge_of

SIZES: tuple[Size, ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 256, 6, 10), (128, 256, 1, 1), 1),
    ((5, 512, 6, 12), (256, 256, 1, 1), 2),
    ((3, 1024, 211), (448, 1024, 1), 1),
    ((9, 512, 7, 7), (512, 512, 1, 1), 1),
    ((3, 512, 14, 14), (128, 256, 1, 1), 2),
)
"""Pixels and images that end within a tile, depths of one to eight stages, groups."""


@pytest.mark.parametrize(
    ("size", "shape"), [((1568, 2048, 512), (1, 208)), ((6272, 1024, 512), (2, 192)), ((6272, 128, 512), (1, 208))]
)
def test_tiles_leave_few_multiprocessors_idle(
    size: tuple[int, int, int], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the sites of ResNet-50 each multiprocessor of an H200 has one tile; channels are taken in full."""
    monkeypatch.setattr(cooperative, "multiprocessors", lambda: 132)
    assert cooperative._shape(size) == shape
    assert cooperative._waves(shape, size) == 1


@pytest.mark.parametrize(
    ("pixels", "images", "fit"),
    [(49, 32, True), (196, 32, True), (81, 32, False), (256, 32, False), (4, 32, False), (40, 65536, False)],
)
def test_images_fill_tiles(pixels: int, images: int, fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are taken whole where they leave little of a tile idle, and where there is a block for each."""
    monkeypatch.setattr(cooperative, "hopper_fits", lambda *_: True)
    assert cooperative.cooperative_images_fit("float16", (2048, images * pixels, 512), pixels) is fit
    assert not cooperative.cooperative_images_fit("float16", (2048 + 64, images * pixels, 512), pixels)


def test_tiles_are_for_great_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a filter can be kept, only sums of one tile a multiprocessor go by tiles."""
    monkeypatch.setattr(cooperative, "hopper_fits", lambda *_: True)
    monkeypatch.setattr(cooperative, "multiprocessors", lambda: 132)
    one, two = (6272, 1024, 256), (25088, 512, 256)
    assert cooperative.cooperative_pays("float16", one, 1, only=False, added=True)
    assert not cooperative.cooperative_pays("float16", one, 1, only=False, added=False)
    assert not cooperative.cooperative_pays("float16", two, 1, only=False, added=True)
    assert cooperative.cooperative_pays("float16", two, 1, only=True, added=False)
    assert not cooperative.cooperative_pays("float16", (6272, 1024, 128), 1, only=True, added=True)
    assert not cooperative.cooperative_pays("float16", (6272, 1024 + 64, 512), 1, only=True, added=True)


def test_images_are_not_taken_for_rows() -> None:
    """A first factor along the depth is pixels only where the result has no images."""
    factor, image = Matrix(np.zeros((256, 256)), 256, along=True), Matrix(np.zeros((2, 256, 64)), 64, 256 * 64, 64)
    assert gemm._persistent(factor, image, image, (256, 128, 256), None, 1) is None


@in_every_way(SIZES)
def test_every_choice_is_right(size: Size, dtype: str, layout: str, add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with one tile and with many, which go around the ring, leave what the reference has."""
    judge = judge_of(size, dtype, layout, add=add)
    for processors, shape in product((2, 6, 132), SHAPES[True]):
        with monkeypatch.context() as patch:
            patch.setattr(gemm, "ping_pong_fits", lambda *_, **__: False)
            patch.setattr(cooperative, "LEAST_DEPTH", 64)
            patch.setattr(cooperative, "multiprocessors", lambda processors=processors: processors)
            patch.setitem(SHAPES, True, (shape,))
            reason = judge()
        assert (processors, shape, reason) == (processors, shape, "")
