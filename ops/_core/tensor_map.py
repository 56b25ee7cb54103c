"""Tensor maps of 16-bit matrices: how the copying unit of Hopper finds boxes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.errors import BackendError
from ops._core.op import Array

_MAP = np.dtype([("words", np.uint64, (16,))])
LINE = 64
"""Elements of a box's row: 128 bytes, whose pieces of 16 are flipped by the last three bits of the row's number."""


def tensor_map(array: Any, columns: int, rows: int) -> Array:
    """A `TensorMap` of `array` seen as rows of `columns` elements, for boxes of `rows` x 64.

    Both the address and what a row takes in memory are multiples of 16 bytes. The array must outlive the launch.
    Raises BackendError where the driver does not take it.
    """
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    status, made = driver.cuTensorMapEncodeTiled(
        kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16 if array.dtype == np.float16 else kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        array.data.ptr,
        [driver.cuuint64_t(columns), driver.cuuint64_t(array.size // columns)],
        [driver.cuuint64_t(columns * array.itemsize)],
        [driver.cuuint32_t(LINE), driver.cuuint32_t(rows)],
        [driver.cuuint32_t(1)] * 2,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        msg = f"no tensor map of {array.shape} as rows of {columns}: {status.name}"
        raise BackendError(msg)
    return np.array(([int(word) for word in made.opaque],), _MAP)
