"""CUDA structs from NumPy dtypes: one definition for host and device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opgauge.ops._core.op import Array

SCALARS = {"int32": "int", "uint32": "unsigned int", "int64": "long long", "uint64": "unsigned long long"} | {
    "float32": "float",
    "float64": "double",
}
"""C++ types by dtype."""
DIVISOR = np.dtype([("value", np.uint32), ("multiplier", np.uint32), ("shift", np.uint32)])
"""`Divisor` of `include/divide.cuh`."""


class Argument(np.ndarray[Any, Any]):
    """A struct that is passed to a kernel. CuPy asks for its address, and NumPy would describe all fields each time.

    On a host of an H200 that takes 6 of 13 us per launch.
    """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The address, which is all that CuPy reads."""
        return {"data": (self.ctypes.data, False)}


def pointer(ctype: str) -> Any:
    """The dtype of a device address that is a `ctype*` in C++."""
    return np.dtype(np.uint64, metadata={"ctype": f"{ctype}*"})


def address(array: Any) -> int:
    """Device address of an array, which must outlive the launch; null for None."""
    return 0 if array is None else int(array.data.ptr)


def divisor(value: int) -> Array:
    """A `Divisor` of `include/divide.cuh`: divides numbers below 2^31 by `value` (1 to 2^31 - 1)."""
    shift = (value - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - value)) // value + 1
    return np.array((value, multiplier, shift), DIVISOR).view(Argument)


def pack(dtype: Any, values: Mapping[str, Any]) -> Array:
    """A struct of `values` by field; a field of dtype `DIVISOR` takes the number to divide by.

    Raises KeyError for a missing field that is no padding.
    """
    fields = ((name, kind) for name, (kind, *_) in dtype.fields.items())
    return np.array(tuple(_packed(kind, values, name) for name, kind in fields), dtype).view(Argument)


def _packed(kind: Any, values: Mapping[str, Any], name: str) -> Any:
    if kind.base == DIVISOR:
        return [divisor(value) for value in values[name]] if kind.shape else divisor(values[name])
    return b"" if kind.base.kind == "V" and not kind.base.names else values[name]


def define(name: str, dtype: Any, known: Mapping[str, Any]) -> str:
    """C++ definition of the struct `name`, on one line, with a check of its size by the compiler.

    A name with template arguments, `Pair<float>`, defines a specialization of a template that the source declares.
    known: other structs by name, for nested fields. Fields of raw bytes (`V4`) are padding and have no name in C++.
    Raises KeyError for a field of another type, ValueError for one that C++ would place elsewhere. NVRTC before 13.1
    has no `offsetof`, so places are checked here.
    """
    names = {found: kind for kind, found in known.items()}
    members, end = [], 0
    for field, (kind, offset, *_) in dtype.fields.items():
        base, shape = kind.subdtype or (kind, ())
        if base.kind == "V" and not base.names:
            continue
        if offset != _rounded_up(end, _alignment(base)):
            msg = f"{name}.{field} is at byte {offset}, C++ would place it at {_rounded_up(end, _alignment(base))}"
            raise ValueError(msg)
        end = offset + kind.itemsize
        lengths = "".join(f"[{length}]" for length in shape)
        members.append(f"{_ctype(base, names)} {field}{lengths};")
    template = "template <> " if "<" in name else ""
    check = f'static_assert(sizeof({name}) == {dtype.itemsize}, "size of {name}")'
    return f"{template}struct {name} {{ {' '.join(members)} }}; {check}"


def _ctype(base: Any, names: Mapping[Any, str]) -> str:
    """C++ type of a scalar, pointer or struct."""
    if base.names:
        return names[base]
    pointed: str | None = (base.metadata or {}).get("ctype")
    return pointed or SCALARS[base.name]


def _alignment(dtype: Any) -> int:
    """Alignment in bytes that C++ gives a scalar, array or struct."""
    base = dtype.base
    if not base.names:
        return 1 if base.kind == "V" else int(base.itemsize)
    return max(_alignment(kind) for kind, *_ in base.fields.values())


def _rounded_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
