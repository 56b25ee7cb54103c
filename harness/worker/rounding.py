"""Rounding of the processor: its mode, and whether it flushes subnormal numbers to zero, as libraries may set it."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

TINY, SMALLEST = 2.0**-1022, 2.0**-1074
"""Smallest normal and subnormal numbers: with flush-to-zero their halves and sums are 0."""


def rounding() -> tuple[float, ...]:
    """Results that depend on the rounding mode, and on whether subnormals are flushed to zero."""
    third = np.divide(np.array([1.0, -1.0]), 3.0)
    halves = np.multiply(np.array([TINY, SMALLEST]), np.array([0.5, 1.0]))
    single = np.multiply(np.array([2.0**-126], np.float32), np.float32(0.5))
    return (*third.tolist(), *halves.tolist(), *single.tolist(), math.sqrt(2.0))


def put_back_rounding() -> None:
    """Round to nearest, subnormals included, in this thread."""
    set_environment = _control_words()
    if set_environment is not None:
        set_environment(ctypes.c_void_p(-1))  # FE_DFL_ENV


@cache
def _control_words() -> Callable[[Any], None] | None:
    """The C library's `fesetenv`; None without it."""
    library = ctypes.CDLL("libm.so.6") if sys.platform == "linux" else None
    return getattr(library, "fesetenv", None)
