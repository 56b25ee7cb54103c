"""CUDA kernels on the host: an op's own source compiled by g++, launched as its own plan for an H200 says.

One thread runs at a time, and goes on until it waits. Not emulated: clusters, matrix products, asynchronous copies,
and that a store of one block may be late for another: here it is seen at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.measure.cpu import CpuTimer
from opgauge.harness.worker.attempt import Attempt, KernelFailedError
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import Bound, Kernel, find_kernel
from opgauge.ops._core import tuning
from opgauge.ops._cuda import bind, blas
from opgauge.ops._cuda import source as source_module
from opgauge.ops._cuda.source import INCLUDE, CudaSource
from tests.emulation.cublas import emulated_cuda

HERE = Path(__file__).parent
MODEL, CAPABILITY = "NVIDIA H200", "90"
COMPILE = ("g++", "-std=c++20", "-fPIC", "-fno-gnu-unique", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-w", "-c")
CHECKED = ("-O1", "-fsanitize=alignment", "-fno-sanitize-recover=all")
TEXTS = frozenset({".cpp", ".cu", ".cuh", ".h"})
"""Suffixes of what a library is compiled from."""
KEPT = HERE.parents[1] / ".pytest_cache" / "emulated"
"""Libraries of earlier runs, as Numba's compiled kernels are kept."""
MARGIN = 4096
"""Bytes around an array that nothing may write, and that are NaN where they are read."""
MARGIN_BYTE = 0xFF
DYNAMIC_BYTES = 48 * 1024
"""Dynamic shared memory of an emulated block."""
ATTRIBUTES = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": DYNAMIC_BYTES}
IN_CPP = (
    (r"extern __shared__ (.*?)\[\];", rf"__shared__ \1[{DYNAMIC_BYTES}];"),
    (r'"sqrt\.approx\.(?:ftz\.)?f32.*?" : "=f"\((\w+)\) : "f"\((.*?)\)\);', r"\1 = sqrtf(\2);"),
    (r'"rcp\.approx\.f32.*?" : "=f"\((\w+)\) : "f"\((.*?)\)\);', r"\1 = 1 / (\2);"),
    (r'"lg2\.approx\.f32.*?" : "=f"\((\w+)\) : "f"\((.*?)\)\);', r"\1 = log2f(\2);"),
    (r'"ex2\.approx\.f32.*?" : "=f"\((\w+)\) : "f"\((.*?)\)\);', r"\1 = exp2f(\2);"),
    (r'"st\.relaxed.*?" ?::"l"\((.*?)\), "l"\((.*?)\) : "memory"\);', r"store_relaxed(\1, \2);"),
    (r'"ld\.relaxed.*?" : "=l"\((.*?)\) : "l"\((.*?)\) : "memory"\);', r"\1 = load_relaxed(\2);"),
)
"""Instructions that kernels name, and what does the same."""


class DeviceArray(np.ndarray[Any, Any]):
    """Host memory with an address where CuPy has it."""

    @property
    def data(self) -> Any:
        """What `array.data.ptr` is asked of."""
        return SimpleNamespace(ptr=self.ctypes.data)


