"""Threads of CPU kernels: one rule says how many, and both compilations of a kernel give the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import get_num_threads, prange

from opgauge.ops import dtype_info, find_kernel, find_op
from opgauge.ops._cpu import threads
from opgauge.ops._cpu.load import HOST
from opgauge.ops._cpu.threads import count, load_runtime, parallel
from tests.ops.attempts import case_of, inputs_of

KERNELS: list[tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = [
    ("sign", "float32", {}, {"x": (9999,)}, {"out": (9999,)}),
    ("scale", "float32", {"scale": 1.5, "bias": 0.25}, {"x": (9999,)}, {"out": (9999,)}),
    ("add_n", "float32", {}, {"in_0": (9999,), "in_1": (9999,)}, {"out": (9999,)}),
    ("fill_any_like", "float32", {"value": 2.0}, {"x": (9999,)}, {"out": (9999,)}),
    ("flatten", "float32", {"copy": True}, {"x": (99, 101)}, {"out": (9999,)}),
    ("lerp", "float32", {"weight": 0.3}, {"x": (99, 101), "y": (99, 1)}, {"out": (99, 101)}),
]


@parallel(error_model="numpy")
def double(x: Any, out: Any) -> None:
    """Write twice x."""
    for index in prange(x.size):
        out[index] = 2 * x[index]


@pytest.mark.parametrize("several", [1, 2])
def test_both_compilations_compute(several: int) -> None:
    """A kernel computes the same without threads as with them."""
    out = np.zeros(1001, np.float32)
    double.on(several)(np.arange(1001, dtype=np.float32), out)
    assert (out == 2 * np.arange(1001)).all()


def test_one_thread_is_compiled_without_a_parallel_region() -> None:
    """The compilation for one thread contains no parallel loop, which would cost a launch."""
    double.on(1)(np.zeros(3), np.zeros(3))
    assert not double.on(1).targetoptions.get("parallel")
    assert double.compiled(several=True).targetoptions["parallel"]


def test_small_work_stays_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the threshold the count is one; from there on it is Numba's, by bytes or by operations."""
    monkeypatch.setattr(threads, "load_runtime", lambda: True)
    nbytes = threads.PAYS_NS * threads.BYTES_PER_NS
    operations = threads.PAYS_NS * threads.OPERATIONS_PER_NS
    assert count(0.99 * nbytes, 0.99 * operations) == 1
    assert count(nbytes) == get_num_threads()
    assert count(0, operations) == get_num_threads()
    monkeypatch.setattr(threads, "load_runtime", lambda: False)
    assert count(nbytes) == 1


@pytest.mark.parametrize("is_free", [True, False])
def test_threads_start_while_processors_are_free(is_free: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel bound for several threads runs in the calling one as long as other processes use the processors."""
    several: list[bool] = []

    def compiled(self: Any, *, several: bool, made: list[bool] = several) -> Any:
        del self
        return lambda: made.append(several)

    monkeypatch.setattr(threads.Parallel, "compiled", compiled)
    monkeypatch.setattr(HOST, "leaves_processors", lambda: not is_free)
    run = double.on(2)
    run()
    monkeypatch.setattr(HOST, "leaves_processors", lambda: is_free)
    run()
    double.on(1)()
    assert several == [not is_free, is_free, False]


SMALL, LARGE = {"x": (1, 8, 8, 8), "filter": (8, 8, 3, 3)}, {"x": (1, 64, 28, 28), "filter": (64, 64, 3, 3)}
"""Shapes of deformable convolutions."""


@pytest.mark.parametrize(
    ("op", "small", "large"),
    [
        ("deformable_conv", SMALL, LARGE),
        ("deformable_conv_grad", SMALL, LARGE),
        (
            "conv_data_grad",
            {"x_like": (1, 16, 14, 14), "filter": (16, 16, 3, 3)},
            {"x_like": (1, 64, 56, 56), "filter": (64, 64, 3, 3)},
        ),
    ],
)
def test_small_convolutions_start_no_thread(
    op: str, small: dict[str, Any], large: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel of a small convolution runs in the calling thread, and every kernel of a large one on all."""
    monkeypatch.setattr(threads, "load_runtime", lambda: True)
    monkeypatch.setattr("numba.get_num_threads", lambda: 2)
    for shapes, expected in ((small, 1), (large, 2)):
        chosen: list[int] = []

        def ran(self: Any, count: int, chosen: list[int] = chosen) -> Any:
            del self
            return lambda *_: chosen.append(count)

        monkeypatch.setattr(threads.Parallel, "on", ran)
        case = case_of(op, shapes, "float32")
        out = {name: np.zeros(spec.shape, np.float32) for name, spec in case.resolved.outputs.items()}
        kernel = find_kernel(op, "optimized", "cpu", "float32")
        kernel.bind(dict(inputs_of(case).values), case.params, out)()
        assert len(chosen) >= 2
        assert set(chosen) == {expected}


@pytest.mark.skipif(not load_runtime(), reason="oneTBB is not installed")
def test_loops_run_on_the_runtime_that_steals_work() -> None:
    """A process that imports our kernels runs parallel loops on oneTBB, though only pip installed it."""
    code = (
        "import numpy as np, numba\n"
        "from opgauge.ops.sign import jit\n"
        "jit.sign_flat.on(2)(np.ones(9), 0.0, 1.0, np.ones(9), 2)\n"
        "print(numba.threading_layer())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tbb"]


@pytest.mark.skipif(get_num_threads() == 1, reason="one CPU")
@pytest.mark.parametrize(("op", "dtype", "params", "shapes", "outputs"), KERNELS, ids=[one[0] for one in KERNELS])
def test_kernels_give_the_same_bits_on_several_threads(
    op: str,
    dtype: str,
    params: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elementwise kernels write the same bits on one thread as on several."""
    rng, found = np.random.default_rng(0), []
    inputs = {name: rng.standard_normal(shape).astype(dtype_info(dtype).numpy) for name, shape in shapes.items()}
    monkeypatch.setattr(HOST, "leaves_processors", lambda: True)
    for least in (np.inf, 0.0):
        monkeypatch.setattr(threads, "PAYS_NS", least)
        out = {name: np.full(shape, 7, dtype_info(dtype).numpy) for name, shape in outputs.items()}
        find_kernel(op, "optimized", "cpu", dtype).bind(inputs, find_op(op).params(**params), out)()
        found.append(out)
    for name, values in found[0].items():
        np.testing.assert_array_equal(values.view(np.uint32), found[1][name].view(np.uint32))


NUMBERED = """
import numpy as np
from numba import get_thread_id, prange
from opgauge.ops._cpu.threads import parallel

@parallel(error_model="numpy")
def number(out):
    for index in prange(out.size):
        out[index] = get_thread_id()

found = np.full(4, -1)
number.on(1)(found)
print(found.tolist(), number.on(1).stats.cache_hits)
"""
"""A kernel that asks for its thread, called on one."""


def test_code_for_one_thread_from_the_cache_needs_no_runtime(tmp_path: Path) -> None:
    """A second process runs what the first compiled; asking for the thread's number there crashed."""
    script = tmp_path / "numbered.py"
    script.write_text(NUMBERED, encoding="utf-8")
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first, second = (
        subprocess.run([sys.executable, script], env=variables, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.stdout == "[0, 0, 0, 0] Counter()\n", first.stderr
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("[0, 0, 0, 0] Counter({"), second.stdout
