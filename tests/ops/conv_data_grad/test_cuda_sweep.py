"""1x1 convolutions in 16 bits by sweeping: how blocks share the work, and on a GPU every tile, ring and edge."""

from __future__ import annotations

from itertools import product

import pytest

from harness.measure import timer_for
from harness.worker.attempt import Attempt
from harness.worker.verify import expect
from ops import find_kernel
from ops._core import gemm_sweep
from ops._core.gemm_hopper import DTYPES
from ops._core.gemm_sweep import BLOCKS, LARGEST_BLOCK, MULTIPROCESSOR, RESERVED, SOURCE
from ops._core.tuning import override
from tests.ops.attempts import inputs_of
from tests.ops.conv_data_grad.test_conv_data_grad import Convolution

CHOICES = tuple(product((64, 128, 256), (64, 128)))
SIZES: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
    ((2, 256, 5, 8), (64, 256, 1, 1), 1),
    ((7, 192, 6, 10), (128, 192, 1, 1), 1),
    ((5, 256, 6, 12), (128, 128, 1, 1), 2),
    ((3, 128, 200), (448, 128, 1), 1),
)
"""Packs of eight and of four, images that end within a tile, depths of one to seven stages, groups."""


def test_hopper_spills_nothing() -> None:
    """Every kernel compiles for the one architecture that runs it, within its registers."""
    compiled = SOURCE.compile("sm_90a")
    assert set(compiled.names) == set(SOURCE.expressions)
    assert not any(used.spill_bytes for used in compiled.resources.values())


@pytest.mark.parametrize(("rows", "columns"), CHOICES)
def test_blocks_fit(rows: int, columns: int) -> None:
    """A block never takes more rows than there are, nor more shared memory than a multiprocessor has."""
    wide = columns // 64
    with override({"gemm_sweep.rows": rows}):
        for depth, there in product((64, 128, 256, 512), (64, 192, 256, 2048)):
            high = gemm_sweep._high(there, depth, wide)
            shared = gemm_sweep._shared_bytes(high, wide, depth)
            assert there % (64 * high) == 0
            assert shared <= LARGEST_BLOCK
            assert (high, wide) in BLOCKS
            assert MULTIPROCESSOR // (shared + RESERVED) >= 1


@pytest.mark.gpu
@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize(("rows", "columns"), CHOICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_choice_is_right(
    dtype: str, rows: int, columns: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks with one tile and with many, which go around the ring, leave what the reference has."""
    monkeypatch.setattr(gemm_sweep, "multiprocessors", lambda: processors)
    asked = {"gemm_sweep.rows": rows, "gemm_sweep.columns": columns, "gemm_sweep.blocks_per_multiprocessor": 1}
    timer = timer_for("cuda")
    for x, weight, groups in SIZES:
        case = Convolution(x, weight, params={"groups": groups}).case(dtype)
        inputs = inputs_of(case)
        kernel = find_kernel(case.op, "optimized", "cuda", dtype)
        with timer.session("numpy"), override(asked):
            assert Attempt(case, kernel, inputs.values, timer).judge(expect(case, inputs)).reason == ""


def test_the_old_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rows to keep, with rows or depths that 64 does not divide, and elsewhere, nothing sweeps."""
    monkeypatch.setattr(gemm_sweep, "streams", lambda *_: True)
    size = (256, 6272, 64)
    assert gemm_sweep.sweeps("float16", size)
    assert not gemm_sweep.sweeps("float16", (96, 6272, 64))
    assert not gemm_sweep.sweeps("float16", (256, 6272, 96))
    with override({"gemm_sweep.rows": 0}):
        assert not gemm_sweep.sweeps("float16", size)
    monkeypatch.setattr(gemm_sweep, "streams", lambda *_: False)
    assert not gemm_sweep.sweeps("float16", size)
