"""Bits of arrays, compared and hashed in place: on the host, or on a GPU."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.ops import dtype_info
from opgauge.ops._core.backend import cupy, to_numpy
from opgauge.ops._core.op import Array

SMALL_BYTES = 1 << 16
"""Size up to which arrays of NumPy are compared as byte strings: less than the overhead of any other way."""
PART = 1 << 24
"""Words hashed at a time on a GPU: they need memory besides the array."""
DLPACK_CPU = 1
"""DLPack's number of the device type CPU."""
EXCHANGED = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Dtypes that not all libraries exchange by DLPack, with one of their size in whose place they do."""
LIBRARIES = ("numpy", "cupy", "torch", "jax", "jaxlib", "numba", "numba_cuda")
"""Libraries whose arrays kernels may return."""
PLAIN = {"cupy": ("ndarray",), "torch": ("Tensor", "nn.Parameter")}
"""Classes of arrays of libraries whose classes may have subclasses."""
TORCH_DEVICES = ("cpu", "cuda")
"""Devices of torch whose tensors have memory; others compute when a tensor is copied to the host."""
PYTHON_NUMBERS = {int: ("int", "uint", "float", "complex"), float: ("float", "complex"), complex: ("complex",)}
"""Kinds of dtypes whose arrays keep their dtype when such a number is added."""
FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd numbers that spread bits: Steele, Lea and Flood 2014, Fast Splittable Pseudorandom Number Generators."""


def same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays of NumPy, or two of CuPy, have the same bytes (NaN equals the same NaN)."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.nbytes <= SMALL_BYTES and isinstance(first, np.ndarray):
        return bool(first.tobytes() == second.tobytes())
    return bool(module_of(first).array_equal(_words(first), _words(second)))


def has_bits(array: Any, kept: Array) -> bool:
    """Whether an array has the bits of a stored copy, which is on its device or on the host."""
    return same_bits(to_numpy(array) if isinstance(kept, np.ndarray) else array, kept)


def digest(outputs: Mapping[str, Array]) -> str:
    """A digest of the bits of outputs, with their names, shapes and dtypes.

    CuPy arrays are hashed on their device, and have another digest than the same bits on the host.
    """
    total = sha256()
    for name in sorted(outputs):
        array = outputs[name]
        total.update(f"{name} {array.dtype} {array.shape}\0".encode())
        if isinstance(array, np.ndarray):
            total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        else:
            total.update(str(mixed(array)).encode())
    return total.hexdigest()


def mixed(array: Array) -> int:
    """64-bit hash that depends on every bit of an array and its position: words mixed with their index, then added."""
    xp, words = module_of(array), _words(array)
    total = 0
    for start in range(0, words.size, PART):
        part = words[start : start + PART].astype(np.uint64)
        part ^= xp.arange(start + 1, start + 1 + part.size, dtype=np.uint64) * np.uint64(FACTORS[0])
        for shift, factor in zip((30, 27), FACTORS[1:], strict=True):
            part ^= part >> np.uint64(shift)
            part *= np.uint64(factor)
        part ^= part >> np.uint64(31)
        total += int(part.sum(dtype=np.uint64))
    return total % 2**64


def is_array(value: Any) -> bool:
    """Whether a value is a number, an array of a known library, or of a subclass of NumPy's.

    Other objects could compute when they are converted, after the timed call. A class can name any module as its own,
    and be put there: of CuPy and torch, subclasses are none of theirs; others have no functions from elsewhere.
    """
    kind, root = type(value), root_of(value)
    if issubclass(kind, np.ndarray | np.generic | bool | int | float | complex):
        return True
    if root in PLAIN:
        return any(kind is attrgetter(name)(sys.modules[root]) for name in PLAIN[root])
    module = sys.modules.get(module_name(kind))
    return root in LIBRARIES and getattr(module, kind.__name__, None) is kind and not _has_foreign_code(kind)


def address_of(array: Any) -> int:
    """Address of an array's first element, on the host or the device. The same in `ops` is not in every base's."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)


def typed(value: Any, dtype: str) -> Any:
    """A number of Python, as functions of ctypes return, in `dtype` if that has such numbers; others unchanged."""
    kinds = PYTHON_NUMBERS.get(type(value))
    if kinds is None or dtype_info(dtype).kind not in kinds:
        return value
    try:
        return np.asarray(value, dtype_info(dtype).numpy)
    except OverflowError:
        return value


def laziness(array: Any) -> str:
    """Why the memory of a tensor of torch does not hold its values, in words; empty for other arrays."""
    if root_of(array) != "torch":
        return ""
    if array.device.type not in TORCH_DEVICES:
        return f"on the device {array.device.type}"
    if array.layout is not import_module("torch").strided:
        return f"of layout {str(array.layout).removeprefix('torch.')}"
    changes = {"negated": array.is_neg(), "conjugated": array.is_conj(), "filled with zeros": array._is_zerotensor()}  # noqa: SLF001
    return next((f"that is {change} when it is read" for change, is_pending in changes.items() if is_pending), "")


def _has_foreign_code(kind: type) -> bool:
    """Whether a class has functions of Python that lie outside the libraries."""
    folders = tuple(
        f"{Path(str(module.__file__)).parent}{os.sep}" for name in LIBRARIES if (module := sys.modules.get(name))
    )
    functions = (getattr(one, "fget", one) for base in kind.__mro__ for one in vars(base).values())
    return any(
        isinstance(one, types.FunctionType) and not one.__code__.co_filename.startswith(folders) for one in functions
    )


def in_place(array: Any) -> Any:
    """A NumPy or CuPy array that shares the memory of an array of torch, JAX or Numba; others unchanged."""
    if issubclass(type(array), np.ndarray):
        return np.ndarray.view(array, np.ndarray)
    root = root_of(array)
    if root in {"numpy", "cupy"}:
        return array
    if root != "torch":
        return _exported(array)
    if not array.is_cuda:
        return to_numpy(array)
    torch, tensor = import_module("torch"), array.detach().resolve_conj()
    name = str(tensor.dtype).removeprefix("torch.")
    found = cupy().from_dlpack(tensor.view(getattr(torch, EXCHANGED[name])) if name in EXCHANGED else tensor)
    return found.view(dtype_info(name).numpy) if name in EXCHANGED else found


def _exported(array: Any) -> Any:
    """An array that offers DLPack or the CUDA array interface, on its device."""
    if hasattr(array, "__cuda_array_interface__") and not hasattr(array, "__dlpack_device__"):
        return cupy().asarray(array)
    if not hasattr(array, "__dlpack_device__") or array.__dlpack_device__()[0] == DLPACK_CPU:
        return np.asarray(array)
    name = str(array.dtype)
    found = cupy().from_dlpack(array.view(EXCHANGED[name]) if name in EXCHANGED else array)
    return found.view(dtype_info(name).numpy) if name in EXCHANGED else found


def module_of(array: Any) -> Any:
    """The module of an array: NumPy or CuPy."""
    return import_module(root_of(array))


def root_of(array: Any) -> str:
    """Name of the library that an array belongs to; properties of its class's own class are not called."""
    return module_name(type(array)).partition(".")[0]


def module_name(kind: type) -> str:
    """The module that a class names as its own."""
    return str(type.__dict__["__module__"].__get__(kind))


def _words(array: Array) -> Array:
    """The array as flat words of up to 64 bits."""
    flat = module_of(array).ascontiguousarray(array).reshape(-1)
    width = flat.dtype.itemsize
    found: Array = flat.view(np.uint64 if width % 8 == 0 else f"u{width}")
    return found
