"""1x1 convolutions in 16 bits, channels first, by tensor maps: on a GPU every ring, edge and two images of a tile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from ops._core import gemm, gemm_turns
from ops._core.gemm import Matrix
from ops._core.gemm_hopper import DTYPES
from ops._core.tuning import override
from tests.ops.conv_data_grad.trial import Size, judge_of

SIZES: tuple[Size, ...] = (
    ((4, 256, 8, 8), (64, 256, 1, 1), 1),
    ((4, 256, 8, 10), (64, 256, 1, 1), 1),
    ((7, 512, 4, 20), (128, 512, 1, 1), 1),
    ((3, 1024, 16, 13), (512, 512, 1, 1), 2),
    ((5, 512, 112), (192, 512, 1), 1),
    ((9, 1536, 6, 16), (384, 768, 1, 1), 2),
    ((33, 512, 28, 28), (256, 512, 1, 1), 1),
)


def at(address: int) -> Any:
    """An array that lies there."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def matrices_of(size: tuple[int, int, int], pixels: int) -> tuple[Matrix, Matrix, Matrix]:
    """Of (channels, all pixels, depth): the filter, dy and d, where packs of 16 bytes may lie."""
    channels, _, depth = size
    image = Matrix(at(1024), pixels, image=depth * pixels, post=pixels)
    return Matrix(at(2048), channels), image, replace(image, image=channels * pixels)


@pytest.mark.parametrize(
    ("size", "pixels", "fits"),
    [
        ((512, 25088, 256), 784, True),
        ((256, 100352, 64), 3136, True),
        ((256, 100352, 192), 3136, True),
        ((512, 25088, 512), 784, False),
        ((512, 25088, 96), 784, False),
        ((192, 25088, 256), 784, False),
        ((1024, 6272, 256), 196, False),
        ((512, 25600, 256), 200, False),
        ((512, 1536, 256), 48, False),
    ],
)
def test_images_are_of_whole_lines(
    size: tuple[int, int, int], pixels: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of 16 pixels a warp and of a tile at least pass by, of depths that fit and full shares of channels."""
    monkeypatch.setattr(gemm_turns, "streams", lambda *_: True)
    monkeypatch.setattr(gemm_turns, "multiprocessors", lambda: 132)
    assert gemm_turns.images_pass("float16", matrices_of(size, pixels), size, 1) is fits


def test_other_places_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that come last, odd addresses, rows with gaps and other devices are for other kernels."""
    monkeypatch.setattr(gemm_turns, "streams", lambda *_: True)
    monkeypatch.setattr(gemm_turns, "multiprocessors", lambda: 132)
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
        assert not gemm_turns.images_pass("float16", others, size, 1)
    monkeypatch.setattr(gemm_turns, "streams", lambda *_: False)
    assert not gemm_turns.images_pass("float16", (a, b, d), size, 1)


def test_few_tiles_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks have few tiles each, as in a small batch, they do not wait for so much of the filter."""
    monkeypatch.setattr(gemm_turns, "streams", lambda *_: True)
    size = (256, 6272, 64)
    for processors, pays in ((132, False), (24, True)):
        monkeypatch.setattr(gemm_turns, "multiprocessors", lambda processors=processors: processors)
        assert gemm_turns.images_pass("float16", matrices_of(size, 3136), size, 1) is pays


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_choice_is_right(size: Size, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with one tile and with many, which go around the ring, leave what the reference has."""
    judge = judge_of(size, dtype, "channels_first", add=False)
    asked = []
    real = gemm_turns.pass_images

    def noted(*given: Any) -> Any:
        asked.append(given)
        return real(*given)

    monkeypatch.setattr(gemm, "pass_images", noted)
    for processors, in_turn in product((1, 2, 5), (0, 256)):
        with override({"gemm_turns.images_in_turn": in_turn}):
            monkeypatch.setattr(gemm_turns, "multiprocessors", lambda processors=processors: processors)
            assert (processors, in_turn, judge()) == (processors, in_turn, "")
    assert asked
