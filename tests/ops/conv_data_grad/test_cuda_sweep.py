"""1x1 convolutions in 16 bits by sweeping: how blocks share the work, and on a GPU every tile, ring and edge."""

from __future__ import annotations

from itertools import product

import pytest

from opgauge.ops._cuda.gemm import gemm, persistent
from opgauge.ops._cuda.gemm.hopper import LARGEST_BLOCK
from opgauge.ops._cuda.gemm.persistent import BLOCKS, FIRST, LAST, MULTIPROCESSOR, RESERVED
from tests.ops.conv_data_grad.trial import Size, in_every_way, judge_of

TALL_DEPTHS = (1024, 256, 64)
"""Depths from which tiles have 256 rows."""
SIZES: tuple[Size, ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 192, 6, 10), (128, 192, 1, 1), 1),
    ((5, 256, 6, 12), (128, 128, 1, 1), 2),
    ((3, 256, 200), (256, 256, 1), 1),
    ((3, 128, 200), (448, 128, 1), 1),
)
"""Vectors of eight and of four, images that end within a tile, depths of one to seven stages, groups."""


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("tall", TALL_DEPTHS)
def test_blocks_fit(tall: int, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's tile divides the stationary factor, and its shared memory fits a multiprocessor."""
    monkeypatch.setattr(persistent, "TALL_DEPTH", tall)
    for depth, there in product((64, 128, 256, 512), (64, 192, 256, 2048)):
        tile = persistent._tile((6272, there, depth) if last else (there, 6272, depth), last=last)
        assert tile in (LAST if last else FIRST)
        assert there % (64 * tile[1 if last else 0]) == 0
        for slots in {1, persistent._slots(tile, depth, last=last)}:
            shared = persistent._shared_bytes(tile, depth, slots, last=last)
            assert shared <= LARGEST_BLOCK
            assert tile in BLOCKS
            assert MULTIPROCESSOR // (shared + RESERVED) >= 1


@pytest.mark.parametrize(
    ("rows", "depth", "tile"), [(64, 64, (1, 2)), (256, 64, (2, 2)), (512, 256, (4, 2)), (1024, 512, (2, 2))]
)
def test_deep_products_get_tall_tiles(rows: int, depth: int, tile: tuple[int, int]) -> None:
    """By default depth decides on the tile, within the rows and the shared memory there are."""
    assert persistent._tile((rows, 6272, depth), last=False) == tile


@pytest.mark.parametrize("last", [False, True])
def test_two_blocks_of_depth_128_bring_addends_ahead(last: bool) -> None:
    """With an addend's whole tile, two blocks are exactly what a multiprocessor has shared memory for."""
    assert persistent._slots((2, 2), 128, last=last) == 2
    assert MULTIPROCESSOR // (persistent._shared_bytes((2, 2), 128, 2, last=last) + RESERVED) == 2


@in_every_way(SIZES)
def test_every_choice_is_right(size: Size, dtype: str, layout: str, add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with one tile and with many, which go around the ring, leave what the reference has."""
    judge = judge_of(size, dtype, layout, add=add)
    for tall, processors, few in product(TALL_DEPTHS, (1, 132), (False, True)):
        with monkeypatch.context() as patch:
            patch.setattr(gemm, "ping_pong_fits", lambda *_, **__: False)
            patch.setattr(gemm, "cooperative_pays", lambda *_, **__: False)
            patch.setattr(gemm, "cooperative_images_fit", lambda *_: False)
            patch.setattr(persistent, "TALL_DEPTH", tall)
            patch.setattr(persistent, "BLOCKS", dict.fromkeys(BLOCKS, 1))
            patch.setattr(persistent, "multiprocessors", lambda processors=processors: processors)
            if few:  # as where shared memory holds no tile of the addend
                patch.setattr(persistent, "_slots", lambda *_, **__: 1)
            reason = judge()
        assert (tall, processors, few, reason) == (tall, processors, few, "")


def test_the_old_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths that 64 does not divide, great depths and other devices are not supported."""
    monkeypatch.setattr(persistent, "hopper_fits", lambda *_: True)
    size = (256, 6272, 64)
    assert persistent.persistent_fits("float16", size, last=False)
    assert persistent.persistent_fits("float16", size, last=True)
    assert not persistent.persistent_fits("float16", (96, 6272, 64), last=False)
    assert persistent.persistent_fits("float16", (96, 6272, 64), last=True)
    assert not persistent.persistent_fits("float16", (6272, 96, 64), last=True)
    assert not persistent.persistent_fits("float16", (256, 6272, 96), last=False)
    assert not persistent.persistent_fits("float16", (256, 6272, 1024), last=False)
    monkeypatch.setattr(persistent, "hopper_fits", lambda *_: False)
    assert not persistent.persistent_fits("float16", size, last=False)
