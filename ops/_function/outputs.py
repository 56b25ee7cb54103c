"""Outputs of a reference: their names and dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS_8, dtype_info
from opgauge.ops._core.errors import DefinitionError
from opgauge.ops._core.op import Array


def name_outputs(returned: Any, names: tuple[str, ...], op_name: str) -> dict[str, Array]:
    """Outputs of a reference by name; raises DefinitionError if they do not match the names."""
    if isinstance(returned, Mapping):
        missing = [name for name in names if name not in returned]
        if missing:
            msg = f"op {op_name}: the reference returned no {', '.join(missing)}; outputs= names them"
            raise DefinitionError(msg)
        values = tuple(returned[name] for name in names)
    else:
        is_several = isinstance(returned, tuple) or (isinstance(returned, list) and len(names) > 1)
        values = tuple(returned) if is_several else (returned,)
    if len(values) != len(names):
        msg = f"op {op_name}: the reference returned {len(values)} outputs; name them all with outputs=(…)"
        raise DefinitionError(msg)
    absent = [name for name, value in zip(names, values, strict=True) if value is None]
    if absent:
        which = "None; it should return the output" if len(names) == 1 else f"None for {', '.join(absent)}"
        msg = f"op {op_name}: the reference returned {which}"
        raise DefinitionError(msg)
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


def output_dtype(kind: str, dtype: str, case: str) -> str:
    """The case's dtype for a floating output of a floating case, but of 8 bits only where the reference says so.

    The reference's own dtype where either is exact.
    """
    if kind in "iub" or dtype in FLOATS_8:
        return dtype
    case_kind = dtype_info(case).kind
    if kind == "c":
        return case if case_kind == "complex" else ("complex128" if case == "float64" else "complex64")
    if case_kind == "complex":
        return "float64" if case == "complex128" else "float32"
    return case if case_kind == "float" and case not in FLOATS_8 else "float32"
