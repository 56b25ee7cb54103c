"""Tensor maps of 16-bit matrices: descriptors of the boxes that Hopper's TMA copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opgauge.ops._core.errors import BackendError
from opgauge.ops._core.op import Array

_MAP = np.dtype([("words", np.uint64, (16,))])
LINE = 64
"""Elements of a box's row: 128 bytes, stored with the 128-byte swizzle."""


def tensor_map(array: Any, columns: int, rows: int, image: int = 0) -> Array:
    """A `TensorMap` of `array` seen as rows of `columns` elements, for boxes of `rows` x 64.

    image: rows of each of several matrices, 0 for one. See `box_map`.
    """
    sizes = (columns, image, array.size // columns // image) if image else (columns, array.size // columns)
    return box_map(array, sizes, (LINE, rows, 1)[: len(sizes)])


def box_map(array: Any, sizes: Sequence[int], box: Sequence[int]) -> Array:
    """A `TensorMap` of `array` seen as a tensor of `sizes`, innermost first, for boxes of these lengths.

    The innermost length of a box is 64. The address, and the innermost size in bytes, are multiples of 16. The array
    must outlive the launch. Raises BackendError if the driver rejects it.
    """
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    pitches = np.cumprod(sizes[:-1]) * array.itemsize
    status, made = driver.cuTensorMapEncodeTiled(
        kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16 if array.dtype == np.float16 else kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        len(sizes),
        array.data.ptr,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(int(pitch)) for pitch in pitches],
        [driver.cuuint32_t(length) for length in box],
        [driver.cuuint32_t(1)] * len(sizes),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        msg = f"no tensor map of {array.shape} as {sizes} in boxes of {box}: {status.name}"
        raise BackendError(msg)
    return np.array(([int(word) for word in made.opaque],), _MAP)
