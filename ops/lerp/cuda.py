"""lerp on CUDA: one launch, no temporary of the common shape."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.broadcast import MergedOperands, merge_operands
from opgauge.ops._core.dtype import FLOATS, accumulating, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shape
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import (
    AXES,
    AXES_COMPILED,
    CONSTANTS,
    THREADS,
    axes_struct,
    extents,
    flat,
    flat_width,
    most_axes,
    one_per_thread,
    strided,
    strides_struct,
)
from opgauge.ops._cuda.reduction.elements import elements_templates
from opgauge.ops._cuda.reduction.plan import CONSTANTS as REDUCTION
from opgauge.ops._cuda.reduction.plan import STRUCTS
from opgauge.ops._cuda.source import CudaSource, flag, whole_vector

LARGE_BYTES = 256 << 20
"""Bytes of a result from which, with a weight tensor, blocks are large and fewer stores are evict_last; 128 MB is as
fast on an H200."""
CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
WIDTHS = {name: 16 // dtype_info(name).itemsize for name in FLOATS}
FLAGS = ("false", "true")
STEPS, NO_TENSOR = ((1, 1), (0, 1), (1, 0)), -1
"""Element strides of x and y along a row (0: repeated), and the stride that denotes a scalar weight."""
LARGE_THREADS = 1024
"""Threads per block for long tensors with one weight per element."""
FEW_ELEMENTS = 3 << 17
"""Elements up to which a thread computes one: such launches are bound by latency, not by bandwidth. On an H100 10 to
30 % faster from 131072 to 393216 elements, 3 to 35 % slower for a million."""
WARP = 32
IN_FLIGHT = 4
"""Threads of a warp, and vectors in flight per summing thread."""
CROSSED_ROWS = range(17, 65)
"""Lengths of the shorter of two summed axes for `grad_crossed`: rows of a warp, whose sums stay in registers."""
MOST_ROWS = 65_535
"""Maximum extent of a grid along its second and third axis."""


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for name, ctype in CTYPES.items():
        for width in (1, WIDTHS[name]):
            found.append(f"reduce_columns_grid<SummedGrad<{ctype}>, {width}, false, true>")
            found.append(f"grad_rows<{ctype}, {width}>")
            for most in AXES_COMPILED if width == 1 else (AXES,):
                found.append(f"grad_broadcast<{ctype}, {width}, {most}>")
                found += [f"lerp_broadcast<{ctype}, {width}, {most}, {tensor}>" for tensor in FLAGS]
            (threads,) = one_per_thread(1, width)[1]
            kinds = ((tensor, extent) for tensor in FLAGS for extent in extents(width))
            found += [f"lerp_flat<{ctype}, {width}, {tensor}, {extent}, {threads}>" for tensor, extent in kinds]
            flags = [f"{tensor}, {subtract}" for tensor in FLAGS for subtract in FLAGS]
            found += [f"grad_flat<{ctype}, {width}, {extent}, {both}>" for both in flags for extent in extents(width)]
        found += [
            f"lerp_rows<{ctype}, {WIDTHS[name]}, {x_step}, {y_step}, {step}>"
            for x_step, y_step in STEPS
            for step in (NO_TENSOR, 0, 1)
        ]
        found.append(f"reduce_columns_grid<SummedGrad<{ctype}>, {WIDTHS[name]}, false, false>")
        elements = elements_templates("BY_ROW", "BY_COLUMN", "TWO_GROUPS", "ANY_AXES")
        found += [f"reduce_elements_lanes<SummedGrad<{ctype}>, {template}>" for template in elements]
        found.append(f"grad_crossed<{ctype}, {WIDTHS[name]}>")
        found.append(f"lerp_flat<{ctype}, {WIDTHS[name]}, true, LARGE, {LARGE_THREADS}>")
    return tuple(found)


SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    _expressions(),
    constants={
        **CONSTANTS,
        **REDUCTION,
        "AXES": AXES,
        "IN_FLIGHT_EACH": IN_FLIGHT,
        "ROWS_EACH": (CROSSED_ROWS.stop - 1) // (THREADS // WARP),
    },
    structs=STRUCTS | strided(1, np.uint32) | strided(2, np.uint32) | strided(3, np.uint32),
)
"""Declared instances of kernels.cu."""


def split_weight(weight: Any, wide: Any) -> tuple[Any, Any]:
    """The weight as (tensor or None, number)."""
    return (None, wide(weight)) if isinstance(weight, float | int) else (weight, wide(0))


@kernel("lerp", "optimized", "cuda", FLOATS, prepare=True)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """One launch: flat for equal shapes, with index arithmetic otherwise."""
    result = out["out"]
    if result.size == 0:
        return lambda: None
    wide, ctype = accumulating(x), CTYPES[x.dtype.name]
    tensor, number = split_weight(weight, wide)
    operands = (x, y, tensor, result)
    if all(array is None or array.size == result.size for array in operands):
        width = flat_width(result, *operands)
        width, extent, grid, block, numbers = flat(result.size, width, x.dtype.itemsize)
        if tensor is not None and extent != "APART" and width > 1 and result.nbytes >= LARGE_BYTES:
            extent, grid, block = "LARGE", (-(-int(numbers[1]) // LARGE_THREADS),), (LARGE_THREADS,)
        function = SOURCE.function(f"lerp_flat<{ctype}, {width}, {flag(tensor is not None)}, {extent}, {block[0]}>")
        arguments = (*operands, *numbers, number)
        return lambda: function(grid, block, arguments)
    steps = merge_operands(result.shape, x.shape, y.shape, *(() if tensor is None else (tensor.shape,)))
    width = flat_width(result, steps.lengths[-1], *operands, *_row_strides(steps.strides))
    if width > 1 and _long_rows(steps.lengths, width):
        rows = _blend_rows(operands, number, steps, width)
        if rows is not None:
            return rows
    dense = [array is not None and array.size == result.size for array in operands[:3]]
    aligned = [array for array, is_dense in zip(operands, dense, strict=False) if is_dense]
    width = whole_vector(x, result, *aligned) if result.size > FEW_ELEMENTS else 1
    axes = most_axes(len(steps.lengths)) if width == 1 else AXES
    function = SOURCE.function(f"lerp_broadcast<{ctype}, {width}, {axes}, {flag(tensor is not None)}>")
    bits = np.int32(sum(is_dense << bit for bit, is_dense in enumerate(dense)))
    walked = (strides_struct(*steps.strides, axes=axes, dtype=np.uint32), axes_struct(steps, axes))
    grid, block = one_per_thread(-(-result.size // width), width)
    arguments = (x, y, result, number if tensor is None else tensor, np.uint32(result.size), *walked, bits)
    return lambda: function(grid, block, arguments)


def _long_rows(lengths: Shape, width: int) -> bool:
    """Whether there are at most two axes, with rows long enough for a block."""
    return len(lengths) <= 2 and prod(lengths[:-1]) <= MOST_ROWS and lengths[-1] >= width * THREADS


def _blend_rows(operands: tuple[Any, ...], number: Any, steps: MergedOperands, width: int) -> Bound | None:
    """Launch for at most two axes without index division. None if both x and y are repeated along a row."""
    rows, length = prod(steps.lengths[:-1]), steps.lengths[-1]
    (across,), block = one_per_thread(length // width, width)
    found = [(own[0] if len(own) > 1 else 0, own[-1]) for own in steps.strides]
    (x_row, x_step), (y_row, y_step), (weight_row, weight_step) = found if len(found) == 3 else (*found, (0, NO_TENSOR))
    if (x_step, y_step) not in STEPS:
        return None
    ctype = CTYPES[operands[0].dtype.name]
    function = SOURCE.function(f"lerp_rows<{ctype}, {width}, {x_step}, {y_step}, {weight_step}>")
    numbers = (np.int64(length // width), *(np.int64(row) for row in (x_row, y_row, weight_row)))
    return lambda: function((across, rows), block, (*operands, *numbers, number))


def _row_strides(strides: tuple[Shape, ...]) -> tuple[int, ...]:
    """Strides of the outer axes, for operands contiguous along the innermost: vectors must stay aligned."""
    return tuple(stride for item in strides if item[-1] == 1 for stride in item[:-1])
