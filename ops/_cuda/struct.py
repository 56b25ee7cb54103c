"""CUDA structs from NumPy dtypes: one definition for host and device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCALARS = {"int32": "int", "uint32": "unsigned int", "int64": "long long", "uint64": "unsigned long long"}
"""C++ types by dtype."""


def define(name: str, dtype: Any, known: Mapping[str, Any]) -> str:
    """C++ definition of the struct `name`, on one line, with checks that the compiler lays it out as NumPy does.

    known: other structs by name, for nested fields. Fields of raw bytes (`V4`) are padding and have no name in C++.
    Raises KeyError for a field of another type.
    """
    names = {found: kind for kind, found in known.items()}
    members, checks = [], [f"sizeof({name}) == {dtype.itemsize}"]
    for field, (kind, offset, *_) in dtype.fields.items():
        base, shape = kind.subdtype or (kind, ())
        if base.kind == "V" and not base.names:
            continue
        lengths = "".join(f"[{length}]" for length in shape)
        members.append(f"{names[base] if base.names else SCALARS[base.name]} {field}{lengths};")
        checks.append(f"__builtin_offsetof({name}, {field}) == {offset}")
    return f'struct {name} {{ {" ".join(members)} }}; static_assert({" && ".join(checks)}, "layout of {name}")'
