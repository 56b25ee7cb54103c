"""1x1 convolutions in 16 bits on a GPU, by each template for Hopper: every tile, ring and edge of its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.verify import expect
from opgauge.ops import find_kernel
from opgauge.ops._cuda import source
from opgauge.ops._cuda.gemm import hopper
from opgauge.ops._cuda.gemm.select import DTYPES
from opgauge.ops.conv_data_grad import cuda
from tests.ops.attempts import complaint, inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import LAYOUTS, Convolution

Size = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shapes of x and of the filter, and groups."""
PING_PONG: tuple[Size, ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 256, 6, 10), (128, 256, 1, 1), 1),
    ((5, 512, 6, 12), (128, 256, 1, 1), 2),
    ((3, 512, 200), (256, 512, 1), 1),
    ((3, 128, 211), (448, 128, 1), 1),
    ((9, 256, 7, 7), (512, 256, 1, 1), 1),
    ((4, 256, 14, 14), (192, 256, 1, 1), 1),
)
"""Vectors of eight and of four, images and pixels that end within a tile, depths of one to eight stages, groups."""
PERSISTENT: tuple[Size, ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 192, 6, 10), (128, 192, 1, 1), 1),
    ((5, 256, 6, 12), (128, 128, 1, 1), 2),
    ((3, 256, 200), (256, 256, 1), 1),
    ((3, 128, 200), (448, 128, 1), 1),
)
"""Vectors of eight and of four, images that end within a tile, depths of one to seven stages, groups."""
COOPERATIVE: tuple[Size, ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 256, 6, 10), (128, 256, 1, 1), 1),
    ((5, 512, 6, 12), (256, 256, 1, 1), 2),
    ((3, 1024, 211), (448, 1024, 1), 1),
    ((9, 512, 7, 7), (512, 512, 1, 1), 1),
    ((3, 512, 14, 14), (128, 256, 1, 1), 2),
)
"""Pixels and images that end within a tile, depths of one to eight stages, groups."""
STATIONARY_REGISTERS: tuple[Size, ...] = (
    ((4, 128, 8, 8), (64, 128, 1, 1), 1),
    ((7, 128, 120), (128, 128, 1), 1),
    ((5, 256, 8, 30), (192, 256, 1, 1), 1),
    ((3, 512, 16, 28), (512, 256, 1, 1), 2),
    ((9, 768, 8, 7), (128, 384, 1, 1), 2),
    ((33, 512, 28, 28), (256, 512, 1, 1), 1),
)
"""Images of whole strips and of others, depths of one to four stages, groups."""
FEW_TILES: tuple[Size, ...] = (
    ((1, 96, 7, 8), (640, 96, 1, 1), 1),
    ((32, 1024, 1, 1), (2048, 1024, 1, 1), 1),
    ((3, 264, 5, 5), (1032, 264, 1, 1), 1),
    ((2, 192, 4, 4), (2048, 96, 1, 1), 2),
    ((50, 100, 1, 1), (600, 100, 1, 1), 1),
)
"""Vectors of eight elements and of fewer, depths that do not divide evenly, single pixels, groups."""
TALL_DEPTHS = (1024, 256, 64)
"""Depths from which tiles of `persistent` have 256 rows."""


def in_every_way(
    sizes: Sequence[Size], layouts: Sequence[str] = LAYOUTS, added: Sequence[bool] = (False, True)
) -> Callable[[Any], Any]:
    """A test on a GPU of each size in each dtype and layout, with an addend and without."""

    def marked(test: Any) -> Any:
        for name, values in (("size", sizes), ("dtype", hopper.HALF_DTYPES), ("layout", layouts), ("add", added)):
            test = pytest.mark.parametrize(name, values)(test)
        return pytest.mark.gpu(test)

    return marked


