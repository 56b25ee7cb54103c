"""Compilation of CUDA sources with NVRTC, cached on disk, and access to launchable functions.

Compiling needs no GPU, only `cuda.core` and NVRTC: tests compile every declared
expression for every supported architecture. Subnormals are preserved: nothing here passes
`-ftz=true`, which CuPy's own RawModule would.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.ops._core.backend import cupy
from opgauge.ops._core.cache import cache_folder
from opgauge.ops._core.errors import BackendError, CompileError
from opgauge.ops._core.listening import listening
from opgauge.ops._cuda.struct import DIVISOR, define

INCLUDE = Path(__file__).parent / "include"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")
HOPPER = 90
"""First compute capability with thread-block clusters."""
CACHED = (12, 9)
"""NVRTC that keeps what it compiled: it says nothing of registers and stacks the second time, unless told not to."""
_SOURCES: list[CudaSource] = []
_LISTENERS: list[dict[str, Resources]] = []


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one compiled kernel: registers per thread; shared, stack and spill bytes.

    serialized: the assembler could not prove that warpgroup products are independent, and serialized them.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    serialized: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin, its kernels' linker names and resources by name expression."""

    cubin: Path
    names: dict[str, str]
    resources: dict[str, Resources]


def flag(holds: object) -> str:
    """A Boolean as a C++ template argument."""
    return "true" if holds else "false"


class CudaSource:
    """One `.cu` file and every name expression that can be requested of it.

    `CudaSource(__file__, "kernels.cu", ("scale<float>", …))` at module level declares them; the
    NVRTC test compiles every declared expression, and `function` rejects others.
    clustered: further expressions, for Hopper and later only. constants: numbers shared with host code, by name; they
    are defined for the compiler, so that no source repeats them. structs: dtypes of kernel arguments by C++ name; the
    source defines the struct `Name` by the macro `DEFINE_Name`, which holds all of `Name<…>` if they are several.
    `Divisor` is defined for every source.
    """

    def __init__(
        self,
        beside: str,
        name: str,
        expressions: tuple[str, ...],
        options: tuple[str, ...] = (),
        *,
        clustered: tuple[str, ...] = (),
        constants: Mapping[str, int] | None = None,
        structs: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(beside).parent / name
        self.expressions = (*expressions, *clustered)
        self.clustered = frozenset(clustered)
        self.options = (*options, *(f"-D{key}={number}" for key, number in (constants or {}).items()))
        known = {"Divisor": DIVISOR, **(structs or {})}
        macros: dict[str, list[str]] = {}
        for key, dtype in known.items():
            macros.setdefault(key.partition("<")[0], []).append(define(key, dtype, known))
        self.options += tuple(f"-DDEFINE_{key}={'; '.join(texts)}" for key, texts in macros.items())
        self._functions: dict[tuple[str, int], tuple[Any, Resources | None]] = {}
        _SOURCES.append(self)

    def on(self, arch: str) -> tuple[str, ...]:
        """Expressions that compile for `arch`."""
        if int(arch.removeprefix("sm_").rstrip("af")) >= HOPPER:
            return self.expressions
        return tuple(one for one in self.expressions if one not in self.clustered)

    def compile(self, arch: str, expressions: tuple[str, ...] | None = None, *, draft: bool = False) -> Compiled:
        """The binary of `expressions` (None: all) for `arch`, from the cache if possible; see `compile_source`."""
        return compile_source(self.path, expressions or self.on(arch), arch, self.options, draft=draft)

    def function(self, expression: str) -> Any:
        """The launchable kernel of `expression` on the current device.

        Call it as `f((grid,), (block,), (arguments,), shared_mem=bytes)`; arguments are
        arrays and NumPy scalars. Raises CompileError for an undeclared expression.
        """
        device = cupy().cuda.runtime.getDevice()
        found = self._functions.get((expression, device))
        if found is None:
            if expression not in self.expressions:
                msg = f"{self.path.name} does not declare {expression!r}"
                raise CompileError(msg)
            compiled = self.compile(device_arch(device), (expression,))
            module = cupy().RawModule(path=str(compiled.cubin))
            found = module.get_function(compiled.names[expression]), compiled.resources.get(expression)
            self._functions[expression, device] = found
        return handed_out(expression, *found)


def handed_out(expression: str, function: Any, resources: Resources | None) -> Any:
    """`function`; those who record get its resources."""
    if resources is not None:
        for heard in _LISTENERS:
            heard[expression] = resources
    return function


def recording() -> AbstractContextManager[dict[str, Resources]]:
    """Resources of every kernel that a `CudaSource` returns in this context, by name expression."""
    return listening(_LISTENERS, {})


def all_sources() -> tuple[CudaSource, ...]:
    """Every declared source, in order of path."""
    return tuple(sorted(_SOURCES, key=lambda source: source.path))


@cache
def _capability(device: int) -> str:
    return str(cupy().cuda.Device(device).compute_capability)


def device_arch(device: int) -> str:
    """The architecture to compile for: `sm_90a` on Hopper, `sm_XY` elsewhere."""
    capability = _capability(device)
    return "sm_90a" if capability == "90" else f"sm_{capability}"


@cache
def _attribute(device: int, name: str) -> int:
    return int(cupy().cuda.Device(device).attributes[name])


def multiprocessors() -> int:
    """Number of streaming multiprocessors of the current device."""
    return _attribute(cupy().cuda.runtime.getDevice(), "MultiProcessorCount")


def shared_memory_bytes() -> int:
    """Maximum shared memory in bytes that a block of the current device can opt in to."""
    return _attribute(cupy().cuda.runtime.getDevice(), "MaxSharedMemoryPerBlockOptin")


def architecture() -> int:
    """Compute capability of the current device as a number: 90 for 9.0."""
    return int(_capability(cupy().cuda.runtime.getDevice()))


class Gpu(NamedTuple):
    """The properties of a GPU that a choice of kernels depends on.

    architecture: compute capability as a number, 90 for 9.0. shared_memory_bytes: maximum that a block can opt in to.
    """

    multiprocessors: int
    architecture: int
    shared_memory_bytes: int


def current_gpu() -> Gpu:
    """Properties of the current device."""
    return Gpu(multiprocessors(), architecture(), shared_memory_bytes())


def compile_source(
    path: Path,
    expressions: tuple[str, ...],
    arch: str,
    options: tuple[str, ...] = (),
    *,
    draft: bool = False,
    program: str | None = None,
) -> Compiled:
    """Compile `path` to a cubin holding `expressions`; raises CompileError with NVRTC's log.

    program: compiled in place of `path`, which it includes.

    A draft is compiled with minimal optimization: it proves that `path` compiles, in a
    fraction of the time, and must not be run. Its resources are meaningless. After a draft, NVRTC 13.4 optimizes less
    for the rest of the process: compile drafts in a separate process.
    """
    key = _digest(path, expressions, arch, options, draft, program)
    folder = cache_folder("cubin")
    cubin, facts = folder / f"{key}.cubin", folder / f"{key}.json"
    if cubin.is_file() and facts.is_file():
        return _read(cubin, facts)
    code, names, log = _nvrtc(path, expressions, arch, options, draft=draft, program=program)
    resources = _resources(log, names)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"names": names, "resources": {name: asdict(used) for name, used in resources.items()}})
    _write(cubin, code)
    _write(facts, text.encode())
    return Compiled(cubin, names, resources)


