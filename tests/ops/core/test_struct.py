"""CUDA structs from dtypes: the definition, and that layouts are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgauge.ops import CompileError
from opgauge.ops._cuda import source as source_module
from opgauge.ops._cuda.source import CudaSource, compile_source
from opgauge.ops._cuda.struct import DIVISOR, define, divisor, pack, pointer

FIELDS: list[Any] = [("first", np.int32), ("pad", "V4"), ("second", np.int64, (2,)), ("by", DIVISOR)]
PAIR = np.dtype(FIELDS)
KERNEL = """
#include "divide.cuh"
DEFINE_Pair;
__global__ void add(Pair pair, long long* to) { *to = pair.second[1] + pair.by.shift; }
"""
COPY = """
template <typename T>
struct Both;
DEFINE_Both;
template <typename T>
__global__ void copy(Both<T> of) { *of.to = *of.first; }
"""


def definitions(pair: Any) -> tuple[str, ...]:
    """Options that define the structs of KERNEL."""
    known = {"Divisor": DIVISOR, "Pair": pair}
    return tuple(f"-DDEFINE_{name}={define(name, dtype, known)}" for name, dtype in known.items())


def test_fields_have_the_names_and_types_of_the_dtype() -> None:
    """Arrays and nested structs are members, padding is none."""
    text = define("Pair", PAIR, {"Divisor": DIVISOR})
    assert text.startswith("struct Pair { int first; long long second[2]; Divisor by; };")
    assert "sizeof(Pair) == 36" in text
    with pytest.raises(KeyError):
        define("Pair", np.dtype([("x", np.complex64)]), {})


def test_a_field_that_cpp_would_place_elsewhere_is_refused() -> None:
    """Packed as NumPy does by default, too early; with padding that C++ does not add, too late; nested, likewise."""
    for fields in (
        [("first", np.int32), ("second", np.int64)],
        [("first", np.int32), ("pad", "V4"), ("second", np.int32)],
        [("first", np.int64), ("pad", "V4"), ("by", DIVISOR)],
    ):
        with pytest.raises(ValueError, match=r"Pair\.(second|by) is at byte \d+, C\+\+ would place it at \d+"):
            define("Pair", np.dtype(fields), {"Divisor": DIVISOR})


def test_another_size_does_not_compile(tmp_path: Path) -> None:
    """C++ pads the struct to a multiple of 8 bytes: a dtype without that padding is refused, one with it compiles."""
    source = tmp_path / "pair.cu"
    source.write_text(KERNEL, encoding="utf-8")
    with pytest.raises(CompileError, match="size of Pair"):
        compile_source(source, ("add",), "sm_80", definitions(PAIR))
    assert compile_source(source, ("add",), "sm_80", definitions(np.dtype([*FIELDS, ("end", "V4")]))).names


def test_a_template_is_specialized_by_a_dtype_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One macro defines all specializations, with pointers to their own type; a kernel of another is not compiled."""
    monkeypatch.setattr(source_module, "_SOURCES", [])
    path = tmp_path / "copy.cu"
    path.write_text(COPY, encoding="utf-8")
    structs = {
        f"Both<{ctype}>": np.dtype([("to", pointer(ctype)), ("first", pointer(f"const {ctype}"))])
        for ctype in ("float", "double")
    }
    made = CudaSource(str(path), "copy.cu", ("copy<float>", "copy<double>"), structs=structs)
    assert set(made.compile("sm_80").names) == {"copy<float>", "copy<double>"}
    with pytest.raises(CompileError, match="incomplete type"):
        made.compile("sm_80", ("copy<int>",))
    path.write_text(COPY.replace("*of.to = *of.first", "*of.first = *of.to"), encoding="utf-8")
    with pytest.raises(CompileError, match="modifiable"):
        made.compile("sm_80")


def test_values_are_packed_by_name() -> None:
    """Numbers, arrays and divisors are set by field, whatever their order; a missing field is refused."""
    found = pack(PAIR, {"by": 7, "second": (3, 4), "first": 2})
    assert int(found["first"]) == 2
    assert found["second"].tolist() == [3, 4]
    assert found["by"] == divisor(7)
    several = np.dtype([("by", DIVISOR, (2,))])
    assert pack(several, {"by": (5, 9)})["by"].tolist() == [divisor(5).item(), divisor(9).item()]
    with pytest.raises(KeyError, match="second"):
        pack(PAIR, {"first": 2, "by": 7})
