"""flatten on CUDA: a view, a copy in 128-bit accesses, or a gather of a strided tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.broadcast import merge_strides
from opgauge.ops._core.errors import ShapeError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.pointwise import (
    APART_BYTES,
    AXES,
    AXES_COMPILED,
    CONSTANTS,
    VECTOR_BYTES,
    axes_struct,
    extents,
    flat,
    most_axes,
    one_per_thread,
    strided,
    strides_struct,
)
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.flatten.baseline import view_of
from opgauge.ops.flatten.op import DTYPES, FlattenParams, flat_shape

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "ulonglong2"}
SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    (
        *(f"copy<{WORDS[1]}, {VECTOR_BYTES}, {extent}>" for extent in extents(VECTOR_BYTES)),
        *(
            f"copy<{word}, {VECTOR_BYTES // nbytes}, APART>"
            for nbytes, word in WORDS.items()
            if nbytes in APART_BYTES[1:]
        ),
        *(f"gather<{word}, {axes}>" for word in WORDS.values() for axes in AXES_COMPILED),
    ),
    constants={**CONSTANTS, "AXES": AXES},
    structs=strided(1),
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
    itemsize = x.dtype.itemsize
    if x.flags.c_contiguous:
        launch = flat(x.nbytes, VECTOR_BYTES, 1) if aligned else flat(x.size, 1, itemsize)
        if aligned or launch.extent == "APART":
            word = WORDS[1 if aligned else itemsize]
            expression = f"copy<{word}, {launch.width}, {launch.extent}>"
            return bind_launch(SOURCE, expression, launch.grid, launch.block, (x, result, *launch.numbers))
    merged = merge_strides(x.shape, tuple(step // itemsize for step in x.strides))
    if len(merged.lengths) > AXES:
        msg = f"a strided tensor of {len(merged.lengths)} axes that cannot be merged; up to {AXES} are gathered"
        raise ShapeError(msg)
    axes = most_axes(len(merged.lengths))
    grid, block = one_per_thread(x.size, 1)
    gathered = (x, result, np.uint32(x.size), axes_struct(merged, axes), strides_struct(*merged.strides, axes=axes))
    return bind_launch(SOURCE, f"gather<{WORDS[itemsize]}, {axes}>", grid, block, gathered)
