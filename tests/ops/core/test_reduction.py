"""Launches of reductions by rows: what is covered, by how many threads, and what blocks send each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opgauge import ops
from opgauge.ops import find_kernel
from opgauge.ops._core import tuning
from opgauge.ops._core.axes import Reduction
from opgauge.ops._cuda import reduction
from opgauge.ops._cuda.reduction import (
    LARGE_EACH,
    LARGE_THREADS,
    LINE_PACKS,
    LONG_RESIDENT,
    SHARE_THREADS,
    THREADS,
    WARP,
)
from opgauge.ops.dot.cuda import ACCUMULATOR_BYTES
from opgauge.ops.dot.op import DotParams
from opgauge.ops.mean.op import MeanParams

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
    return launched_in_blocks(rows, length, shift, columns=columns)[:3]


def launched_in_blocks(
    rows: int, length: int, shift: int = 0, *, columns: int = 1
) -> tuple[str, tuple[int, ...], tuple[Any, ...], tuple[int, ...]]:
    """The same, and the block."""
    found: list[Any] = []

    def function(expression: str) -> Any:
        return lambda grid, block, arguments: found.extend((expression, grid, arguments, block))

    data = SimpleNamespace(ptr=4096 + 4 * shift)
    x = SimpleNamespace(dtype=np.dtype(np.float32), data=data, nbytes=4 * rows * length * columns)
    source: Any = SimpleNamespace(function=function)
    layout, out = Reduction(rows, length, 1, 1, columns), SimpleNamespace(size=rows * columns)
    reduction.launch(source, FLOAT, layout, x, None, out, np.zeros(1 << 22, np.uint8))()
    return found[0], found[1], found[2], found[3]


def check_shares(rows: int, length: int, shift: int, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    """Blocks of reduce_shares take every pack of each row at once; what they send is collected, and fits; few wait."""
    share, lanes = int(arguments[-3]), int(arguments[-2])
    splits, further = grid[0], grid[1] - rows
    packs = reduction.touched_packs(rows, length, FLOAT.width, shift, LINE_PACKS * FLOAT.width)
    assert share % LINE_PACKS == 0
    assert share * (splits - 1) < packs <= share * splits
    assert share <= SHARE_THREADS * reduction.SHARE_EACH
    assert lanes in {WARP, SHARE_THREADS}
    assert further * splits * SHARE_THREADS >= rows * lanes
    assert -(-rows * lanes // SHARE_THREADS) < MULTIPROCESSORS
    check_letters(rows, length, rows * splits)


def check_letters(rows: int, length: int, letters: int) -> None:
    """So many words of 32 bits with a flag of 32 find room in the workspace."""
    room = reduction.workspace_bytes(Reduction(rows, length, 1, 1, 1), FLOAT.accumulator_bytes)
    assert letters * 2 * FLOAT.accumulator_bytes <= room


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
        lanes = int(arguments[-1])
        assert lanes in {1 << power for power in range(9)}
        assert grid[0] * (THREADS // lanes) >= rows
        return
    if kernel.startswith("reduce_held"):
        threads, each = (int(number) for number in kernel.rstrip(">").split(", ")[-2:])
        assert length == FLOAT.width * int(arguments[-1]) <= FLOAT.width * threads * each
        assert grid == (rows,)
        return
    if kernel.startswith("reduce_shares"):
        check_shares(rows, length, 0, grid, arguments)
        return
    assert kernel.startswith("reduce_long")
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
        check_letters(rows, length, rows * (grid[1] - 1))


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
    text = (Path(ops.__file__).parent / "_cuda" / "include" / "reduce.cuh").read_text(encoding="utf-8")
    assert f"constexpr int LONG_RESIDENT = {LONG_RESIDENT};" in text
    assert "__launch_bounds__(REDUCE_THREADS, LONG_RESIDENT) reduce_long(" in text


@pytest.mark.parametrize("length", [1 << 23, (1 << 25) + 4, 1 << 26])
def test_a_large_row_is_taken_at_once(length: int) -> None:
    """A single row of 32 MB or more, of whole packs: two packs a thread, all of the row, and letters that fit."""
    kernel, grid, arguments = launched(1, length)
    assert kernel == f"reduce_row<{FLOAT.name}, {FLOAT.width}, {LARGE_THREADS}, {LARGE_EACH}>"
    packs, taken = int(arguments[-2]), LARGE_THREADS * LARGE_EACH
    assert packs * FLOAT.width == length
    assert taken * (grid[0] - 1) < packs <= taken * grid[0]
    check_letters(1, length, grid[0] - 1)


@pytest.mark.parametrize("shift", [0, 1, 3, 31])
@pytest.mark.parametrize(
    ("rows", "length"), [(1, (1 << 25) + 1), (16, 1 << 21), (256, 65_537), (300, 65_536), (527, 21_000)]
)
def test_large_rows_are_taken_at_once(rows: int, length: int, shift: int) -> None:
    """Rows of 32 MB or more together, wherever they begin, that are fewer than fill the device."""
    kernel, grid, arguments = launched(rows, length, shift)
    assert kernel.startswith("reduce_shares<")
    check_shares(rows, length, shift, grid, arguments)


def test_what_is_not_taken_at_once() -> None:
    """Less than 32 MB, more than MOST_LARGE or MOST_SHARES blocks take, and as many rows as fill the device.

    So is what takes more than a few instructions an element.
    """
    for rows, length in ((1, 1 << 22), (1, 1 << 27), (16, 1 << 24), (528, 65_536)):
        assert launched(rows, length)[0].startswith(("reduce_long<", "reduce_rows<"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.FLOAT", replace(FLOAT, light=False))
        assert launched(1, 1 << 25)[0].startswith("reduce_long<")


def test_host_and_device_agree_on_small_sums_slabs_and_tall_columns() -> None:
    """The kernels take as many elements and lanes, and have as much room for a slab's sums, as the host counts on."""
    text = (Path(ops.__file__).parent / "_cuda" / "include" / "reduce.cuh").read_text(encoding="utf-8")
    assert f"constexpr int LINE_PACKS = {LINE_PACKS};" in text
    assert f"constexpr int SMALL_EACH = {reduction.SMALL_EACH};" in text
    assert reduction.SMALL_LENGTH == WARP * reduction.SMALL_EACH
    assert f"constexpr int TINY_LENGTH = {reduction.TINY_LENGTH};" in text
    each = (reduction.ELEMENTS.stop - 1) // reduction.ELEMENTS_LANES
    sure = (reduction.ELEMENTS.start - 1) // reduction.ELEMENTS_LANES
    assert f"ELEMENTS_LANES = {reduction.ELEMENTS_LANES}, ELEMENTS_EACH = {each}, ELEMENTS_SURE = {sure}," in text
    assert f"constexpr int SLAB_THREADS = {reduction.SLAB_THREADS};" in text
    assert f"constexpr int SLAB = {reduction.SLAB_BYTES} / sizeof(typename F::Acc);" in text


