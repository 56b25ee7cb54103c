"""Stores past the caches: the same bits as ordinary ones, wherever an array begins and ends, and none beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgauge.ops import dtype_info, find_kernel, find_op
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.streaming.jit import RUN, whole_runs
from opgauge.ops._cpu.tile import scratch

FEW, LARGE = 20_000, 70_000
"""Elements that one thread would take, so that less is compiled; and so many that flatten leaves them to Numba."""
BESIDE = 77
"""Elements of another value on either side of an output."""
KERNELS: list[tuple[str, str, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ("flatten", "complex128", {"copy": True}, ("x",), ("out",)),
    ("sign", "float16", {}, ("x",), ("out",)),
    ("sign", "int16", {}, ("x",), ("out",)),
    ("scale", "float32", {"scale": 1.5, "bias": 0.25}, ("x",), ("out",)),
    ("scale", "float32", {"scale": 1.5, "bias": 0.25, "bias_after_scale": False}, ("x",), ("out",)),
    ("scale", "int16", {"scale": 3.0, "bias": 1.0}, ("x",), ("out",)),
    ("fill_any_like", "bool", {"value": 0.0}, ("x",), ("out",)),
    ("add_n", "bfloat16", {}, ("in_0", "in_1"), ("out",)),
    ("lerp", "float32", {"weight": 0.3}, ("x", "y"), ("out",)),
    ("lerp_grad", "float64", {"weight": 0.3}, ("x", "y", "dout"), ("dx", "dy")),
    ("lerp_grad", "float64", {"weight": 0.3, "need_x": False}, ("x", "y", "dout"), ("dy",)),
]


def ones(size: int, dtype: np.dtype) -> Any:
    """An array that begins where a line of the cache does."""
    made = scratch(size, dtype)
    made[:] = 1
    return made


@pytest.mark.parametrize(("op", "dtype", "params", "inputs", "outputs"), KERNELS)
@pytest.mark.parametrize(("more", "start"), [(0, 0), (3 * RUN + 5, 3), (-1, 9)])
def test_kernels_write_the_same_bits(
    op: str,
    dtype: str,
    params: dict[str, Any],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    more: int,
    start: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether they stream or not, from the first of a line and from within one."""
    numpy_dtype, size = dtype_info(dtype).numpy, (LARGE if op == "flatten" else FEW) + more
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(size).astype(numpy_dtype) for name in inputs}
    kernel, asked = find_kernel(op, "optimized", "cpu", dtype), find_op(op).params(**params)
    found = {}
    for streams in (True, False):
        asked_of: list[tuple[Any, ...]] = []

        def pays(*arrays: Any, streams: bool = streams, asked_of: list[tuple[Any, ...]] = asked_of) -> bool:
            asked_of.append(arrays)
            return streams

        monkeypatch.setattr(streaming, "pays", pays)
        rooms = {name: ones(BESIDE + start + size + BESIDE, numpy_dtype) for name in outputs}
        target = {name: room[BESIDE + start :][:size] for name, room in rooms.items()}
        kernel.bind(given, asked, target)()
        assert all((room[: BESIDE + start] == 1).all() and (room[-BESIDE:] == 1).all() for room in rooms.values())
        assert len(asked_of) == 1
        found[streams] = {name: array.tobytes() for name, array in target.items()}
    assert found[True] == found[False]


def test_outputs_that_lie_differently_are_not_streamed() -> None:
    """Lines of dx and dy would begin at different elements."""
    room = ones(1000, np.dtype(np.float32))
    assert streaming.lie_alike(room, room[16:])
    assert not streaming.lie_alike(room, room[15:])


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("offset", "start", "end"), [(0, 0, 1000), (8, 5, 999), (56, 999, 1000), (24, 3, 3), (8, 0, 1)]
)
def test_runs_begin_with_lines(itemsize: int, offset: int, start: int, end: int) -> None:
    """Runs are whole, begin at an address that a line begins at, and leave less than a line before and a run after."""
    room = np.zeros(10_000, np.uint8)
    first = -room.ctypes.data % streaming.LINE_BYTES + offset
    out = room[first : first + 1000 * itemsize].view(f"u{itemsize}")
    begin, whole = whole_runs.py_func(out, start, end)
    assert start <= begin <= whole <= end
    assert (whole - begin) % RUN == 0
    assert whole == begin or (out.ctypes.data + begin * itemsize) % streaming.LINE_BYTES == 0
    assert (begin - start) * itemsize < streaming.LINE_BYTES
    assert end - whole < RUN


def test_what_is_not_aligned_to_its_elements_is_not_streamed() -> None:
    """No line begins with an element: all is written as odd ends."""
    room = np.zeros(4097, np.uint8)
    out = np.frombuffer(room.data, np.float32, 1000, offset=1 + (-room.ctypes.data % 4))
    assert whole_runs.py_func(out, 10, 900) == (900, 900)


def test_the_last_cache_is_what_the_system_says(tmp_path: Path) -> None:
    """The largest of those listed, in K or M; 32 MiB where nothing is."""
    assert streaming.last_cache_bytes(tmp_path) == 32 << 20
    for index, size in enumerate(("32K", "512K", "96M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    streaming.last_cache_bytes.cache_clear()
    assert streaming.last_cache_bytes(tmp_path) == 96 << 20
    streaming.last_cache_bytes.cache_clear()


def test_streaming_pays_where_the_last_cache_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read counts as what is written does."""
    monkeypatch.setattr(streaming, "last_cache_bytes", lambda: 800)
    assert not streaming.pays(np.zeros(400, np.uint8), np.zeros(400, np.uint8))
    assert streaming.pays(np.zeros(400, np.uint8), np.zeros(401, np.uint8))
