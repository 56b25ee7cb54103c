"""How the gradient along rows is launched: every element by some thread, and no block more than its threads hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.ops import FLOATS, dtype_info
from opgauge.ops._core.axes import Reduction
from opgauge.ops._cuda.reduction.problem import LINE_VECTORS, touched_vectors
from opgauge.ops.p_norm import cuda_grad
from opgauge.ops.p_norm.cuda_grad import COUNT_BYTES, MOST_FIXUPS
from opgauge.ops.p_norm.cuda_source import (
    APART_EACH,
    INF_RESIDENT,
    PART_EACH,
    ROW_THREADS,
    SHORT_EACH,
    SOURCE,
    THREADS,
    WIDTHS,
)
from tests.ops.attempts import case_of

MULTIPROCESSORS = 132
LENGTHS = (8, 9, 31, 250, 511, 512, 1017, 1023, 1024, 1025, 4093, 4096, 4099, 8192, 8193, 100_000)


class Launched:
    """Kernel, blocks, threads and arguments of a launch on a device of 132 multiprocessors."""

    def __init__(self, rows: int, length: int, dtype: str, shift: int, *, extreme: bool, apart: bool = False) -> None:
        self.name = ""
        self.arguments: tuple[Any, ...] = ()
        item = dtype_info(dtype).numpy
        data = SimpleNamespace(ptr=4096 + shift * item.itemsize)
        moved = SimpleNamespace(ptr=data.ptr + item.itemsize)
        size = rows * length
        x: Any = SimpleNamespace(dtype=SimpleNamespace(name=dtype, itemsize=item.itemsize), data=data, size=size)
        x.nbytes = size * item.itemsize
        x.shape = (rows, length)
        layout = Reduction(rows, length, 1, 1, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_grad, "bind_launch", self._bind_launch)
            patch.setattr(cuda_grad, "multiprocessors", lambda: MULTIPROCESSORS)
            workspace = np.empty(cuda_grad.inf_workspace_bytes(layout), np.uint8)
            run = (
                cuda_grad._inf_gradient(layout, x, x, x, x, workspace)
                if extreme
                else cuda_grad._gradient(2.0, layout, x, x, x, SimpleNamespace(data=moved) if apart else x)
            )
            run()

    def _bind_launch(self, _source: Any, expression: str, grid: Any, block: Any, arguments: tuple[Any, ...]) -> Any:
        assert expression in SOURCE.expressions

        def launch() -> None:
            self.name, self.arguments = expression, arguments[4:]
            self.grid, self.threads = grid, block[0]

        return launch


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_rows_with_ties_fit_the_blocks_that_hold_them(rows: int, length: int, dtype: str) -> None:
    """However rows begin, a block's vectors are no more than its threads hold, and blocks are enough for all rows."""
    width = WIDTHS[dtype]
    for shift in {0, 1, width - 1}:
        found = Launched(rows, length, dtype, shift, extreme=True)
        if found.name.startswith("grad_inf_short_rows<"):
            most, held = int(found.arguments[1]), int(found.name[:-1].rpartition(", ")[2])
            assert 1 <= most <= found.threads == ROW_THREADS
            assert found.grid[0] * most >= rows > (found.grid[0] - 1) * most
            for first in range(0, min(rows, 64 * most), most):
                begin = int(found.arguments[2]) + first * length
                end = begin + min(most, rows - first) * length
                assert -(-end // held) - begin // held <= SHORT_EACH * ROW_THREADS
        elif found.name.startswith("grad_inf_few<"):
            assert rows * length <= found.grid[0] * found.threads < rows * length + found.threads
        elif ", BLOCK, " in found.name:
            assert found.grid == (rows,)
            assert found.threads == THREADS
            assert touched_vectors(rows, length, width, shift) <= PART_EACH * THREADS
        elif ", GRID, " in found.name:
            check_parts(rows, length, width, shift, found)
        else:
            assert ", LOOP, " in found.name
            assert found.grid == (rows,)


def check_parts(rows: int, length: int, width: int, shift: int, found: Launched) -> None:
    """Parts are whole lines that threads hold, and all of a row; few blocks wait, and what is counted has room."""
    _, _, share, parts, blocks, fixups, came, seen, marked = found.arguments
    vectors = touched_vectors(rows, length, width, shift)
    assert share % LINE_VECTORS == 0
    assert share <= PART_EACH * found.threads
    assert share * (int(parts["value"]) - 1) < vectors <= share * int(parts["value"])
    assert int(blocks) == rows * int(parts["value"])
    waiting = found.grid[0] - int(blocks)
    assert waiting == rows * int(fixups["value"])
    assert waiting < INF_RESIDENT * MULTIPROCESSORS
    assert came.nbytes == COUNT_BYTES * rows
    assert seen.nbytes == COUNT_BYTES * waiting
    assert marked.nbytes >= blocks
    assert found.name.endswith(f", {str(shift == length % width == 0).lower()}>")


@pytest.mark.parametrize("rows", [1, 2, 16, 100, 256, 300, 527, 528])
def test_rows_are_taken_in_parts_while_those_that_wait_leave_room(rows: int) -> None:
    """Of as many rows as fill the device each is a block's."""
    for length in (4099, 65_537, 1 << 21):
        found = Launched(rows, length, "float32", 0, extreme=True)
        if rows < INF_RESIDENT * MULTIPROCESSORS:
            check_parts(rows, length, 4, 0, found)
        else:
            assert found.name == "grad_inf_rows<float, 4, LOOP, false>"


@pytest.mark.parametrize("length", [1025, 2048, 4099, 200_000, 200_001, 1_000_003])
def test_what_is_counted_has_room_however_wide_packs_are(length: int) -> None:
    """A row of as many vectors as elements, or fewer, has no more parts than the workspace has bytes for."""
    words = COUNT_BYTES * (1 + MOST_FIXUPS)
    room = cuda_grad.inf_workspace_bytes(Reduction(1, length, 1, 1, 1)) - words
    assert all(cuda_grad._parts(vectors)[1] <= room for vectors in range(max(length - 3000, 1), length + 1))


def test_one_block_takes_a_row_of_1024_packs() -> None:
    """4096 rows of 4096 elements in float32, whose rows begin with a vector, are read by threads that hold them."""
    assert Launched(4096, 4096, "float32", 0, extreme=True).name == "grad_inf_rows<float, 4, BLOCK, false>"
    assert Launched(4096, 4096, "float32", 1, extreme=True).name == "grad_inf_rows<float, 4, LOOP, false>"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("megabytes", [2, 19, 40, 75, 200])
def test_threads_take_as_many_packs_as_pay(megabytes: int, dtype: str) -> None:
    """Two vectors a thread, or one, by the size of x; blocks reach its end, and the last is not empty."""
    width = WIDTHS[dtype]
    rows = (megabytes << 20) // (250 * dtype_info(dtype).itemsize)
    found = Launched(rows, 250, dtype, 1, extreme=False)
    vectors = 2 if width > 2 and 32 <= megabytes < 96 else 1
    kernel = "grad_rows_16bit" if width == 8 else "grad_rows"
    assert found.name == f"{kernel}<{dtype_info(dtype).ctype}, {width}, LINEAR, {vectors}>"
    assert found.threads == ROW_THREADS
    each = width * vectors * ROW_THREADS
    assert found.grid[0] * each >= rows * 250 + 1 > (found.grid[0] - 1) * each


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_of_single_elements_are_read_in_vectors(dtype: str) -> None:
    """Each of many elements has its own norm: as columns of one row, in which norms are as near as elements."""
    assert Launched(1 << 20, 1, dtype, 0, extreme=False).name.startswith(("grad_short_columns<", "grad_columns<"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_whole_packs_are_counted_in_packs(dtype: str) -> None:
    """Rows of whole vectors count by vectors; unaligned arrays, and rows that end within a vector, do not."""
    width = WIDTHS[dtype]
    found = Launched(1000, 256, dtype, 0, extreme=False)
    assert found.name.startswith("grad_rows_aligned<")
    _, size, length = found.arguments
    assert (int(size), int(length["value"])) == (256_000 // width, 256 // width)
    assert found.grid[0] * ROW_THREADS >= size > (found.grid[0] - 1) * ROW_THREADS
    for others in (Launched(1000, 255, dtype, 0, extreme=False), Launched(1000, 256, dtype, 1, extreme=False)):
        assert others.name.startswith(("grad_rows<", "grad_rows_16bit<"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_at_addresses_without_vectors_in_common_have_a_thread_for_few_elements(dtype: str) -> None:
    """Not a block for each row, which took 18 times as long for rows of 12; long ones are traversed as columns."""
    found = Launched(20_000, 12, dtype, 0, extreme=False, apart=True)
    assert found.name == f"grad_rows<{dtype_info(dtype).ctype}, 1, LINEAR, {APART_EACH}>"
    each = APART_EACH * ROW_THREADS
    assert found.grid[0] * each >= 240_000 > (found.grid[0] - 1) * each
    assert Launched(200, 4096, dtype, 0, extreme=False, apart=True).name.startswith("grad_columns<")


@pytest.mark.parametrize(
    ("dtype", "layout", "found"),
    [
        ("float32", Reduction(1, 300, 1, 1, 64), (1, "EACH_ITS_OWN")),
        ("float32", Reduction(1, 9000, 1, 1, 64), (4, "NEIGHBOURS")),
        ("float32", Reduction(1, 9000, 1, 1, 65), (4, "EACH_ITS_OWN")),
        ("float16", Reduction(1, 3000, 1, 1, 65), (8, "EACH_ITS_OWN")),
        ("float16", Reduction(1, 9000, 1, 1, 65), None),
        ("float32", Reduction(1, 60000, 1, 1, 65), None),
        ("float32", Reduction(1, 90000, 1, 1, 65), (4, "EACH_ITS_OWN")),
        ("float16", Reduction(1, 500, 400, 30, 1), (8, "EACH_ITS_OWN")),
        ("float16", Reduction(1, 500, 400, 32, 1), (8, "THE_SAME")),
        ("float64", Reduction(3, 70, 40, 30, 1), (2, "THE_SAME")),
        ("float32", Reduction(3, 7, 40, 32, 1), (1, "EACH_ITS_OWN")),
        ("float16", Reduction(1, 500, 40, 30, 3), None),
        ("float32", Reduction(1, 90, 1, 1, 100_001), None),
        ("bfloat16", Reduction(1, 4096, 1, 1, 256), None),
        ("float16", Reduction(1, 4095, 1, 1, 256), (8, "NEIGHBOURS")),
        ("float16", Reduction(90_000, 12, 1, 1, 8), (8, "NEIGHBOURS")),
    ],
    ids=str,
)
def test_columns_without_vectors_are_taken_in_memory_order(
    dtype: str, layout: Reduction, found: tuple[int, str] | None
) -> None:
    """Few elements one by one; others in vectors, whose elements have a norm each or one, where columns are slower."""
    item = dtype_info(dtype).numpy
    data = SimpleNamespace(ptr=4096)
    size = layout.a * layout.length * layout.b * layout.c
    x: Any = SimpleNamespace(dtype=item, data=data, size=size, nbytes=size * item.itemsize)
    assert cuda_grad._short_columns(layout, (x, x, x, x), is_few=size <= cuda_grad._FEW, cheap=False) == found


@pytest.mark.parametrize(("porder", "kernel"), [(2.0, "grad_any_axes"), (0.5, "grad_any_axes"), (np.inf, "grad_inf")])
def test_separate_axes_take_one_launch_unless_ties_are_counted(porder: float, kernel: str) -> None:
    """An element per thread without copies in the workspace; at porder inf copies are rows."""
    shape, axis = (4, 6, 3, 2, 3), (4, 2, 0)
    case = case_of("p_norm_grad", {"x": shape}, "float32", axis=axis, porder=porder)
    names: list[str] = []

    def bind_launch(_source: Any, expression: str, *_: Any) -> Any:
        names.append(expression)
        return int

    arrays: dict[str, Any] = {name: np.empty(spec.shape, np.float32) for name, spec in case.resolved.inputs.items()}
    room = cuda_grad.grad_workspace(case.resolved, case.params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_grad, "bind_launch", bind_launch)
        patch.setattr(cuda_grad, "multiprocessors", lambda: MULTIPROCESSORS)
        patch.setattr(cuda_grad, "_shift", lambda *_: 0)
        given: dict[str, Any] = {"porder": porder, "axis": axis, "keepdim": False}
        given["out"] = {"dx": np.empty(shape, np.float32)}
        cuda_grad.p_norm_grad(**arrays, **given, workspace=np.empty(room, np.uint8))
    assert len(names) == 1
    assert names[0].startswith(kernel)
    assert names[0] in SOURCE.expressions
    assert (room == 0) == np.isfinite(porder)
