"""Launches of CUDA kernels by their host code, recorded as on an H200: no GPU takes part, and nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

from opgauge.harness.case.case import Case
from opgauge.ops import Kernel, dtype_info
from opgauge.ops._core import tuning
from opgauge.ops._core.op import TensorSpec
from opgauge.ops._cuda import bind
from opgauge.ops._cuda import source as source_module
from opgauge.ops._cuda.gemm import launch as gemm_launch
from opgauge.ops._cuda.source import CudaSource, Gpu
from opgauge.ops.conv_data_grad import cuda as conv_data_grad
from opgauge.ops.conv_data_grad import patches
from opgauge.ops.deformable_conv import cuda as deformable_conv
from opgauge.ops.deformable_conv import cuda_grad as deformable_conv_grad
from opgauge.ops.normalization import channels_first
from tests.emulation.emulator import CAPABILITY, MODEL, DeviceArray

H200 = Gpu(132, 90, 227 * 1024)
ATTRIBUTES = {"MultiProcessorCount": H200.multiprocessors, "MaxSharedMemoryPerBlockOptin": H200.shared_memory_bytes}
ALIGNMENT = 4096


class Launch(NamedTuple):
    """One launch: the source, the kernel's name expression, its grid, its block, its dynamic shared memory.

    words: addresses of its arguments, and all 64-bit words of its structs, some of which are addresses too.
    """

    source: CudaSource
    expression: str
    grid: Sequence[int]
    block: Sequence[int]
    shared: int
    words: frozenset[int]

    @property
    def kernel(self) -> str:
        """The kernel's name without template arguments."""
        return self.expression.partition("<")[0]


def array_of(spec: TensorSpec) -> Any:
    """An uninitialized, aligned array, whose pages are never touched."""
    dtype = np.dtype(dtype_info(spec.dtype).numpy)
    return bytes_of(spec.size * dtype.itemsize).view(dtype).reshape(spec.shape)


def bytes_of(nbytes: int) -> Any:
    """Uninitialized, aligned bytes."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][:nbytes].view(DeviceArray)


@contextmanager
def recorded(programs: list[tuple[CudaSource, str, str, int]] | None = None) -> Iterator[list[Launch]]:
    """Host code sees an H200 in this context; what it launches is appended to the list.

    programs: takes source, kernel, text and threads of those that would be compiled for a launch.
    """
    found: list[Launch] = []

    def function(source: CudaSource, expression: str) -> Any:
        assert expression in source.expressions

        def launch(grid: Any, block: Any, arguments: Any, shared_mem: int = 0) -> None:
            words = frozenset(word for argument in arguments for word in _words(argument))
            found.append(Launch(source, expression, grid, block, shared_mem, words))

        vars(launch)["max_dynamic_shared_size_bytes"] = 0  # as CuPy's functions have it
        return launch

    def fix(source: CudaSource, expression: str, program: str, threads: int) -> None:
        assert expression in source.expressions
        if programs is not None:
            programs.append((source, expression, program, threads))

    runtime = SimpleNamespace(getDevice=lambda: 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
        patch.setattr(source_module, "_attribute", lambda _, name: ATTRIBUTES[name])
        patch.setattr(source_module, "_capability", lambda _: CAPABILITY)
        patch.setattr(CudaSource, "function", function)
        patch.setattr(bind, "fix", fix)
        patch.setattr(tuning, "device_model", lambda *_: MODEL)
        patch.setattr(channels_first, "_resident", lambda *_: 1)
        for module in (conv_data_grad, deformable_conv, deformable_conv_grad):
            patch.setattr(module, "multiply_stacks", lambda *_: lambda: None)
        patch.setattr(gemm_launch, "tensor_map", lambda *_: None)
        patch.setattr(patches, "box_map", lambda *_: None)
        patch.setattr(np, "matmul", _no_product)
        tuning._forget()
        yield found
    tuning._forget()


def bind_and_run(case: Case, kernel: Kernel, launches: Sequence[Launch]) -> None:
    """Bind a kernel to arrays of the case's shapes and run it once; to be called where launches are recorded.

    Only the kernel holds its workspace, which must be there for all launches that know its address.
    """
    shapes = case.resolved
    inputs = {name: array_of(spec) for name, spec in shapes.inputs.items()}
    out = {name: array_of(spec) for name, spec in shapes.outputs.items()}
    if kernel.workspace is None:
        kernel.bind(inputs, case.params, out, None)()
        return
    workspace = bytes_of(kernel.workspace(shapes, case.params))
    memory, owner = byte_bounds(workspace), ref(_owner(workspace))
    bound = kernel.bind(inputs, case.params, out, workspace)
    del workspace
    earlier = len(launches)
    bound()
    used = any(memory[0] <= word < memory[1] for launch in launches[earlier:] for word in launch.words)
    assert not used or owner() is not None, f"{kernel.key} uses its workspace of {case.id} without keeping it"


def _owner(array: Any) -> Any:
    """The array that owns the memory: views keep it alone."""
    return array if array.base is None else _owner(array.base)


def _words(argument: Any) -> list[int]:
    """The address of an array on the device, or the words of a struct."""
    if isinstance(argument, DeviceArray):
        return [argument.data.ptr]
    if isinstance(argument, np.ndarray) and argument.dtype.names:
        return [int(word) for word in np.frombuffer(argument.tobytes()[: argument.nbytes // 8 * 8], np.uint64)]
    return []


def _no_product(a: Any, b: Any, out: Any = None) -> Any:
    """Zeros in place of a matrix product, or `out` as it is."""
    stacked = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.broadcast_to(0.0, (*stacked, a.shape[-2], b.shape[-1])) if out is None else out
