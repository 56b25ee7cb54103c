"""Backends and devices, and moving arrays between NumPy, CuPy and torch.

Besides `opgauge.ops._cuda.source` the only module that imports CuPy, inside functions, so that a machine
without a GPU can list CUDA kernels.
"""

from __future__ import annotations

import platform
import re
import sys
from ctypes import CDLL
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import EXCHANGED, dtype_info
from opgauge.ops._core.errors import BackendError
from opgauge.ops._core.op import Array, Shape

BACKENDS = ("cpu", "cuda")
"""Names of the backends, in the order of tables."""


@dataclass(frozen=True, slots=True)
class Device:
    """A backend and the number of its device: `cpu`, `cuda:0`, `cuda:1`."""

    backend: str
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Device:
        """Read `cpu`, `cuda` or `cuda:N`; raises BackendError for anything else."""
        match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", text)
        if match is None or (match[1] == "cpu" and match[2] not in (None, "0")):
            msg = f"no device {text!r}; write cpu, cuda or cuda:N"
            raise BackendError(msg)
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return self.backend if self.backend == "cpu" else f"{self.backend}:{self.index}"


def cupy() -> Any:
    """CuPy's module; raises BackendError, with the reason, if it cannot be imported."""
    try:
        return import_module("cupy")
    except ImportError as error:
        msg = f"the cuda backend needs CuPy: {error}"
        raise BackendError(msg) from error


def _has_driver() -> bool:
    """Whether NVIDIA's driver library loads; much faster than importing CuPy to find out."""
    try:
        CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


@cache
def cuda_device_count() -> int:
    """Number of CUDA devices visible to CuPy; 0 without CuPy, driver or device."""
    if not _has_driver():
        return 0
    try:
        return int(cupy().cuda.runtime.getDeviceCount())
    except BackendError:
        return 0
    except Exception as error:  # CUDARuntimeError is defined in CuPy, which may be missing
        if type(error).__name__ != "CUDARuntimeError":
            raise
        return 0


def require_device(device: Device) -> None:
    """Raise BackendError, with the reason, for a device that this machine does not have."""
    if device.backend == "cpu":
        return
    count = cuda_device_count()
    if device.index < count:
        return
    if not _has_driver():
        reason = "no NVIDIA driver is installed"
    elif not count:
        cupy()
        reason = "the driver sees no GPU"
    else:
        reason = f"this machine has {count} CUDA devices"
    msg = f"no device {device} here: {reason}"
    raise BackendError(msg)


@cache
def device_model(backend: str, index: int = 0) -> str:
    """The vendor's name of a device, as `NVIDIA H200`; empty if unknown."""
    if backend == "cpu":
        return _cpu_model() or platform.processor() or platform.machine()
    if index >= cuda_device_count():
        return ""
    name: bytes = cupy().cuda.runtime.getDeviceProperties(index)["name"]
    return name.decode()


def _cpu_model() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            found = (line.partition(":") for line in lines)
            return next((value.strip() for key, _, value in found if key.strip() == "model name"), "")
    except OSError:
        return ""


def available() -> tuple[str, ...]:
    """The backends that this machine can run."""
    return BACKENDS if cuda_device_count() else ("cpu",)


def namespace(array: object) -> ModuleType:
    """The module whose functions take `array`: numpy or cupy."""
    root = type(array).__module__.partition(".")[0]
    return import_module("cupy") if root == "cupy" else np


def address_of(array: Any) -> int:
    """Address of an array's first element, on the host or the device: of NumPy, CuPy, torch, or by its interface."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    pointer = getattr(getattr(array, "data", None), "ptr", None)
    if pointer is None:
        interface = getattr(array, "__array_interface__", None) or array.__cuda_array_interface__
        pointer = interface["data"][0]
    return int(pointer)


def may_overlap(first: Any, second: Any) -> bool:
    """Whether the bounds in memory of two NumPy or two CuPy arrays overlap."""
    if isinstance(first, np.ndarray):
        return bool(np.may_share_memory(first, second))
    return bool(cupy().may_share_memory(first, second))


def empty(shape: Shape, dtype: str, backend: str) -> Any:
    """An uninitialised C-contiguous array on `backend`."""
    numpy_dtype = dtype_info(dtype).numpy
    return np.empty(shape, numpy_dtype) if backend == "cpu" else cupy().empty(shape, numpy_dtype)


def to_backend(array: Array, backend: str) -> Any:
    """`array` on `backend`; the same object on the CPU."""
    return array if backend == "cpu" else cupy().asarray(array)


def to_numpy(array: Any) -> Array:
    """A NumPy, CuPy or torch array as a NumPy array (bfloat16 preserved)."""
    root = type(array).__module__.partition(".")[0]
    if root == "torch":
        return _torch_to_numpy(array)
    return array.get() if root == "cupy" else np.asarray(array)


def to_torch(array: Any) -> Any:
    """A NumPy or CuPy array as a torch tensor that shares its memory."""
    torch = import_module("torch")
    name = array.dtype.name
    source = array.view(EXCHANGED[name]) if name in EXCHANGED else array
    tensor = torch.from_numpy(source) if isinstance(source, np.ndarray) else torch.from_dlpack(source)
    return tensor.view(getattr(torch, name)) if name in EXCHANGED else tensor


def exchanged(tensor: Any) -> tuple[Any, str | None]:
    """A tensor of torch that NumPy and CuPy can adopt, on the same memory, and the dtype to view theirs as."""
    torch, name = import_module("torch"), str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(getattr(torch, EXCHANGED[name])), name) if name in EXCHANGED else (tensor, None)


def _torch_to_numpy(tensor: Any) -> Array:
    host, name = exchanged(tensor.detach().cpu().resolve_conj())
    values: Array = host.numpy()
    return values.view(dtype_info(name).numpy) if name else values
