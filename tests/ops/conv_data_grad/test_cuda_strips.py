"""1x1 convolutions in 16 bits, channels first, by strips of images: on a GPU every depth and turn of the ring."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.ops._cuda.gemm import gemm, stationary_registers
from opgauge.ops._cuda.gemm.gemm import Matrix
from opgauge.ops._cuda.gemm.hopper import DTYPES
from tests.ops.conv_data_grad.trial import Size, judge_of

SIZES: tuple[Size, ...] = (
    ((4, 128, 8, 8), (64, 128, 1, 1), 1),
    ((7, 128, 120), (128, 128, 1), 1),
    ((5, 256, 8, 30), (192, 256, 1, 1), 1),
    ((3, 512, 16, 28), (512, 256, 1, 1), 2),
    ((9, 768, 8, 7), (128, 384, 1, 1), 2),
    ((33, 512, 28, 28), (256, 512, 1, 1), 1),
)
"""Images of whole strips and of others, depths of one to four stages, groups."""


def at(address: int) -> Any:
    """An array that lies there."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def matrices_of(size: tuple[int, int, int], pixels: int) -> tuple[Matrix, Matrix, Matrix]:
    """Of (channels, all pixels, depth): the filter, dy and d, where vectors of 16 bytes may lie."""
    channels, _, depth = size
    image = Matrix(at(1024), pixels, image=depth * pixels, post=pixels)
    return Matrix(at(2048), channels), image, replace(image, image=channels * pixels)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Plans as for an H200, wherever they are made."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(stationary_registers, "hopper_fits", lambda *_: True)
        monkeypatch.setattr(stationary_registers, "multiprocessors", lambda: 132)


@pytest.mark.parametrize(
    ("size", "pixels", "fits"),
    [
        ((512, 25088, 256), 784, True),
        ((256, 100352, 64), 3136, True),
        ((128, 100352, 192), 3136, True),
        ((512, 25088, 320), 784, False),
        ((512, 25088, 96), 784, False),
        ((576, 25088, 256), 784, False),
        ((512, 25344, 256), 792, True),
        ((512, 25216, 256), 788, False),
        ((512, 25600, 256), 80, False),
        ((512, 7840, 256), 784, False),
    ],
)
def test_images_are_of_strips(size: tuple[int, int, int], pixels: int, fits: bool) -> None:
    """Depths that registers keep, full shares of channels, nearly full strips of whole vectors, some for each block."""
    assert stationary_registers.a_stationary_registers_fits("float16", matrices_of(size, pixels), size, 1) is fits


def test_other_places_are_left() -> None:
    """Channels that come last, odd addresses and rows with gaps are for other kernels."""
    size = (512, 25088, 256)
    a, b, d = matrices_of(size, 784)
    for others in (
        (replace(a, along=True), b, d),
        (replace(a, array=at(2)), b, d),
        (a, replace(b, array=at(8)), d),
        (a, b, replace(d, array=at(4))),
        (a, replace(b, stride=800), d),
        (a, b, replace(d, stride=800)),
        (a, replace(b, post=0), d),
    ):
        assert not stationary_registers.a_stationary_registers_fits("float16", others, size, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_choice_is_right(size: Size, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with some strips and with many, which go around the ring, leave what the reference has."""
    judge = judge_of(size, dtype, "channels_first", add=False)
    asked = []
    real = stationary_registers.a_stationary_registers

    def noted(*given: Any) -> Any:
        asked.append(given)
        return real(*given)

    monkeypatch.setattr(gemm, "a_stationary_registers", noted)
    monkeypatch.setattr(stationary_registers, "FEWEST", 1)
    for processors, sent in product((1, 2, 3, 5, 132), (-1, 128)):
        monkeypatch.setattr(stationary_registers, "SENT_MEGABYTES", sent)
        monkeypatch.setattr(stationary_registers, "multiprocessors", lambda processors=processors: processors)
        assert (processors, sent, judge()) == (processors, sent, "")
    assert asked