class Frame:
    """A copy of an array, aligned as it is, with margins."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        nbytes, ahead = array.nbytes, MARGIN + array.ctypes.data % MARGIN
        raw = np.full(ahead + nbytes + 2 * MARGIN, MARGIN_BYTE, np.uint8)
        raw = raw[-raw.ctypes.data % MARGIN :]
        self.margins = (raw[:ahead], raw[ahead + nbytes :])
        self.array = raw[ahead : ahead + nbytes].view(array.dtype).reshape(array.shape).view(DeviceArray)
        self.array[...] = array

    def whole(self) -> bool:
        """Whether nothing was written beside it."""
        return all(bool(np.all(margin == MARGIN_BYTE)) for margin in self.margins)


class Library:
    """Kernels of one source, compiled together."""

    def __init__(self, source: CudaSource, expressions: Sequence[str], folder: Path, device: Path) -> None:
        folder.mkdir()
        (folder / "ptx").mkdir()
        for file in (*INCLUDE.rglob("*.cuh"), *source.path.parent.glob("*.cuh"), source.path):
            name = file.relative_to(INCLUDE) if file.is_relative_to(INCLUDE) else file.name
            (folder / name).write_text(_in_cpp(file.read_text(encoding="utf-8")), encoding="utf-8")
        for header in ("cuda_fp16.h", "cuda_bf16.h"):
            (folder / header).write_text('#include "cuda.h"\n', encoding="utf-8")
        lines = ['#include "cuda.h"', f'#include "{source.path.name}"']
        for number, name in enumerate(expressions):
            lines.append(f'extern "C" void run{number}(void** at) {{ call(&{name}, at); }}')
            lines.append(f'extern "C" int arguments{number}(int* bytes) {{ return describe(&{name}, bytes); }}')
        main, library = folder / "main.cpp", folder / "kernels.so"
        main.write_text("\n".join((*lines, "")), encoding="utf-8")
        where = (f"-I{folder}", f"-I{HERE}")
        command = (*COMPILE, *CHECKED, *source.options)
        with _kept(command, folder, library) as is_known:
            if not is_known:
                _run(*command, *where, str(main), "-o", str(main.with_suffix(".o")))
                _run("g++", "-shared", "-Wl,-Bsymbolic", str(main.with_suffix(".o")), str(device), "-o", str(library))
        self.library = ctypes.CDLL(str(library))
        self.library.launch.restype = ctypes.c_char_p
        self.numbers = {name: number for number, name in enumerate(expressions)}

    def launch(self, name: str, sizes: tuple[Any, Any], arguments: Sequence[Any], seed: int, mixed: int) -> None:
        """Run a grid of blocks in an order that `seed` gives, `mixed` of them at once."""
        number, wanted = self.numbers[name], (ctypes.c_int * 32)()
        wanted_count = self.library[f"arguments{number}"](wanted)
        passed = [_passed(argument) for argument in arguments]
        found = [nbytes for _, nbytes in passed]
        assert found == wanted[:wanted_count], f"{name} takes {wanted[:wanted_count]} bytes, not {found}"
        at = (ctypes.c_void_p * len(passed))(*(value.ctypes.data for value, _ in passed))
        dims = (ctypes.c_uint * 6)(*(length for size in sizes for length in (*size, 1, 1)[:3]))
        assert all(dims), f"{name}: nothing to launch in {sizes}"
        assert max(dims[1:3]) < 1 << 16, f"{name}: too many blocks in {sizes}"
        assert prod(dims[3:]) <= 1024, f"{name}: too many threads in {sizes}"
        complaint = self.library.launch(self.library[f"run{number}"], at, dims, seed, mixed)
        assert complaint is None, f"{name}{sizes}: {complaint.decode()}"


class Emulator:
    """What stands in for CuPy and a GPU. Kernels are bound, compiled, and bound again to be launched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seed, self.mixed = folder, 0, 1
        self.device = folder / "device.o"
        self.asked: dict[CudaSource, list[str]] = {}
        self.libraries: dict[CudaSource, Library] = {}
        _run(*COMPILE, "-O2", str(HERE / "device.cpp"), "-o", str(self.device))

    def function(self, source: CudaSource, expression: str) -> Any:
        """In place of `CudaSource.function`."""
        assert expression in source.expressions, f"{source.path.name} does not declare {expression}"
        asked = self.asked.setdefault(source, [])
        if expression not in asked:
            asked.append(expression)

        def launch(blocks: Any, threads: Any, arguments: Sequence[Any], shared_mem: int = 0) -> None:
            assert shared_mem <= DYNAMIC_BYTES, f"{expression}: {shared_mem} bytes of shared memory"
            self.seed += 1
            self.libraries[source].launch(expression, (blocks, threads), arguments, self.seed, self.mixed)

        return launch

    def compile(self) -> None:
        """Compile what was asked for, all kernels of a source at once."""
        for source, asked in self.asked.items():
            folder = self.folder / f"{source.path.parent.name}-{source.path.stem}"
            self.libraries[source] = Library(source, asked, folder, self.device)

    def attempt(self, case: Case, inputs: Inputs, *, offset: bool = False) -> Attempt:
        """The optimized kernel of a case with its buffers; its outputs are poisoned, guarded and checked as any."""
        kernel = find_kernel(case.op, "optimized", "cuda", case.dtype)
        here = replace(kernel, key=kernel.key._replace(backend="cpu"), function=_framed(kernel), prepare=True)
        layout = "offset" if offset else None
        return Attempt(case, here, inputs.values, CpuTimer(), layout=layout)