def judge_of(size: Size, dtype: str, layout: str, *, add: bool) -> Callable[..., str]:
    """What tells why a template is wrong, on so many multiprocessors and with other constants; empty if it is right."""
    x, weight, groups = size
    case = Convolution(x, weight, add=add, params={"groups": groups}).case(dtype, layout)
    inputs = inputs_of(case)
    expected = expect(case, inputs)
    timer = timer_for("cuda")
    kernel = find_kernel(case.op, "optimized", "cuda", dtype)

    def judge(choices: Sequence[Any], multiprocessors: int, **constants: Any) -> str:
        with timer.session("numpy"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda, "direct_config", lambda *_: None)
            patch.setattr(cuda, "replaces_product", lambda *_: False)
            patch.setattr(cuda, "_split", lambda problem, _: problem)
            patch.setattr(source, "multiprocessors", lambda: multiprocessors)
            patch.setattr(hopper, "CHOICES", choices)
            for name, value in constants.items():
                patch.setattr(hopper, name, value)
            return Attempt(case, kernel, inputs.values, timer).judge(expected).reason

    return judge


@pytest.mark.gpu
@pytest.mark.parametrize("size", FEW_TILES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("add", [False, True])
def test_few_tiles_are_right(size: Size, dtype: str, layout: str, add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks that each sum a part of a long depth, and by small tiles."""
    x, weight, groups = size
    case = Convolution(x, weight, add=add, params={"groups": groups}).case(dtype, layout)
    monkeypatch.setattr(cuda, "replaces_product", lambda *_: False)
    inputs = inputs_of(case)
    for long in (512, 1 << 20):
        monkeypatch.setattr(cuda, "LONG", dict.fromkeys(DTYPES, long))
        assert (long, complaint(case, inputs, "optimized", None, "cuda")) == (long, "")


@in_every_way(PING_PONG)
def test_ping_pong_is_right(size: Size, dtype: str, layout: str, add: bool) -> None:
    """Blocks with one tile and with many, whose stages wrap around the ring, compute what the reference does."""
    judge = judge_of(size, dtype, layout, add=add)
    for processors in (1, 3, 132):
        assert (processors, judge((hopper._ping_pong,), processors, PING_PONG_DEPTH=64)) == (processors, "")


@in_every_way(PERSISTENT)
def test_persistent_is_right(size: Size, dtype: str, layout: str, add: bool) -> None:
    """The same for every tile, and with one slab of an addend in shared memory."""
    judge, one = judge_of(size, dtype, layout, add=add), {"BLOCKS": dict.fromkeys(hopper.BLOCKS, 1)}
    for tall, processors, few in product(TALL_DEPTHS, (1, 132), (False, True)):
        more = {"_slots": lambda *_, **__: 1} if few else {}
        reason = judge((hopper._persistent,), processors, TALL_DEPTH=tall, **one, **more)
        assert (tall, processors, few, reason) == (tall, processors, few, "")


@in_every_way(COOPERATIVE)
def test_cooperative_is_right(size: Size, dtype: str, layout: str, add: bool) -> None:
    """The same for every shape of a tile, with transposed images if channels are first."""
    judge, choices = judge_of(size, dtype, layout, add=add), (hopper._transposed, hopper._cooperative)
    for processors, tile in product((2, 6, 132), hopper.COOPERATIVE_TILES[True]):
        tiles = {True: (tile,), False: hopper.COOPERATIVE_TILES[False]}
        constants = {"COOPERATIVE_DEPTH": 64, "COOPERATIVE_TILES": tiles, "_fits_ping_pong": lambda *_: False}
        assert (processors, tile, judge(choices, processors, **constants)) == (processors, tile, "")


@in_every_way(STATIONARY_REGISTERS, ("channels_first",), (False,))
def test_a_stationary_registers_is_right(size: Size, dtype: str, layout: str, add: bool) -> None:
    """The same for strips, whose results are stored by TMA or streamed."""
    judge, chosen = judge_of(size, dtype, layout, add=add), []

    def choice(*problem: Any) -> Any:
        chosen.append(hopper._a_stationary_registers(*problem))
        return chosen[-1]

    for processors, sent in product((1, 2, 3, 5, 132), (-1, 128)):
        reason = judge((choice,), processors, FEWEST_TILES=1, SENT_MEGABYTES=sent)
        assert (processors, sent, reason) == (processors, sent, "")
    assert any(chosen)
