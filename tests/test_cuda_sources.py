"""Every CUDA source compiles for every architecture, without a GPU, and spills no registers where it is optimized."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from opgauge import harness, ops
from opgauge.ops._cuda.source import ARCHITECTURES, Compiled, CudaSource, all_sources, compile_source, program_options
from tests.draws import some_of_each
from tests.translation import Translated, translate

ROOT, HARNESS = Path(ops.__file__).parent, Path(harness.__file__).parent
OPTIMIZED = "sm_90a"
"""Where spills are looked for in every run: optimizing takes nearly all of a compiler's time."""
EACH_TYPE = "sm_80"
"""Where all types are compiled in every run; for others, what is like there is by `-m thorough`."""
DRAFTS = {"sm_75": 2, "sm_120": 2}
"""Kernels that a run drafts of each template on the oldest and the newest architecture; on the others one."""
OPTIMIZED_OF_EACH = 1
"""Kernels of each template and type in which a run looks for spills: over several runs all of them."""
TWINS = ("double", "<long", "<unsigned", "<int", "<short", "<signed", "<bool")
"""Types that architectures compute with alike."""
SHORT = ("__half", "__nv_bfloat16")
"""Types that the LATEST architectures compute with alike, but for matrix products."""
LATEST = ("sm_100", "sm_120")
PRODUCTS = ('mma.cuh"', 'warpgroup.cuh"')
"""What sources of matrix products include."""
SELDOM = (*TWINS, *SHORT)
"""Types whose kernels spill no more than those of float32 do: they are looked at by `-m thorough`."""
WHOLE = ("fused.cu", "persistent.cu")
"""Sources whose own tests look at all types: compiled once for these and those."""
COMMON = """
    cvt.f32.f16 cvt.rn.f16.f32 mov.b32 prefetch.global.L2 setp.ne.u32 trap
    ex2.approx.f32 lg2.approx.f32 rcp.approx.f32 sqrt.approx.f32 sqrt.approx.ftz.f32
    abs.f16x2 set.equ.f32.f32 set.equ.u32.f16x2 set.neu.f32.f32 set.neu.u32.f16x2
    ld.global.cg.u32 ld.global.cg.u64 ld.global.cs.u16 ld.global.cs.u32 ld.global.cs.v2.u32 ld.global.cs.v4.b32
    ld.global.cs.v4.u32 ld.global.v4.b32 ld.relaxed.gpu.global.u64
    st.global.cs.u16 st.global.cs.u32 st.global.cs.v4.u32 st.relaxed.gpu.global.u64
"""
"""Instructions that every architecture has, the oldest here too."""
SINCE_AMPERE = """
    abs.bf16x2 max.NaN.f32 min.NaN.f32
    cp.async.cg.shared.global cp.async.commit_group cp.async.wait_group
    ld.global.L2::cache_hint.v4.b32 ld.global.b32 ld.global.u16 ld.global.u8 ld.global.v2.b32
    st.global.L2::cache_hint.b16 st.global.L2::cache_hint.b32 st.global.L2::cache_hint.b8
    st.global.L2::cache_hint.v2.b32 st.global.L2::cache_hint.v4.b32
    st.global.b16 st.global.b32 st.global.b8 st.global.v2.b32 st.global.v4.b32
"""
SINCE_HOPPER = f"{SINCE_AMPERE} cvt.f32.bf16 cvt.rn.bf16.f32 set.equ.u32.bf16x2 set.neu.u32.bf16x2"
NEWER = {"sm_75": "", "sm_90a": SINCE_HOPPER, "sm_100": SINCE_HOPPER, "sm_120": SINCE_HOPPER}
"""Those that an architecture has besides. On others sources are assembled, whatever they hold."""
SPILL_BYTES = 64
"""Allowed spill: 64-bit division is a call, which saves a few registers around it."""
SPILLING = {
    ("sm_80", "gemm<float, float, true, false, 1, 1, 1, 3, 128>"): 80,
    ("sm_100", "convolve<float, 1, 4, 2, 4, 3>"): 128,
    ("sm_100", "reduce_slabs_block<Norm<double, POWER>, 2, false>"): 132,
    ("sm_100", "reduce_slabs_block<Norm<double, POWER>, 2, true>"): 132,
    ("sm_100", "reduce_columns_grid<SummedGrad<double>, 2, false, false>"): 72,
    ("sm_75", "reduce_columns_grid<Norm<float, COUNT>, 4, false, false>"): 88,
    (OPTIMIZED, "reduce_columns_grid<Norm<float, COUNT>, 4, false, false>"): 72,
    **{
        (architecture, f"reduce_rows_once<{functor}, 2, 1024, 1>"): 132
        for architecture in (OPTIMIZED, "sm_100")
        for functor in ("Dot<double>", "IntegerDot<unsigned long long>", "ComplexDot<float2>")
    },
}
"""Spills that are known: without them one block less would be resident. Those of reduce_rows_once are in its few
collecting blocks, and one block per multiprocessor takes 1.5 times as long on an H200; others were not timed there."""


