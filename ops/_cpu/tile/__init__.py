"""Buffers for matrix products inside Numba kernels; the products themselves are in `ops._cpu.tile.jit`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import count

LINE = 64
"""Bytes of a cache line."""
PRODUCT_SPEED = 4
"""Speed of a matrix product in tiles relative to `OPERATIONS_PER_NS`, with packing, at sizes where a thread may pay."""


def scratch(size: int, dtype: Any) -> Any:
    """`size` zeros of `dtype`, aligned to a cache line."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE // itemsize, dtype)
    first = -raw.ctypes.data % LINE // itemsize
    return raw[first : first + size]


def widened(array: Any, wide: Any, steps: list[Bound]) -> Any:
    """`array` in the dtype `wide`: itself, or a copy that an additional step of `steps` fills.

    Kernels that only accept wide arrays are compiled for two dtypes, not four.
    """
    if array.dtype == wide:
        return array
    from opgauge.ops._cpu.jit import convert, storage

    copy = np.empty(array.shape, wide)
    if array.size:
        threads = count(array.nbytes + copy.nbytes, 2 * array.size)
        steps.append(partial(convert.on(threads), storage(array).reshape(-1), copy.reshape(-1)))
    return copy


def narrowed(array: Any, wide: Any, steps: list[Bound]) -> Any:
    """A buffer of dtype `wide` for the result `array`: itself, or one that an additional step rounds into it."""
    if array.dtype == wide:
        return array
    from opgauge.ops._cpu.jit import convert, storage

    copy = np.empty(array.shape, wide)
    if array.size:
        threads = count(array.nbytes + copy.nbytes, 2 * array.size)
        steps.append(partial(convert.on(threads), copy.reshape(-1), storage(array).reshape(-1)))
    return copy
