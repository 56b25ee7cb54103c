"""Parameter values: plain Python types, and numbers that the dtype of a case can represent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from math import isfinite
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import DtypeInfo, dtype_info
from opgauge.ops._core.errors import ParameterError
from opgauge.ops._core.op import Params, Shape, Shapes

LONGEST = 2**63 - 1
"""Largest integer parameter in magnitude: kernels take 64-bit integers."""

Infer = Callable[[Mapping[str, Shape], str, Params], Shapes]
"""Shape rule of an op."""


def plain(value: Any) -> Any:
    """A parameter value in plain types: scalars and 0-d arrays of NumPy as Python's, sequences as tuples."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(plain(item) for item in value)
    return value


def make_plain(params: Params) -> None:
    """Convert the fields of a parameter dataclass to plain types; called from its `__post_init__`."""
    for item in fields(params):
        value = getattr(params, item.name)
        found = plain(value)
        if found is not value:
            object.__setattr__(params, item.name, found)


def with_checked_numbers(infer: Infer) -> Infer:
    """`infer`, which raises ParameterError for a number among the parameters that the dtype cannot represent."""

    @wraps(infer)
    def checked(shapes: Mapping[str, Shape], dtype: str, params: Params) -> Shapes:
        result = infer(shapes, dtype, params)
        check_numbers(params, dtype)
        return result

    return checked


def check_numbers(params: Params, dtype: str) -> None:
    """Raise ParameterError for a number that becomes infinite or zero in the dtype of kernels, or exceeds 64 bits.

    Kernels take real numbers in the accumulating dtype. Ops of integer dtypes, and those with a parameter `dtype`,
    define themselves what a real number means.
    """
    info = dtype_info(dtype)
    if hasattr(params, "dtype"):
        return
    for item in fields(params):
        value = getattr(params, item.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if "float" in str(item.type):
                if info.kind in {"float", "complex"} and not _is_representable(number, info):
                    msg = f"{item.name} {number} is out of range for {info.accumulate}, in which {dtype} is computed"
                    raise ParameterError(msg)
            elif abs(number) > LONGEST:
                msg = f"{item.name} {number} exceeds 64 bits"
                raise ParameterError(msg)


def _is_representable(number: float, info: DtypeInfo) -> bool:
    """Whether a number stays finite and not zero in the accumulating dtype; infinities and NaN are represented."""
    try:
        exact = float(number)
    except OverflowError:  # an integer beyond float64
        return False
    if not isfinite(exact):
        return True
    with np.errstate(over="ignore", under="ignore"):
        found = float(abs(dtype_info(info.accumulate).numpy.type(exact)))
    return isfinite(found) and (found != 0) == (exact != 0)