def named(source: CudaSource) -> str:
    """A source by its folder."""
    return source.path.parent.name


def spilled(compiled: Compiled, architecture: str) -> dict[str, int]:
    """Kernels that spill more than a call must, and than is known of them, with the bytes."""
    found = {name: used.spill_bytes for name, used in compiled.resources.items()}
    return {name: spill for name, spill in found.items() if spill > SPILLING.get((architecture, name), SPILL_BYTES)}


def serialized(compiled: Compiled) -> list[str]:
    """Kernels whose products wait for each other."""
    return [name for name, used in compiled.resources.items() if used.serialized]


@pytest.fixture(scope="module")
def drafts() -> Iterator[ProcessPoolExecutor]:
    """A process in which drafts are compiled: afterwards NVRTC optimizes less there."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def without(expressions: tuple[str, ...], types: tuple[str, ...]) -> tuple[str, ...]:
    """Kernels of other types."""
    return tuple(one for one in expressions if not any(name in one for name in types))


def template(expression: str) -> str:
    """Name of a kernel's template."""
    return expression.partition("<")[0]


def typed(expression: str) -> str:
    """A kernel's template with its first argument's type: `reduce_rows_block<Norm<float` of those for any order."""
    return expression.partition(",")[0]


def optimizable(source: CudaSource) -> tuple[str, ...]:
    """Kernels in which runs look for spills."""
    some = () if source.path.name in WHOLE else without(source.expressions, SELDOM)
    return some or source.expressions


def optimized(source: CudaSource) -> tuple[str, ...]:
    """Kernels in which this run looks for spills."""
    kernels = optimizable(source)
    return kernels if source.path.name in WHOLE else drawn(source, OPTIMIZED, kernels, typed, OPTIMIZED_OF_EACH)


def drawn(
    source: CudaSource, use: str, kernels: tuple[str, ...], group: Callable[[str], str], count: int
) -> tuple[str, ...]:
    """`count` kernels of each group that this run takes."""
    return some_of_each(f"{source.path.relative_to(ROOT)} {use}", kernels, group, count)


def multiplies(source: CudaSource) -> bool:
    """Whether there are matrix products in a source."""
    return any(header in source.path.read_text(encoding="utf-8") for header in PRODUCTS)


def draftable(source: CudaSource, architecture: str) -> tuple[str, ...]:
    """Kernels that runs only draft for an architecture: those that may differ there, unless they are optimized."""
    wanted = source.on(architecture)
    if architecture == EACH_TYPE:
        return wanted
    if architecture == OPTIMIZED:
        seen = {*optimizable(source), *without(source.on(EACH_TYPE), SHORT)}
        return tuple(one for one in wanted if one not in seen)
    wanted = without(wanted, TWINS) or wanted
    if architecture in LATEST and not multiplies(source):
        wanted = without(wanted, SHORT) or wanted
    return wanted


