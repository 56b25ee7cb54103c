"""Launches of reductions by rows: what is covered, by how many threads, and what blocks send each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ops
from ops import find_kernel
from ops._core import reduction, tuning
from ops._core.axes import Reduction
from ops._core.reduction import LINE_PACKS, LONG_RESIDENT, THREADS, WARP
from ops.dot.cuda import ACCUMULATOR_BYTES
from ops.dot.op import DotParams
from ops.mean.op import MeanParams

MULTIPROCESSORS = 132
FLOAT = reduction.Functor("Dot<float>", 4, 4, np.zeros((), np.uint32))
ROWS = (1, 2, 3, 100, 300, 527, 528, 600, 4096)
LENGTHS = (1, 3, 4, 250, 1024, 1089, 4096, 4097, 65_537, 1 << 20)


@pytest.fixture(autouse=True)
def large_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 132 multiprocessors."""
    monkeypatch.setattr(reduction, "multiprocessors", lambda: MULTIPROCESSORS)


def launched(
    rows: int, length: int, shift: int = 0, *, columns: int = 1
) -> tuple[str, tuple[int, ...], tuple[Any, ...]]:
    """Kernel, grid and arguments with which rows of float32, or columns, are reduced."""
    found: list[Any] = []

    def function(expression: str) -> Any:
        return lambda grid, _, arguments: found.extend((expression, grid, arguments))

    data = SimpleNamespace(ptr=4096 + 4 * shift)
    x = SimpleNamespace(dtype=np.dtype(np.float32), data=data, nbytes=4 * rows * length * columns)
    source: Any = SimpleNamespace(function=function)
    layout, out = Reduction(rows, length, 1, 1, columns), SimpleNamespace(size=rows * columns)
    reduction.launch(source, FLOAT, layout, x, None, out, np.zeros(1 << 22, np.uint8))()
    return found[0], found[1], found[2]


