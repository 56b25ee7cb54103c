"""Names of dtypes, their sizes, and their names in NumPy and in CUDA C++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from opgauge.ops._core.errors import DtypeError

Kind = Literal["float", "int", "uint", "bool", "complex"]


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """Properties of a dtype.

    `accumulate` is the dtype of sums and of scalar parameters in kernels:
    float32 for 16-bit floats, the dtype itself otherwise.
    `epsilon` is the distance from 1 to the next number, `subnormal` that from 0 (0 for exact dtypes).
    """

    name: str
    kind: Kind
    numpy: np.dtype
    ctype: str
    accumulate: str
    epsilon: float
    largest: float
    subnormal: float = 0.0

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.numpy.itemsize)


def _float(name: str, numpy: object, ctype: str, accumulate: str) -> DtypeInfo:
    info: Any = ml_dtypes.finfo(numpy)  # type: ignore[no-untyped-call]
    dtype = np.dtype(numpy)  # type: ignore[call-overload]
    numbers = map(float, (info.eps, info.max, info.smallest_subnormal))
    return DtypeInfo(name, "float", dtype, ctype, accumulate, *numbers)


def _int(name: str, ctype: str) -> DtypeInfo:
    dtype = np.dtype(name)
    kind: Kind = "int" if dtype.kind == "i" else "uint"
    return DtypeInfo(name, kind, dtype, ctype, name, 0.0, float(np.iinfo(dtype).max))


def _complex(name: str, ctype: str) -> DtypeInfo:
    info = np.finfo(name)
    dtype = np.dtype(name)
    return DtypeInfo(name, "complex", dtype, ctype, name, float(info.eps), float(info.max))


DTYPES: dict[str, DtypeInfo] = {
    info.name: info
    for info in (
        _float("float16", np.float16, "__half", "float32"),
        _float("bfloat16", ml_dtypes.bfloat16, "__nv_bfloat16", "float32"),
        _float("float32", np.float32, "float", "float32"),
        _float("float64", np.float64, "double", "float64"),
        _int("int8", "signed char"),
        _int("int16", "short"),
        _int("int32", "int"),
        _int("int64", "long long"),
        _int("uint8", "unsigned char"),
        _int("uint16", "unsigned short"),
        _int("uint32", "unsigned int"),
        _int("uint64", "unsigned long long"),
        _float("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "__nv_fp8_e4m3", "float32"),
        _float("float8_e5m2", ml_dtypes.float8_e5m2, "__nv_fp8_e5m2", "float32"),
        DtypeInfo("bool", "bool", np.dtype(np.bool_), "bool", "bool", 0.0, 1.0),
        _complex("complex64", "float2"),
        _complex("complex128", "double2"),
    )
}
"""Supported dtypes by name."""

EXCHANGED = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Dtypes that libraries do not exchange with NumPy, with one of their size in whose place they do."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
FLOATS_8 = ("float8_e4m3fn", "float8_e5m2")
INTS = ("int8", "int16", "int32", "int64", "uint8")
COMPLEX = ("complex64", "complex128")
"""Names of the floating, integer and complex dtypes of this library's ops, and of floats of 8 bits."""


def dtype_info(name: str) -> DtypeInfo:
    """The dtype called `name`; raises DtypeError for an unknown one."""
    try:
        return DTYPES[name]
    except KeyError:
        known = ", ".join(DTYPES)
        msg = f"unknown dtype {name!r}; known: {known}"
        raise DtypeError(msg) from None


def accumulator_info(name: str) -> DtypeInfo:
    """Properties of the dtype of sums over a dtype. Raises DtypeError."""
    return dtype_info(dtype_info(name).accumulate)


def accumulating(array: Any) -> Any:
    """NumPy type of sums over `array` and of its scalar parameters."""
    return accumulator_info(array.dtype.name).numpy.type


def dtype_name(numpy_dtype: object) -> str:
    """The name of a NumPy or CuPy array's dtype (`"bfloat16"` for the ml_dtypes one)."""
    name = np.dtype(numpy_dtype).name  # type: ignore[call-overload]
    return dtype_info(name).name
