"""Nearness of arrays: whether they differ by no more than rounding."""

from __future__ import annotations

import numpy as np

from opgauge.ops import dtype_info
from opgauge.ops._core.op import Array

LOOSE = {"float8_e4m3fn": 0.25, "float8_e5m2": 0.5, "float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""Relative error above which outputs that should equal known ones up to rounding are judged by the reference."""


def is_near(got: Array, want: Array) -> bool:
    """Whether arrays are nearly equal, relative to an element plus the mean magnitude; integers and bool must be equal.

    Both are on the host: on a GPU, CuPy would compile twenty kernels for this, half a minute.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    info = dtype_info(got.dtype.name)
    if info.kind not in ("float", "complex"):
        return bool(np.array_equal(got, want))
    wide = np.complex128 if info.kind == "complex" else np.float64
    first, second = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(second)
        scale = float(np.mean(np.abs(second[finite]))) if finite.any() else 0.0
        limit = LOOSE.get(info.name, LOOSE["float32"]) * (np.abs(second) + scale)
        near = (np.abs(first - second) <= limit) | (first == second) | (np.isnan(first) & np.isnan(second))
    return bool(near.all())