def test_masks_are_left_out_where_packs_are_whole() -> None:
    """Only rows that begin and end with a pack of 16 bytes are read without masks, whether blocks share them or not."""
    for more, shift, whole in ((0, 0, "true"), (0, 1, "false"), (2, 0, "false"), (2, 2, "false")):
        kernel, _, _ = launched(1, (1 << 18) + more, shift)
        assert kernel.startswith("reduce_long<")
        assert kernel.endswith(f", {whole}>")
        kernel, _, _ = launched(600, 2048 + more, shift)
        assert kernel.startswith("reduce_rows<")
        assert kernel.endswith(f", {whole}>")


def test_middling_sizes_leave_the_cache_first() -> None:
    """Rows of 12 to 192 MB are read past what the cache holds, smaller and larger ones by way of it."""
    for rows, stream in ((2000, "false"), (4096, "true"), (65_536, "false")):
        assert launched(rows, 1250)[0].endswith(f", {stream}, false>")


def test_held_rows_leave_the_cache_first_up_to_four_times_as_many() -> None:
    """Rows that blocks take at once are read past the cache up to 768 MB, of one tensor."""
    for rows, stream in ((600, "false"), (4096, "true"), (49_151, "true"), (49_408, "false")):
        assert launched(rows, 4096)[0].startswith(f"reduce_held<{FLOAT.name}, 4, {stream}, ")


@pytest.mark.parametrize(
    ("length", "packs"), [(1100, "4, false"), (2000, "4, true"), (40_000, "4, true"), (65_536, "4, false")]
)
def test_columns_leave_the_cache_first(length: int, packs: str) -> None:
    """Those of 12 to 384 MB, in packs; columns that are no whole packs never do."""
    assert launched(1, length, columns=2048)[0] == f"reduce_columns<{FLOAT.name}, {packs}, {THREADS}>"
    for shift, columns in ((1, 2048), (0, 2049)):
        assert launched(1, length, shift, columns=columns)[0] == f"reduce_columns<{FLOAT.name}, 1, false, {THREADS}>"