def complaint(emulator: Emulator, case: Case, inputs: Inputs, *, offset: bool, mixed: int, seed: int) -> str:
    """What is wrong in runs on one workspace, each with its blocks in another order; empty where nothing."""
    emulator.mixed, emulator.seed = mixed, seed
    attempt, expected = emulator.attempt(case, inputs, offset=offset), expect(case, inputs)
    try:
        found = attempt.judge(expected)
        if found.ok and not attempt.repeatable:
            return "other bits in the second call"
    except KernelFailedError as error:
        return str(error)
    return found.reason


@contextmanager
def emulated(folder: Path) -> Iterator[Emulator]:
    """Kernels are planned as on an H200 meanwhile, and run here; the test is skipped without g++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile CUDA sources for the host")
    made = Emulator(folder)

    def function(source: CudaSource, expression: str) -> Any:
        return made.function(source, expression)

    with pytest.MonkeyPatch.context() as patch:
        runtime = SimpleNamespace(getDevice=lambda: 0)
        patch.setattr(source_module, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
        patch.setattr(blas, "cupy", lambda: SimpleNamespace(cuda=emulated_cuda()))
        patch.setattr(source_module, "_attribute", lambda device, name: ATTRIBUTES[name])
        patch.setattr(source_module, "_capability", lambda device: CAPABILITY)
        patch.setattr(CudaSource, "function", function)
        patch.setattr(bind, "fix", lambda *_: None)
        patch.setattr(tuning, "device_model", lambda backend, index=0: MODEL)
        tuning._forget()
        yield made
    tuning._forget()


def _framed(kernel: Kernel) -> Any:
    """The function of a kernel, given inputs and workspace with margins; a run asserts that it left those alone."""

    def bind(*, out: dict[str, Any], **given: Any) -> Bound:
        frames = {name: Frame(value) for name, value in given.items() if isinstance(value, np.ndarray)}
        arrays = {name: frame.array for name, frame in frames.items()}
        read = [name for name in arrays if name != "workspace"]
        outputs = {name: array.view(DeviceArray) for name, array in out.items()}
        fresh = [True]
        run = kernel.function(**{**given, **arrays}, out=outputs)

        def run_and_look() -> None:
            if fresh:  # on other numbers: what is left of them in the workspace shows
                for name in read:
                    arrays[name][...] = 0
                run()
                fresh.clear()
            for name in read:  # the harness changes inputs between calls
                arrays[name][...] = given[name]
            run()
            for name, frame in frames.items():
                assert frame.whole(), f"wrote outside {name}"
                assert name == "workspace" or arrays[name].tobytes() == given[name].tobytes(), (
                    f"changed its input {name}"
                )

        return run_and_look

    return bind


def _passed(given: Any) -> tuple[np.ndarray[Any, Any], int]:
    """An argument as it lies in memory, and its bytes: negative those of an address."""
    if given is None or isinstance(given, DeviceArray):
        return np.array(0 if given is None else given.ctypes.data, np.uint64), -8
    assert isinstance(given, np.generic | np.ndarray), f"{type(given)} is nothing that a kernel takes"
    return np.array(given), given.nbytes


def _in_cpp(text: str) -> str:
    for instruction, meaning in IN_CPP:
        pattern = instruction if instruction.startswith("extern") else rf"asm(?: volatile)?\({instruction}"
        text = re.sub(pattern, meaning, text)
    return text


@contextmanager
def _kept(command: Sequence[str], folder: Path, library: Path) -> Iterator[bool]:
    """Copy a library that an earlier run made by the same compiler of the same text, else keep the one that is made."""
    digest = hashlib.sha256(repr((command, _version())).encode())
    for file in sorted(one for place in (folder, HERE) for one in place.rglob("*") if one.suffix in TEXTS):
        digest.update(file.relative_to(folder if file.is_relative_to(folder) else HERE).as_posix().encode())
        digest.update(file.read_bytes())
    kept = KEPT / f"{digest.hexdigest()[:32]}.so"
    is_known = kept.is_file()
    if is_known:
        shutil.copy(kept, library)  # each has its own state
    yield is_known
    if not is_known:
        KEPT.mkdir(parents=True, exist_ok=True)
        made = kept.with_suffix(f".{os.getpid()}")
        shutil.copy(library, made)
        made.rename(kept)


@cache
def _version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
