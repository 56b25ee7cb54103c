"""flatten on CUDA: a view, a copy in 128-bit accesses, or a gather of a strided tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.broadcast import MergedOperands
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import (
    AXES,
    THREADS,
    VECTOR_BYTES,
    axes_struct,
    blocks,
    evict_last_blocks,
    flat,
    strides_struct,
)
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.flatten.baseline import view_of
from opgauge.ops.flatten.op import DTYPES, FlattenParams, flat_shape

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "ulonglong2"}
SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    ("copy_vectors<ANY>", "copy_vectors<LARGE>", *(f"gather<{word}>" for word in WORDS.values())),
)
"""C++ types by width in bytes, and the declared instances of kernels.cu."""


@kernel("flatten", "optimized", "cuda", DTYPES, prepare=True, strided=True)
def flatten(*, x: Any, start_axis: int, stop_axis: int, copy: bool, out: dict[str, Any]) -> Bound:
    """One read and one write, or none."""
    shape = flat_shape(x.shape, FlattenParams(start_axis, stop_axis, copy))
    if not copy:
        return lambda: (view_of(x, shape),)
    result = out["out"]
    if x.size == 0:
        return lambda: None
    aligned = x.data.ptr % VECTOR_BYTES == 0 and result.data.ptr % VECTOR_BYTES == 0
    if x.flags.c_contiguous and aligned:
        grid, block = flat(x.nbytes, VECTOR_BYTES)
        kept = evict_last_blocks(x.nbytes)
        function = SOURCE.function(f"copy_vectors<{'LARGE' if kept else 'ANY'}>")
        arguments = (x, result, np.int64(x.nbytes // VECTOR_BYTES), np.int64(x.nbytes), np.uint32(kept))
        return lambda: function(grid, block, arguments)
    if x.ndim > AXES:
        msg = f"a strided tensor of rank {x.ndim}; up to {AXES} are gathered"
        raise ShapeError(msg)
    itemsize = x.dtype.itemsize
    function = SOURCE.function(f"gather<{WORDS[itemsize]}>")
    walked = (
        axes_struct(MergedOperands(x.shape or (1,), ())),
        strides_struct(tuple(step // itemsize for step in x.strides)),
    )
    gathered = (x, result, np.uint32(x.size), *walked)
    return lambda: function((blocks(x.size, 1),), (THREADS,), gathered)