@pytest.mark.parametrize(
    ("rows", "length", "columns", "threads", "lanes", "splits"),
    [
        (64, 1025, 1024, reduction.TALL_THREADS, 16, 1),
        (1, 64, 1 << 20, THREADS, 64, 1),
        (1, 16_384, 4096, THREADS, 16, 8),
        (2, 1100, 1024, THREADS, 16, 4),
    ],
)
def test_columns_are_a_block_s_where_those_are_enough(
    rows: int, length: int, columns: int, threads: int, lanes: int, splits: int
) -> None:
    """Four blocks a multiprocessor: narrow ones rather than several that share, of more threads where rows are many."""
    kernel, grid, _ = launched(rows, length, columns=columns)
    assert kernel.endswith(f", {threads}>")
    assert grid == (rows * columns // FLOAT.width // lanes, splits)


@pytest.mark.parametrize(
    ("length", "columns", "rows"), [(512, 2048, 32), (600, 600, 40), (1000, 32, 64), (1024, 1020, 64)]
)
def test_columns_of_up_to_1024_are_taken_whole(length: int, columns: int, rows: int) -> None:
    """By blocks a line wide, of whole warps that hold all of them; not where columns are too few or no whole packs."""
    kernel, grid, _, block = launched_in_blocks(3, length, columns=columns)
    assert kernel.startswith("reduce_tall<")
    assert grid == (3 * -(-columns // reduction.LINE),)
    assert block == (reduction.LINE_PACKS, rows)
    assert rows * reduction.TALL_EACH >= length
    assert rows * reduction.LINE_PACKS in range(WARP, reduction.TALL_THREADS + 1, WARP)
    for shift, few in ((1, columns), (0, columns + 1), (0, 28)):
        assert launched(3, length, shift, columns=few)[0].startswith("reduce_columns<")


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 31, 32, 33, 250, 1089])
def test_touched_packs_are_counted(length: int, width: int) -> None:
    """The count is the most of any row, for every place in a pack, or a line, where the first may begin."""
    for unit in (width, LINE_PACKS * width):
        for shift in range(unit):
            for rows in (1, 2, 64):
                ends = ((shift + row * length, shift + (row + 1) * length - 1) for row in range(rows))
                most = max(last // width - first // unit * (unit // width) + 1 for first, last in ends)
                found = reduction.touched_packs(rows, length, width, shift, unit)
                assert found == most if rows in {1, 64} else found >= most


def test_lanes_of_measured_rows() -> None:
    """Four packs a lane; up to a warp for rows of 256 packs, up to a block for longer ones."""
    for length, lanes in ((128, 8), (250, 16), (1024, WARP), (1250, 128), (2048, 128), (4097, 256), (8192, 256)):
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
@pytest.mark.parametrize(
    ("rows", "length", "first"),
    [
        (1, 1 << 24, 0),
        (1, (1 << 24) + 5, 3),
        (1, (1 << 26) - 1, 1),
        (16, 1 << 21, 0),
        (16, (1 << 21) - 3, 2),
        (256, 65_537, 1),
        (527, 40_000, 0),
        (4097, 4096, 0),
    ],
)
def test_large_rows_that_begin_anywhere(dtype: str, rows: int, length: int, first: int) -> None:
    """Every element counts once, and nothing beside them does, call after call."""
    import cupy as cp

    kernel = find_kernel("mean", "optimized", "cuda", dtype)
    x = cp.full(rows * length + 16, cp.nan, dtype)
    whole = x[first : first + rows * length].reshape(rows, length)
    whole[...] = cp.arange(length) % 5
    whole += (cp.arange(rows) % 7)[:, None].astype(dtype)
    workspace = cp.zeros(reduction.workspace_bytes(Reduction(rows, length, 1, 1, 1), 8), cp.uint8)
    out = cp.empty(rows, dtype)
    run = kernel.bind({"x": whole}, MeanParams(axis=1), {"out": out}, workspace)
    for _ in range(3):
        out.fill(-1)
        run()
        assert float(abs(out.astype("float64") - 2 - cp.arange(rows) % 7).max()) < 4e-3
    assert not workspace.any()
