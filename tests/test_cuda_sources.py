"""Every CUDA source compiles for every architecture, without a GPU, and spills no registers where it is optimized."""

from __future__ import annotations

from pathlib import Path

import pytest

import ops
from ops._core.cuda import ARCHITECTURES, Compiled, Source, all_sources

ROOT = Path(ops.__file__).parent
OPTIMIZED = "sm_90a"
"""Where spills are looked for in every run: optimizing takes nearly all of a compiler's time."""
SPILL_BYTES = 64
"""Allowed spill: 64-bit division is a call, which saves a few registers around it."""


def named(source: Source) -> str:
    """A source by its folder."""
    return source.path.parent.name


def spilled(compiled: Compiled) -> dict[str, int]:
    """Kernels that spill more than a call must, with the bytes."""
    found = {name: used.spill_bytes for name, used in compiled.resources.items()}
    return {name: spill for name, spill in found.items() if spill > SPILL_BYTES}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_source_compiles(source: Source, architecture: str) -> None:
    """All that a source may be asked for compiles; optimized, for one architecture, it spills no more than a call."""
    compiled = source.compile(architecture, draft=architecture != OPTIMIZED)
    assert set(compiled.names) == set(source.expressions)
    assert set(compiled.resources) == set(source.expressions)
    assert not (spilled(compiled) if architecture == OPTIMIZED else {})


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", [one for one in ARCHITECTURES if one != OPTIMIZED])
@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_source_spills_nowhere(source: Source, architecture: str) -> None:
    """Optimized for the other architectures, no kernel spills more than a call must."""
    assert not spilled(source.compile(architecture))


def test_every_cuda_file_is_declared() -> None:
    """A `.cu` file that no Source declares would never be compiled here."""
    declared = {source.path for source in all_sources()}
    files = set(ROOT.rglob("*.cu"))
    assert files
    assert files == declared


def written(folder: Path, name: str, body: str) -> Source:
    """A source of one kernel, which is in no list."""
    (folder / f"{name}.cu").write_text(f"template <typename T> __global__ void {name}(T* x) {{ {body} }}")
    source = Source.__new__(Source)
    source.path, source.expressions, source.options = folder / f"{name}.cu", (f"{name}<float>",), ()
    return source


@pytest.mark.parametrize("draft", [False, True])
def test_what_does_not_compile_says_where(tmp_path: Path, draft: bool) -> None:
    """A compile error carries NVRTC's log with the line, of a draft too."""
    source = written(tmp_path, "wrong", "*x = missing;")
    with pytest.raises(ops.CompileError, match=r"wrong\.cu\(1\): error: .*missing"):
        source.compile("sm_90", draft=draft)


def test_a_draft_is_not_taken_for_the_real_thing(tmp_path: Path) -> None:
    """Draft and optimized binary of one source lie apart, whichever is compiled first."""
    source = written(tmp_path, "right", "for (int i = 0; i < 64; i++) x[i] += i;")
    first, real, again = (source.compile("sm_90", draft=draft) for draft in (True, False, True))
    assert first.cubin == again.cubin != real.cubin
    assert first.cubin.read_bytes() != real.cubin.read_bytes()