def drafted(source: CudaSource, architecture: str) -> tuple[str, ...]:
    """Kernels that this run drafts: of each template, on EACH_TYPE with each type."""
    group = typed if architecture == EACH_TYPE else template
    return drawn(source, architecture, draftable(source, architecture), group, DRAFTS.get(architecture, 1))


def is_common(translated: Translated, architecture: str) -> bool:
    """Whether an assembler that takes what the same source has for one architecture takes this for another.

    What NVRTC writes by itself it may be trusted with; what is written by hand must be known to be there.
    """
    known = {*COMMON.split(), *NEWER[architecture].split()}
    return not translated.has_clusters() and translated.instructions_by_hand() <= known


def draft_of(path: Path, architecture: str, expressions: tuple[str, ...]) -> set[str]:
    """What compiles of a source, named by its file: to PTX, and to a binary where that may tell more."""
    source = next(source for source in all_sources() if source.path == path)
    if architecture in NEWER and not multiplies(source) and not source.clustered & set(expressions):
        translated = translate(source, architecture, expressions)
        if is_common(translated, architecture):
            return set(translated.names)
    compiled = source.compile(architecture, expressions, draft=True)
    return set(compiled.names) & set(compiled.resources)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_source_compiles(source: CudaSource, architecture: str, drafts: ProcessPoolExecutor) -> None:
    """All that a source may be asked for compiles, on each architecture what may differ there."""
    wanted = drafted(source, architecture)
    if wanted:
        assert drafts.submit(draft_of, source.path, architecture, wanted).result() == set(wanted)


@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_every_expression_is_compiled_somewhere(source: CudaSource) -> None:
    """A run compiles each template with each type, all runs every kernel; each architecture has some to compile."""
    possible = {name: draftable(source, name) for name in ARCHITECTURES}
    possible[OPTIMIZED] += optimizable(source)
    assert {one for found in possible.values() for one in found} == set(source.expressions)
    compiled = {name: drafted(source, name) for name in ARCHITECTURES}
    compiled[OPTIMIZED] += optimized(source)
    assert {typed(one) for found in compiled.values() for one in found} == {typed(one) for one in source.expressions}
    for name in ARCHITECTURES:
        assert {template(one) for one in compiled[name]} == {template(one) for one in possible[name]} != set()


@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_source_spills_nowhere(source: CudaSource) -> None:
    """Optimized for Hopper, no kernel of float32 spills more than a call must, and no products wait for each other."""
    compiled = source.compile(OPTIMIZED, optimized(source))
    assert not spilled(compiled, OPTIMIZED)
    assert not serialized(compiled)


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", all_sources(), ids=named)
def test_source_spills_nowhere_else(source: CudaSource, architecture: str) -> None:
    """Optimized for any architecture, no kernel of any type spills more than a call must, or has products that wait."""
    compiled = source.compile(architecture)
    assert not spilled(compiled, architecture)
    assert not serialized(compiled)


def test_every_cuda_file_is_declared() -> None:
    """A `.cu` file that no CudaSource declares would never be compiled here."""
    declared = {source.path for source in all_sources()}
    files = set(ROOT.rglob("*.cu"))
    assert files
    assert files == declared


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("path", sorted(HARNESS.rglob("*.cu")), ids=lambda path: path.stem)
def test_the_harness_compiles(path: Path, architecture: str) -> None:
    """Its kernels, for which CuPy calls NVRTC on a GPU."""
    text = path.read_text(encoding="utf-8")
    names = tuple(re.findall(r"^extern \"C\" __global__ void (\w+)\(", text, re.MULTILINE))
    assert len(names) == text.count("__global__")
    compiled = compile_source(path, names, architecture)
    assert not any(used.spill_bytes for used in compiled.resources.values())


def written(folder: Path, name: str, body: str) -> CudaSource:
    """A source of one kernel, which is in no list."""
    (folder / f"{name}.cu").write_text(f"template <typename T> __global__ void {name}(T* x) {{ {body} }}")
    source = CudaSource.__new__(CudaSource)
    source.path, source.expressions, source.options = folder / f"{name}.cu", (f"{name}<float>",), ()
    source.clustered = frozenset()
    return source


