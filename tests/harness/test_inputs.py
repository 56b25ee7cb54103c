"""Inputs depend on the case's id and the input's name, and hold what the op and the case ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.case import Case, InputSpec
from opgauge.harness.worker import inputs
from opgauge.harness.worker.fresh_values import scale_floats
from opgauge.harness.worker.inputs import (
    ALIGNMENT,
    LARGE_BYTES,
    LARGE_PAGE,
    LAYOUTS,
    draw,
    empty_bytes,
    make_inputs,
    place,
    widen,
)
from opgauge.ops import DTYPES, Input, dtype_info, find_op

ROOT = Path(__file__).parents[2]
PLAIN = InputSpec()
PROGRAM = """
from tests.harness.test_inputs import a_case
from opgauge.harness.worker.inputs import make_inputs
print(make_inputs(a_case()).values["x"].tobytes().hex())
"""


def a_case(**changes: Any) -> Case:
    """A small p_norm_grad."""
    case = Case("p_norm_grad", "small", {"x": (6, 50)}, "float32", find_op("p_norm_grad").params())
    return replace(case, **changes)


def rng() -> np.random.Generator:
    """A fresh generator."""
    return np.random.default_rng(1)


def test_another_process_draws_the_same() -> None:
    """The same case gives the same bytes in another process."""
    other = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert other.stdout.strip() == make_inputs(a_case()).values["x"].tobytes().hex()


def test_a_name_does_not_matter_and_content_does() -> None:
    """Renaming a case leaves its inputs alone; another parameter draws others."""
    first = make_inputs(a_case()).values["x"]
    assert np.array_equal(make_inputs(a_case(name="other", tags=("x",))).values["x"], first)
    other = a_case(params=find_op("p_norm_grad").params(porder=3.0))
    assert not np.array_equal(make_inputs(other).values["x"], first)


def test_inputs_of_a_case_differ() -> None:
    """Two inputs of one shape hold different numbers."""
    case = Case("add_n", "small", {"in_0": (100,)}, "float64", find_op("add_n").params())
    values = make_inputs(case).values
    assert not np.array_equal(values["in_0"], values["in_1"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_derived_inputs_follow_from_the_rounded_ones(dtype: str) -> None:
    """y of p_norm_grad is the norm of x as the kernel sees it, rounded once."""
    inputs = make_inputs(a_case(dtype=dtype))
    x = inputs.values["x"].astype(np.float64)
    y = np.sqrt(np.sum(x * x, axis=-1)).astype(dtype_info(dtype).numpy)
    assert np.array_equal(inputs.values["y"], y)
    assert np.array_equal(inputs.wide["y"], y.astype(np.float64))


def test_normal_inputs_keep_away_from_zero() -> None:
    """An op's own normal inputs hold no number below a thousandth of their deviation, a case's own do."""
    own = draw(rng(), (200_000,), dtype_info("float64"), Input("x"), PLAIN)
    asked = draw(rng(), (200_000,), dtype_info("float64"), Input("x"), InputSpec(kind="normal"))
    assert np.min(np.abs(own)) >= 1e-3 > np.min(np.abs(asked))
    assert abs(float(np.mean(own))) < 0.01
    assert abs(float(np.std(own)) - 1) < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_drawn(dtype: str) -> None:
    """Inputs have their dtype, are finite, and are not all one number."""
    drawn = draw(rng(), (7, 9), dtype_info(dtype), Input("x"), PLAIN)
    assert drawn.dtype == dtype_info(dtype).numpy
    assert drawn.shape == (7, 9)
    assert np.all(np.isfinite(widen(drawn).astype(np.complex128)))
    assert len(np.unique(widen(drawn))) > 1


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        (InputSpec(kind="uniform", low=2, high=3), 2, 3),
        (InputSpec(kind="integers", low=-2, high=2), -2, 2),
        (InputSpec(kind="constant", value=7), 7, 7),
        (InputSpec(kind="normal", mean=50, std=0.5), 40, 60),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "complex64"])
def test_a_case_chooses_the_distribution(spec: InputSpec, low: float, high: float, dtype: str) -> None:
    """Numbers lie where the case says, whatever the dtype."""
    drawn = draw(rng(), (500,), dtype_info(dtype), Input("x"), spec)
    assert np.all((drawn.real >= low) & (drawn.real <= high))


def test_an_op_chooses_its_own_distribution() -> None:
    """Without a word in the case, the op's choice stands."""
    drawn = draw(rng(), (500,), dtype_info("float32"), Input("w", kind="uniform", low=4, high=5), PLAIN)
    assert np.all((drawn >= 4) & (drawn <= 5))


