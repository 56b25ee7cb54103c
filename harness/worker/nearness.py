"""Nearness of arrays: whether they differ by no more than rounding, compared where they are."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from opgauge.ops import dtype_info
from opgauge.ops._core.backend import to_numpy

LOOSE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""Relative error above which outputs that should equal known ones up to rounding are judged by the reference."""


def is_near(got: Any, want: Any) -> bool:
    """Whether arrays of one shape and dtype are nearly equal, relative to an element plus the mean magnitude.

    Both on a GPU, or one is copied to the host; integers and bool must be equal.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    module = {type(one).__module__.partition(".")[0] for one in (got, want)}
    xp: Any = import_module("cupy") if module == {"cupy"} else np
    if xp is np:
        got, want = to_numpy(got), to_numpy(want)
    info = dtype_info(got.dtype.name)
    if info.kind not in ("float", "complex"):
        return bool(xp.array_equal(got, want))
    wide = np.complex128 if info.kind == "complex" else np.float64
    first, second = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        size = abs(second)
        counts = xp.isfinite(second)
        scale = xp.where(counts, size, 0).sum() / xp.maximum(counts.sum(), 1)
        limit = LOOSE.get(info.name, LOOSE["float32"]) * (size + scale)
        near = (abs(first - second) <= limit) | (first == second) | (xp.isnan(first) & xp.isnan(second))
    return bool(near.all())
