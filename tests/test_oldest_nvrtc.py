"""Every CUDA source compiles with the oldest supported NVRTC of each CUDA version, without a GPU.

`make test` installs them into `oldest` beside the interpreter: they have the names of the newest, which all else uses.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from opgauge import ops
from opgauge.harness.case.file import load_cases
from opgauge.ops import find_kernel
from opgauge.ops._cuda.source import CudaSource, all_sources, program_options
from tests.draws import some
from tests.launches import bind_and_run, recorded

ROOT = Path(ops.__file__).parents[1]
INSTALLED = Path(sys.prefix) / "oldest"
ARCHITECTURE = "sm_90a"
LIBRARIES = {"12.4": "nvidia/cuda_nvrtc/lib", "13.0": "nvidia/cu13/lib"}
"""Folders of NVRTC by version."""
REJECTED = "__device__ int twice(int number) { return 2 * nmber; }"
"""A source that no NVRTC compiles."""
FIXED = ("fill_any_like", "lerp", "lerp_grad", "normalization", "p_norm_grad", "scale")
"""Ops whose small launches are compiled for their arguments, structs and addresses among them."""
Input = tuple[str, bytes, str, list[bytes]]
"""Name, text, name expression and options of a source."""


def _options(source: CudaSource, version: tuple[int, int], *more: str) -> list[bytes]:
    chosen = program_options(source.path, ARCHITECTURE, (*source.options, *more), version=version)
    options: list[bytes] = chosen.as_bytes("nvrtc")
    return options


def _input(source: CudaSource, version: tuple[int, int]) -> Input:
    return str(source.path), source.path.read_bytes(), source.on(ARCHITECTURE)[0], _options(source, version)


def _programs(version: tuple[int, int]) -> Iterator[Input]:
    """Of each source a program that is compiled for the arguments of a shipped case."""
    programs: list[tuple[CudaSource, str, str, int]] = []
    with recorded(programs) as launches:
        for case in load_cases([ROOT / "cases"], tags={"smoke"}):
            if case.op in FIXED:
                bind_and_run(case, find_kernel(case.op, "optimized", "cuda", case.dtype), launches)
    for source, expression, program, _ in {found[0]: found for found in programs}.values():
        name = f"{expression.partition('<')[0]}_fixed"
        yield f"{source.path} for {expression}", program.encode(), name, _options(source, version, "-DRESIDENT=1")


def compile_all(folder: Path, inputs: list[Input]) -> tuple[str, dict[str, str]]:
    """Version of the NVRTC in `folder`, and its log by name of the sources that it rejects."""
    for builtins in folder.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    (path,) = folder.glob("libnvrtc.so.*")
    nvrtc = ctypes.CDLL(str(path))
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    logs = {}
    for name, text, expression, options in inputs:
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None)
        nvrtc.nvrtcAddNameExpression(program, expression.encode())
        if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            logs[name] = log.value.decode()
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return f"{major.value}.{minor.value}", logs


@pytest.mark.parametrize("version", some("oldest NVRTC", tuple(LIBRARIES), 1))
def test_every_source_compiles(version: str) -> None:
    """With its first expression, and for one launch; a source with a fault is rejected."""
    folder = INSTALLED / LIBRARIES[version]
    if not folder.is_dir():
        pytest.skip(f"NVRTC {version} is not installed in {INSTALLED}: `make test` does that")
    major, minor = map(int, version.split("."))
    programs = list(_programs((major, minor)))
    assert len(programs) >= len(FIXED)
    given = [_input(source, (major, minor)) for source in all_sources()]
    inputs = [*given, *programs, ("faulty.cu", REJECTED.encode(), "twice", [])]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found, logs = pool.submit(compile_all, folder, inputs).result()
    assert found == version
    assert "nmber" in logs.pop("faulty.cu")
    assert not logs


def test_the_oldest_are_what_the_package_asks_for() -> None:
    """The versions that are tested are the least ones of pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least = set(re.findall(r'"nvidia-cuda-nvrtc(?:-cu12)?>=([\d.]+)"', project))
    pinned = re.findall(
        r"^nvidia-cuda-nvrtc\S*==(\d+\.\d+)", (ROOT / "requirements/oldest.txt").read_text(), re.MULTILINE
    )
    assert sorted(pinned) == sorted(LIBRARIES)
    assert {version.removesuffix(".0") for version in pinned} == {version.removesuffix(".0") for version in least}