def test_what_does_not_compile_says_where(tmp_path: Path) -> None:
    """A compile error carries NVRTC's log with the line."""
    source = written(tmp_path, "wrong", "*x = missing;")
    with pytest.raises(ops.CompileError, match=r"wrong\.cu\(1\): error: .*missing"):
        source.compile("sm_90")


@pytest.mark.parametrize(
    ("body", "common"),
    [
        ("*x += 1;", True),
        ('asm("sqrt.approx.f32 %0, %0;" : "+f"(*x));', True),
        ('asm volatile("cp.async.commit_group;");', False),
        ('asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; @p cp.async.wait_all; }");', False),
        ('asm volatile("cvt.rn.bf16.f32 %0, %1;" : "=h"(*reinterpret_cast<short*>(x)) : "f"(*x));', False),
    ],
)
def test_what_an_architecture_may_lack_is_assembled(
    tmp_path: Path, drafts: ProcessPoolExecutor, body: str, common: bool
) -> None:
    """NVRTC passes on instructions written by hand that sm_75 lacks; only what is known to be there is left at that."""
    drafts.submit(check_translation, tmp_path, body, common=common).result()


def check_translation(folder: Path, body: str, *, common: bool) -> None:
    """For sm_75."""
    source = written(folder, "hand", body)
    translated = translate(source, "sm_75", source.expressions)
    assert set(translated.names) == set(source.expressions)
    assert is_common(translated, "sm_75") == common


def test_what_cannot_be_translated_says_where(tmp_path: Path, drafts: ProcessPoolExecutor) -> None:
    """A compile error carries NVRTC's log with the line, without an assembler too."""
    source = written(tmp_path, "wrong", "*x = missing;")
    with pytest.raises(ops.CompileError, match=r"wrong\.cu\(1\): error: .*missing"):
        drafts.submit(translate, source, "sm_75", source.expressions).result()


def test_a_draft_is_not_taken_for_the_real_thing(tmp_path: Path, drafts: ProcessPoolExecutor) -> None:
    """Draft and optimized binary of one source lie apart."""
    source = written(tmp_path, "right", "for (int i = 0; i < 64; i++) x[i] += i;")
    real = source.compile("sm_90")
    draft = drafts.submit(compile_source, source.path, source.expressions, "sm_90", draft=True).result()
    assert draft.cubin != real.cubin
    assert draft.cubin.read_bytes() != real.cubin.read_bytes()


def test_clusters_are_for_hopper() -> None:
    """Kernels of clusters are asked of architectures that have them only, all others of every one."""
    source = next(source for source in all_sources() if source.clustered)
    assert set(source.on("sm_90a")) == set(source.on("sm_100")) == set(source.expressions)
    assert set(source.on("sm_80")) == set(source.on("sm_75")) == set(source.expressions) - source.clustered


@pytest.mark.parametrize(("version", "told"), [((12, 8), False), ((12, 9), True), (None, True)])
def test_the_compiler_keeps_nothing_itself(tmp_path: Path, version: tuple[int, int] | None, told: bool) -> None:
    """What it takes from a cache of its own has no log, and so no registers; older versions have no such option."""
    options = program_options(tmp_path / "kernel.cu", OPTIMIZED, version=version).as_bytes("nvrtc")
    assert (b"--no-cache" in options) is told


@pytest.mark.gpu
def test_what_was_compiled_before_has_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our cache is empty, NVRTC compiles once more and says how many registers a kernel has."""
    source = all_sources()[0]
    (expression, *_) = source.on(OPTIMIZED)
    for folder in ("first", "second"):
        monkeypatch.setattr("opgauge.ops._cuda.source.cache_folder", (tmp_path / folder).joinpath)
        assert source.compile(OPTIMIZED, (expression,)).resources[expression].registers > 0