def test_integers_stay_in_range() -> None:
    """Numbers beyond an integer dtype are cut off, not wrapped."""
    drawn = draw(rng(), (500,), dtype_info("uint8"), Input("x"), InputSpec(kind="normal", mean=0, std=1e12))
    assert set(np.unique(drawn)) <= {0, 255}


def test_unsigned_and_bool_vary() -> None:
    """Unsigned integers and bool take more than one value."""
    assert draw(rng(), (500,), dtype_info("uint8"), Input("x"), PLAIN).max() > 50
    share = np.mean(draw(rng(), (500,), dtype_info("bool"), Input("x"), PLAIN))
    assert 0.3 < share < 0.7


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex128", "bool"])
def test_placing_keeps_values(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    """A placed array has the same values, shape and dtype in memory of its own."""
    value = draw(rng(), shape, dtype_info(dtype), Input("x"), PLAIN).reshape(shape)
    placed = place(value, layout, "cpu")
    assert placed.shape == shape
    assert placed.dtype == value.dtype
    assert np.array_equal(placed, value)
    assert not np.shares_memory(placed, value)


def test_layouts_are_what_they_say() -> None:
    """contiguous is aligned, offset is one element past that, transposed has its axes reversed."""
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert place(value, "contiguous", "cpu").ctypes.data % ALIGNMENT == 0
    offset = place(value, "offset", "cpu")
    assert offset.ctypes.data % ALIGNMENT == 4
    assert offset.flags.c_contiguous
    assert place(value, "transposed", "cpu").strides == (4, 12)


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="the system does not tell")
def test_large_arrays_ask_for_large_pages() -> None:
    """Every one by itself, aligned to a page, however memory was used before."""
    large = [empty_bytes(LARGE_BYTES + 1, "cpu") for _ in range(2)]
    for array in large:
        assert array.nbytes == LARGE_BYTES + 1
        assert array.ctypes.data % LARGE_PAGE == 0
        assert "hg" in flags_of(array.ctypes.data)
    assert not np.shares_memory(*large)


def flags_of(address: int) -> list[str]:
    """Of the mapping that has this address, as the kernel lists them."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            within = low <= address < high
        elif within and first == "VmFlags:":
            return rest
    return []


def test_widening_keeps_exact_dtypes() -> None:
    """References get float64, complex128, or the integers themselves."""
    assert widen(np.ones(2, np.float16)).dtype == np.float64
    assert widen(np.ones(2, np.complex64)).dtype == np.complex128
    assert widen(np.ones(2, np.int8)).dtype == np.int8
    assert widen(np.ones(2, np.bool_)).dtype == np.bool_


def test_infinite_parameters_are_fine() -> None:
    """A case with an infinite parameter has inputs as any other."""
    case = a_case(params=find_op("p_norm_grad").params(porder=inf))
    assert np.all(np.isfinite(make_inputs(case).values["y"]))


def test_parts_do_not_depend_on_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """One CPU and many draw the same numbers, no part repeats another, and the first is what a small input gets."""
    monkeypatch.setattr(inputs, "PART", 100)
    wanted = dtype_info("float32"), Input("x"), PLAIN
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    alone = inputs.draw_parts(7, 950, *wanted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert np.array_equal(alone, inputs.draw_parts(7, 950, *wanted))
    assert len(np.unique(alone)) == len(alone)
    assert np.array_equal(alone[:100], inputs.draw_parts(7, 100, *wanted))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tables_multiply_as_numpy_does(dtype: str) -> None:
    """Products of all 16-bit values by a table have the bits of NumPy's, NaN and infinities among them."""
    every = np.arange(1 << 17).astype(np.uint16).view(dtype_info(dtype).numpy)
    found = every.copy()
    scale_floats(found, 0.7)
    with np.errstate(all="ignore"):
        wanted = every * every.dtype.type(0.7)
    assert np.array_equal(found.view(np.uint16), wanted.view(np.uint16))
