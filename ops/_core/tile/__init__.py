"""Matrix products inside Numba kernels, tile by tile: see `ops._core.tile.jit`. Here: memory to keep operands in."""

from __future__ import annotations

from typing import Any

import numpy as np

LINE = 64


def scratch(size: int, dtype: Any) -> Any:
    """`size` zeros of `dtype` from the start of a cache line on."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE // itemsize, dtype)
    first = -raw.ctypes.data % LINE // itemsize
    return raw[first : first + size]