@pytest.mark.parametrize("least_packs", [1, 2, 4, 8])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_blocks_cover_every_row(rows: int, length: int, least_packs: int) -> None:
    """Shares are whole lines, reach the row's end, and none is empty; rows of one block are all taken."""
    with tuning.override({"reduction.least_packs": least_packs}):
        kernel, grid, arguments = launched(rows, length)
    if kernel.startswith("reduce_small"):
        bits = int(arguments[-1])
        assert 1 << bits <= WARP
        assert reduction.SMALL_EACH << bits >= length
        assert grid[0] * reduction.SMALL_THREADS >= rows << bits
        return
    if kernel.startswith("reduce_tiny"):
        assert length == FLOAT.width * int(arguments[-1]) <= reduction.TINY_LENGTH
        assert grid[0] * min(reduction.SMALL_THREADS, rows) >= rows
        return
    if kernel.startswith("reduce_elements"):
        assert length in reduction.ELEMENTS
        assert grid[0] * THREADS >= rows * reduction.ELEMENTS_LANES
        return
    if kernel.startswith("reduce_rows"):
        lanes, threads = int(arguments[-1]), int(kernel.rsplit(", ")[-1].removesuffix(">"))
        assert lanes in {1 << power for power in range(10)}
        assert grid[0] * (threads // lanes) >= rows
        return
    share = int(arguments[-2])
    assert grid[0] == rows
    assert grid[1] > 1
    assert share % (LINE_PACKS * FLOAT.width) == 0
    assert share * (grid[1] - 1) < length <= share * grid[1]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_what_blocks_send_fits_the_workspace(rows: int, length: int) -> None:
    """All splits of a row but one send words of 32 bits with a flag of 32."""
    kernel, grid, _ = launched(rows, length)
    if kernel.startswith("reduce_long"):
        sent = rows * (grid[1] - 1) * 2 * FLOAT.accumulator_bytes
        assert sent <= reduction.workspace_bytes(Reduction(rows, length, 1, 1, 1), FLOAT.accumulator_bytes)


@pytest.mark.parametrize("blocks", [4, 16, 64, 128])
@pytest.mark.parametrize("rows", ROWS)
def test_blocks_that_wait_leave_the_device_room(rows: int, blocks: int) -> None:
    """Rows are shared only where one waiting block of each leaves others room, whatever is in force."""
    with tuning.override({"reduction.blocks_per_multiprocessor": blocks}):
        kernel, _, _ = launched(rows, 1 << 20)
    if kernel.startswith("reduce_long"):
        assert rows < LONG_RESIDENT * MULTIPROCESSORS


def test_host_and_device_agree_on_what_is_resident() -> None:
    """The kernel asks the compiler for as many blocks a multiprocessor as the host counts on."""
    text = (Path(ops.__file__).parent / "_include" / "reduce.cuh").read_text(encoding="utf-8")
    assert f"constexpr int LONG_RESIDENT = {LONG_RESIDENT};" in text
    assert "constexpr int LONG_BLOCKS = THREADS < LARGE_THREADS<F> ? LONG_RESIDENT : (F::TWO ? 2 : 1);" in text
    assert "__launch_bounds__(THREADS, LONG_BLOCKS<F, THREADS>) reduce_long(" in text


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("length", [1 << 23, (1 << 25) + 4, (1 << 26) - 1, 1 << 26])
def test_large_blocks_take_their_share_at_once(length: int, shift: int) -> None:
    """A single row of 32 MB or more: whole lines, two packs a thread, all of the row, and letters that fit."""
    kernel, grid, arguments = launched(1, length, shift)
    assert kernel.endswith(f", {reduction.LARGE_THREADS}>")
    share = int(arguments[-2])
    assert share % (LINE_PACKS * FLOAT.width) == 0
    assert share * (grid[1] - 1) < length <= share * grid[1]
    for first in range(0, length, share):
        begin, end = shift + first, shift + min(length, first + share)
        assert -(-end // FLOAT.width) - begin // FLOAT.width <= reduction.LARGE_PACKS
    sent = (grid[1] - 1) * 2 * FLOAT.accumulator_bytes
    assert sent <= reduction.workspace_bytes(Reduction(1, length, 1, 1, 1), FLOAT.accumulator_bytes)


def test_large_blocks_take_single_rows_of_few_instructions_an_element() -> None:
    """Several rows, less than 32 MB and more than MOST_LARGE blocks take go to blocks that walk along their share.

    So does what takes more than a few instructions an element.
    """
    assert not launched(16, 1 << 21)[0].endswith(f", {reduction.LARGE_THREADS}>")
    assert not launched(1, 1 << 22)[0].endswith(f", {reduction.LARGE_THREADS}>")
    assert not launched(1, 1 << 27)[0].endswith(f", {reduction.LARGE_THREADS}>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.FLOAT", replace(FLOAT, light=False))
        assert not launched(1, 1 << 25)[0].endswith(f", {reduction.LARGE_THREADS}>")


def test_host_and_device_agree_on_small_sums_and_slabs() -> None:
    """The kernels take as many elements a lane, and have as much room for a slab's sums, as the host counts on."""
    text = (Path(ops.__file__).parent / "_include" / "reduce.cuh").read_text(encoding="utf-8")
    assert f"constexpr int SMALL_EACH = {reduction.SMALL_EACH};" in text
    assert reduction.SMALL_LENGTH == WARP * reduction.SMALL_EACH
    assert f"constexpr int TINY_LENGTH = {reduction.TINY_LENGTH};" in text
    each = (reduction.ELEMENTS.stop - 1) // reduction.ELEMENTS_LANES
    assert f"ELEMENTS_LANES = {reduction.ELEMENTS_LANES}, ELEMENTS_EACH = {each}," in text
    each, threads = reduction.LARGE_PACKS // reduction.LARGE_THREADS, reduction.LARGE_THREADS
    assert f"constexpr int LARGE_THREADS = F::TWO ? {threads // 2} : {threads};" in text
    assert f"constexpr int LARGE_EACH = {each};" in text
    assert f"constexpr int SLAB_THREADS = {reduction.SLAB_THREADS};" in text
    assert f"constexpr int SLAB = {reduction.SLAB_BYTES} / sizeof(typename F::Acc);" in text


def test_masks_are_left_out_where_packs_are_whole() -> None:
    """Only rows that begin and end with a pack of 16 bytes are read without masks, whether blocks share them or not."""
    for more, shift, whole in ((0, 0, "true"), (0, 1, "false"), (2, 0, "false"), (2, 2, "false")):
        kernel, _, _ = launched(1, (1 << 18) + more, shift)
        assert kernel.startswith("reduce_long<")
        assert kernel.endswith(f", {whole}, {THREADS}>")
        kernel, _, _ = launched(600, 2048 + more, shift)
        assert kernel.startswith("reduce_rows<")
        assert kernel.endswith(f", {whole}, {THREADS}>")


def test_middling_sizes_leave_the_cache_first() -> None:
    """Rows of 12 to 192 MB are read past what the cache holds, smaller and larger ones by way of it."""
    for rows, stream in ((2000, "false"), (4096, "true"), (65_536, "false")):
        assert launched(rows, 1250)[0].endswith(f", {stream}, false, {THREADS}>")


@pytest.mark.parametrize(
    ("length", "packs"), [(1000, "4, false"), (2000, "4, true"), (40_000, "4, true"), (65_536, "4, false")]
)
def test_columns_leave_the_cache_first(length: int, packs: str) -> None:
    """Those of 12 to 384 MB, in packs; columns that are no whole packs never do."""
    assert launched(1, length, columns=2048)[0] == f"reduce_columns<{FLOAT.name}, {packs}>"
    for shift, columns in ((1, 2048), (0, 2049)):
        assert launched(1, length, shift, columns=columns)[0] == f"reduce_columns<{FLOAT.name}, 1, false>"


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 31, 32, 33, 250, 1089])
def test_touched_packs_are_counted(length: int, width: int) -> None:
    """The count is the most that any row lies in, for every place where the first may begin."""
    for shift in range(width):
        for rows in (1, 2, 64):
            ends = ((shift + row * length, shift + (row + 1) * length - 1) for row in range(rows))
            most = max(last // width - first // width + 1 for first, last in ends)
            found = reduction.touched_packs(rows, length, width, shift)
            assert found == most if rows in {1, 64} else found >= most


def test_lanes_of_measured_rows() -> None:
    """Four packs a lane; up to a warp for rows of 256 packs, up to a block for longer ones, a larger one for some."""
    for length, lanes in ((128, 8), (250, 16), (1024, WARP), (1250, 128), (2048, 128), (4096, 512), (4097, 256)):
        kernel, _, arguments = launched(600, length)
        assert kernel.startswith("reduce_rows")
        assert arguments[-1] == lanes


@pytest.mark.gpu
def test_one_workspace_serves_launches_of_any_size() -> None:
    """Partial results of one launch are not taken for the next one's, of the same size or another."""
    import cupy as cp

    kernel = find_kernel("dot", "optimized", "cuda", "float32")
    shapes = [(1 << 22,), (5000,), (3, 70_001), (1 << 23,), (1 << 20,), (100, 40_000), (1 << 22,)]
    layouts = (Reduction(shape[0] if len(shape) > 1 else 1, shape[-1], 1, 1, 1) for shape in shapes)
    workspace = cp.zeros(max(reduction.workspace_bytes(layout, ACCUMULATOR_BYTES) for layout in layouts), cp.uint8)
    for turn in range(50):
        for shape in shapes:
            x, y = cp.full(shape, 1 + turn % 3, cp.float32), cp.ones(shape, cp.float32)
            out = cp.empty(shape[:-1], cp.float32)
            run = kernel.bind({"x": x, "y": y}, DotParams(), {"out": out}, workspace)
            for _ in range(3):
                out.fill(-1)
                run()
                assert (out == (1 + turn % 3) * shape[-1]).all(), shape
    assert not workspace.any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("length", "first"), [(1 << 24, 0), ((1 << 24) + 5, 3), ((1 << 26) - 1, 1)])
def test_large_blocks_sum_a_row_that_begins_anywhere(dtype: str, length: int, first: int) -> None:
    """Every element counts once, and nothing beside them does, call after call."""
    import cupy as cp

    kernel = find_kernel("mean", "optimized", "cuda", dtype)
    x = cp.full(length + 16, cp.nan, dtype)
    row = x[first : first + length]
    row[...] = cp.arange(length) % 5
    workspace = cp.zeros(reduction.workspace_bytes(Reduction(1, length, 1, 1, 1), 8), cp.uint8)
    out = cp.empty((), dtype)
    run = kernel.bind({"x": row}, MeanParams(), {"out": out}, workspace)
    for _ in range(3):
        out.fill(-1)
        run()
        assert abs(float(out) - 2) < 2e-3
    assert not workspace.any()
