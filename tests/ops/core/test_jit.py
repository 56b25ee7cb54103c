"""What Numba kernels share: 16-bit floats as bits, powers, a folder for what was compiled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.codegen import get_host_cpu_features
from numpy.typing import NDArray

from opgauge import ops
from opgauge.harness.settings import IMPORT_PATH
from opgauge.ops import dtype_info
from opgauge.ops._cpu.jit import INNER, half_registers, narrow, storage, whole_registers, widen
from opgauge.ops._cpu.jit_powers import MOST_HALVES, power, power_of_halves

SIXTEEN = ("float16", "bfloat16")


@njit  # type: ignore[untyped-decorator]
def widen_all(stored: Any, out: Any) -> None:
    """Every element widened."""
    for index in range(stored.size):
        out[index] = widen(stored[index])


@njit  # type: ignore[untyped-decorator]
def narrow_all(numbers: Any, out: Any) -> None:
    """Every number narrowed."""
    for index in range(numbers.size):
        out[index] = narrow(numbers[index], out[index])


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def power_all(numbers: Any, p: Any, out: Any) -> None:
    """Every number to the p."""
    for index in range(numbers.size):
        out[index] = power(numbers[index], p)


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def power_all_of_halves(numbers: Any, halves: int, out: Any) -> None:
    """Every number to the half of `halves`."""
    for index in range(numbers.size):
        out[index] = power_of_halves(numbers[index], halves)


def powers_of(x: NDArray[Any], p: float) -> list[NDArray[Any]]:
    """The powers by series, and by products and roots where these compute them."""
    found = [np.empty_like(x), np.empty_like(x)]
    power_all(x, x.dtype.type(p), found[0])
    if not (2 * p).is_integer() or abs(2 * p) > MOST_HALVES:
        return found[:1]
    power_all_of_halves(x, int(2 * p), found[1])
    return found


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})  # type: ignore[untyped-decorator]
def power_in_a_sum(numbers: Any, p: Any) -> Any:
    """A sum of powers that may be reordered."""
    total = np.float32(0)
    for index in range(numbers.size):
        total += power(numbers[index], p)
    return total


def sum_of_rows(registers: Any) -> Any:
    """A loop over rows that has their sums from a function that asks for these registers."""

    @njit(fastmath={"reassoc", "contract", "nsz"}, **INNER)  # type: ignore[untyped-decorator]
    def total(numbers: Any, found: Any) -> Any:
        registers()
        for index in range(numbers.size):
            found += numbers[index]
        return found

    @njit(error_model="numpy")  # type: ignore[untyped-decorator]
    def totals(rows: Any, out: Any, zero: Any) -> None:
        for row in range(rows.shape[0]):
            out[row] = total(rows[row], zero)

    return totals


def every_16_bits(dtype: str) -> NDArray[Any]:
    """All 65536 numbers of a 16-bit dtype."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype_info(dtype).numpy)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_widen_is_exact(dtype: str) -> None:
    """Every number of 16 bits, subnormal, infinite or NaN, is the same in float32."""
    out = np.empty(1 << 16, np.float32)
    widen_all(storage(every_16_bits(dtype)), out)
    assert np.array_equal(out, every_16_bits(dtype).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_narrow_rounds_to_nearest_even(dtype: str) -> None:
    """All 16-bit numbers, the ties between them, their neighbours in float32, and random bits round as NumPy rounds."""
    exact = every_16_bits(dtype).astype(np.float32)
    bits = exact.view(np.uint32)
    step = np.uint32(1 << (12 if dtype == "float16" else 15))
    around = [
        (bits + shift).view(np.float32) for shift in (step - 1, step, step + 1, np.uint32(1), np.uint32(0xFFFFFFFF))
    ]
    random = np.random.default_rng(1).integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    numbers = np.concatenate([exact, *around, random])
    out = np.empty(numbers.size, dtype_info(dtype).numpy)
    narrow_all(numbers, storage(out))
    with np.errstate(all="ignore"):
        expected = numbers.astype(out.dtype)
    nan = np.isnan(numbers)
    assert np.isnan(out[nan].astype(np.float32)).all()
    assert np.array_equal(out[~nan].view(np.uint16), expected[~nan].view(np.uint16))


@pytest.mark.parametrize("p", [0.01, 0.5, 1.2, 1.5, 2.5, 3.0, 7.0, 7.3, -0.3, -1.0, -3.5, -4.0])
def test_powers_are_right_to_a_few_units(p: float) -> None:
    """Over all of float32, subnormals included, a power is within 4 units, 8 for large exponents."""
    bits = np.random.default_rng(2).integers(0, 0x7F800000, 1 << 18, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.random.default_rng(3).random(1 << 16, np.float32)])
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) ** np.float64(np.float32(p))
        unit = np.maximum(np.spacing(exact.astype(np.float32)), np.float32(1e-45)).astype(np.float64)
        finite = np.isfinite(unit)
        for out in powers_of(x, p):
            assert np.max(np.abs(out[finite] - exact[finite]) / unit[finite]) < (4 if abs(p) <= 3 else 8)
            assert np.array_equal(np.isinf(out[~finite]), np.isinf(exact[~finite].astype(np.float32)))


