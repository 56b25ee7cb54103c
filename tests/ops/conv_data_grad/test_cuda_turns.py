"""1x1 convolutions in 16 bits by groups in turn: what a block keeps, and on a GPU every tile, ring and edge."""

from __future__ import annotations

from itertools import product

import pytest

from opgauge.ops._cuda.gemm import gemm, ping_pong
from opgauge.ops._cuda.gemm.hopper import LARGEST_BLOCK
from tests.ops.conv_data_grad.trial import Size, in_every_way, judge_of

SIZES: tuple[Size, ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 256, 6, 10), (128, 256, 1, 1), 1),
    ((5, 512, 6, 12), (128, 256, 1, 1), 2),
    ((3, 512, 200), (256, 512, 1), 1),
    ((3, 128, 211), (448, 128, 1), 1),
    ((9, 256, 7, 7), (512, 256, 1, 1), 1),
    ((4, 256, 14, 14), (192, 256, 1, 1), 1),
)
"""Vectors of eight and of four, images and pixels that end within a tile, depths of one to eight stages, groups."""


def test_blocks_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block never keeps more than there is, nor takes more shared memory than it may."""
    monkeypatch.setattr(ping_pong, "hopper_fits", lambda *_: True)
    found = set()
    monkeypatch.setattr(ping_pong, "LEAST_DEPTH", 64)
    for last, depth, there in product((False, True), (64, 96, 128, 256, 512, 1024), (64, 128, 192, 256, 2048)):
        size = (6272, there, depth) if last else (there, 6272, depth)
        if ping_pong.ping_pong_fits("float16", size, 1, last=last, added=False):
            found.add((depth, there))
            assert ping_pong._shared_bytes(depth) <= LARGEST_BLOCK
    assert found == set(product((64, 128, 256), (256, 2048)))


def test_short_depths_and_other_devices_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the depth that pays, and where there are no such matrix units, something else multiplies."""
    monkeypatch.setattr(ping_pong, "hopper_fits", lambda *_: True)
    assert ping_pong.ping_pong_fits("float16", (1024, 6272, 256), 1, last=False, added=False)
    assert not ping_pong.ping_pong_fits("float16", (1024, 6272, 128), 1, last=False, added=False)
    monkeypatch.setattr(ping_pong, "hopper_fits", lambda *_: False)
    assert not ping_pong.ping_pong_fits("float16", (1024, 6272, 256), 1, last=False, added=False)


@pytest.mark.parametrize(
    ("size", "groups", "added", "pays"),
    [
        ((25088, 512, 128), 1, False, True),
        ((25088, 512, 128), 1, True, False),
        ((25088, 512, 64), 1, False, False),
        ((1568, 512, 128), 1, False, False),
        ((8448, 512, 128), 2, False, True),
        ((8448, 512, 128), 1, False, False),
    ],
)
def test_channels_last_pay_earlier(
    size: tuple[int, int, int], groups: int, added: bool, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter depth pays where channels come last, unless there is an addend or blocks have few tiles."""
    monkeypatch.setattr(ping_pong, "hopper_fits", lambda *_: True)
    monkeypatch.setattr(ping_pong, "multiprocessors", lambda: 132)
    assert ping_pong.ping_pong_fits("float16", size, groups, last=True, added=added) is pays


@in_every_way(SIZES)
def test_every_choice_is_right(size: Size, dtype: str, layout: str, add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with one tile and with many, which go around the ring, leave what the reference has."""
    judge = judge_of(size, dtype, layout, add=add)
    for processors in (1, 3, 132):
        with monkeypatch.context() as patch:
            patch.setattr(ping_pong, "LEAST_DEPTH", 64)
            patch.setattr(ping_pong, "multiprocessors", lambda processors=processors: processors)
            patch.setattr(gemm, "cooperative_pays", lambda *_, **__: False)
            reason = judge()
        assert (processors, reason) == (processors, "")