def program_options(
    path: Path, arch: str, options: tuple[str, ...] = (), *, draft: bool = False, version: tuple[int, int] | None = None
) -> Any:
    """Options for NVRTC as `cuda.core.ProgramOptions`; raises BackendError if cuda.core is missing.

    version: of NVRTC; None: of the one that is loaded.
    """
    return _imported("cuda.core").ProgramOptions(
        name=str(path),
        arch=arch,
        std="c++17",
        include_path=[str(INCLUDE), str(path.parent), *_cuda_headers()],
        define_macro=[option.removeprefix("-D") for option in options if option.startswith("-D")] or None,
        use_fast_math="--use_fast_math" in options or None,
        device_as_default_execution_space=True,
        ptxas_options=["-v"],
        ofast_compile="max" if draft else None,
        no_cache=True if (version or _nvrtc_version()) >= CACHED else None,
    )


def _nvrtc(
    path: Path, expressions: tuple[str, ...], arch: str, options: tuple[str, ...], *, draft: bool, program: str | None
) -> tuple[bytes, dict[str, str], str]:
    chosen = program_options(path, arch, options, draft=draft)
    log = io.StringIO()
    try:
        binary = (
            _imported("cuda.core")
            .Program(program or path.read_text(encoding="utf-8"), "c++", chosen)
            .compile("cubin", name_expressions=expressions, logs=log)
        )
    except Exception as error:  # cuda.core raises its own NVRTCError, a plain Exception
        msg = f"{path.name} for {arch}: {error}\n{log.getvalue()}"
        raise CompileError(msg) from error
    names = {expression: name.decode() for expression, name in binary.symbol_mapping.items()}
    return bytes(binary.code), names, log.getvalue()


@cache
def _cuda_headers() -> tuple[str, ...]:
    from cuda import pathfinder

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return (str(folder),) if folder else ()


def _resources(log: str, names: dict[str, str]) -> dict[str, Resources]:
    found: dict[str, Resources] = {}
    blocks = re.split(r"Compiling entry function '", log)[1:]
    by_symbol = {block.partition("'")[0]: block for block in blocks}
    serialized = set(re.findall(r"instructions are serialized .* in the function '(\w+)'", log))
    for expression, symbol in names.items():
        block = by_symbol.get(symbol)
        if block is not None:
            found[expression] = Resources(
                registers=_number(r"Used (\d+) registers", block),
                shared_bytes=_number(r"(\d+) bytes smem", block),
                stack_bytes=_number(r"(\d+) bytes stack frame", block),
                spill_bytes=_number(r"(\d+) bytes spill stores", block) + _number(r"(\d+) bytes spill loads", block),
                serialized=symbol in serialized,
            )
    return found


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _digest(path: Path, expressions: tuple[str, ...], arch: str, *more: object) -> str:
    digest = hashlib.sha256()
    for file in (path, *sorted(path.parent.glob("*.cuh")), *sorted(INCLUDE.rglob("*.cuh"))):
        digest.update(file.read_bytes())
    resource_fields = [field.name for field in fields(Resources)]
    digest.update(repr((expressions, arch, *more, _nvrtc_version(), resource_fields, CACHED)).encode())
    return digest.hexdigest()[:32]


@cache
def _nvrtc_version() -> tuple[int, int]:
    _, major, minor = _imported("cuda.bindings.nvrtc").nvrtcVersion()
    return int(major), int(minor)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        msg = f"compiling CUDA sources needs cuda-core and NVRTC: {error}"
        raise BackendError(msg) from error


def _read(cubin: Path, facts: Path) -> Compiled:
    stored = json.loads(facts.read_text(encoding="utf-8"))
    resources = {name: Resources(**used) for name, used in stored["resources"].items()}
    return Compiled(cubin, stored["names"], resources)


def _write(path: Path, content: bytes) -> None:
    """Write atomically: two processes may compile the same source."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