@pytest.mark.skipif(bool(np.finfo(np.longdouble).eps > 1e-18), reason="NumPy has no longer float here")
@pytest.mark.parametrize("p", [0.01, 0.5, 1 / 3, 1.5, 2.5, 3.0, 7.0, 7.3, -0.3, -1.0, -3.5, -4.0])
def test_powers_in_float64_are_right_to_a_few_units(p: float) -> None:
    """Over all of float64, subnormals included, a power is within 4 units, 8 for large exponents."""
    bits = np.random.default_rng(2).integers(0, 0x7FF << 52, 1 << 17, dtype=np.uint64)
    x = np.concatenate([bits.view(np.float64), np.random.default_rng(3).random(1 << 15)])
    with np.errstate(all="ignore"):
        exact = x.astype(np.longdouble) ** np.longdouble(p)
        rounded = exact.astype(np.float64)
        finite = np.isfinite(rounded)
        for out in powers_of(x, p):
            units = np.abs(out[finite] - exact[finite]) / np.maximum(np.spacing(rounded[finite]), 5e-324)
            assert np.max(units) < (4 if abs(p) <= 3 else 8)
            assert np.array_equal(out[~finite], rounded[~finite])


def test_a_sum_that_may_be_reordered_keeps_its_powers() -> None:
    """The freedom to reorder a sum does not reach into the powers, which would lose their low bits by it."""
    for number in (0.4777832, 0.7, 3.0):
        x = np.array([number], np.float32)
        assert power_in_a_sum(x, np.float32(-2.5)) == pytest.approx(x[0].astype(np.float64) ** -2.5, rel=1e-6)


@pytest.mark.parametrize("p", [0.5, 2.2, 7.5, 100.0, 1e30, -0.5, -2.0, -100.0, -1e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_what_is_special(dtype: str, p: float) -> None:
    """0, 1, infinity and NaN, and powers that overflow or vanish, are as in NumPy."""
    x = np.array([0, 1, np.inf, np.nan, 1e-38, 1e38, 1e-45, 2, 0.5], dtype)
    with np.errstate(all="ignore"):
        for out in powers_of(x, p):
            assert out == pytest.approx(x ** x.dtype.type(p), rel=3e-5, abs=1e-38, nan_ok=True)


def test_storage_shares_memory() -> None:
    """16-bit floats are viewed as bits, other dtypes are the arrays themselves."""
    for dtype in ("float16", "bfloat16", "float32", "float64", "int32"):
        array = np.zeros(4, dtype_info(dtype).numpy)
        assert np.shares_memory(storage(array), array)
        assert storage(array).itemsize == array.itemsize


@pytest.mark.parametrize("registers", [whole_registers, half_registers])
def test_loops_are_compiled_for_the_registers_asked_for(registers: Any) -> None:
    """512 bits, where the processor has them, or half of them, whatever other loops are compiled for."""
    rows, sums = np.arange(3000, dtype=np.float32).reshape(3, 1000), np.empty(3, np.float32)
    kernel = sum_of_rows(registers)
    kernel(rows, sums, np.float32(0))
    np.testing.assert_array_equal(sums, rows.sum(axis=1))
    (code,) = kernel.inspect_asm().values()
    inner = re.search(r"^_ZN5tests\S*5total\S*:$.*?^\s*\.size", code, re.MULTILINE | re.DOTALL)
    assert inner is not None
    assert ("zmm" in inner[0]) == (registers is whole_registers and "+avx512f" in get_host_cpu_features())


def test_what_was_compiled_of_other_shared_code_is_not_found(tmp_path: Path) -> None:
    """Numba asks of a kernel's own file only whether it has changed; what kernels share has a folder for each state."""
    tree = shutil.copytree(Path(ops.__file__).parent, tmp_path / "ops", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from pathlib import Path; from opgauge.harness.worker.tree import use_tree; use_tree(Path.cwd()); "
    code += "import opgauge.ops._cpu.jit; from numba import config; print(config.CACHE_DIR)"
    command = [sys.executable, "-c", code]

    def folder() -> str:
        given = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONPATH": IMPORT_PATH}
        return subprocess.run(command, cwd=tmp_path, env=given, check=True, capture_output=True, text=True).stdout

    before = folder()
    assert before == folder()
    assert before.startswith(str(tmp_path / "numba" / ""))
    with (tree / "_cpu" / "tile" / "jit.py").open("a") as file:
        file.write("# another state\n")
    assert folder() != before


RACE = """
import sys
from numba.core.caching import IndexDataCacheFile
from opgauge.ops._cpu import jit
load = IndexDataCacheFile._load_index
# two processes that read the index before either writes to it
IndexDataCacheFile._load_index = lambda self: {}
one, two = (IndexDataCacheFile(sys.argv[1], "kernel", "stamp") for _ in range(2))
one.save("signature 1", "code 1")
jit.os.getpid = lambda: 1
two.save("signature 2", "code 2")
IndexDataCacheFile._load_index = load
print(two.load("signature 1"), two.load("signature 2"))
"""


def test_processes_that_compile_at_once_keep_their_code_apart(tmp_path: Path) -> None:
    """Of two signatures saved at the same time one may be compiled again; neither gets the code of the other."""
    done = subprocess.run([sys.executable, "-c", RACE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "None code 2\n"
    assert len(list(tmp_path.glob("*kernel.1.nbc"))) == 2
