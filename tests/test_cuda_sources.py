"""Every CUDA source compiles for every architecture, without a GPU, and spills no registers."""

from __future__ import annotations

from pathlib import Path

import pytest

import ops
from ops._core.cuda import ARCHITECTURES, Source, all_sources

ROOT = Path(ops.__file__).parent
SPILL_BYTES = 64
"""Allowed spill: 64-bit division is a call, which saves a few registers around it."""


def named(source: Source) -> str:
    """A source by its folder."""
    return source.path.parent.name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_source_compiles(source: Source, architecture: str) -> None:
    """All that a source may be asked for compiles, and spills no more than a call must."""
    compiled = source.compile(architecture)
    assert set(compiled.names) == set(source.expressions)
    spilled = {name: used.spill_bytes for name, used in compiled.resources.items() if used.spill_bytes > SPILL_BYTES}
    assert not spilled
    assert set(compiled.resources) == set(source.expressions)


def test_every_cuda_file_is_declared() -> None:
    """A `.cu` file that no Source declares would never be compiled here."""
    declared = {source.path for source in all_sources()}
    files = set(ROOT.rglob("*.cu"))
    assert files
    assert files == declared


def test_what_does_not_compile_says_where(tmp_path: Path) -> None:
    """A compile error carries NVRTC's log with the line."""
    (tmp_path / "wrong.cu").write_text("template <typename T> __global__ void wrong(T* x) { *x = missing; }")
    source = Source.__new__(Source)
    source.path, source.expressions, source.options = tmp_path / "wrong.cu", ("wrong<float>",), ()
    with pytest.raises(ops.CompileError, match=r"wrong\.cu\(1\): error: .*missing"):
        source.compile("sm_90")
