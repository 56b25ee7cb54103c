"""lerp on CUDA: one launch, no temporary of the common shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.broadcast import MergedOperands, merge_operands
from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shape
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import (
    THREADS,
    axes_struct,
    blocks,
    evict_last_blocks,
    flat,
    strides_struct,
)
from opgauge.ops._cuda.reduction.problem import GRID_RESIDENT
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
FEW_ELEMENTS = 1 << 16
"""Elements up to which a thread computes one: such launches are bound by latency, not by bandwidth."""
MOST_ROWS = 65_535
"""Maximum extent of a grid along its second and third axis."""


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for name, ctype in CTYPES.items():
        for width in (1, WIDTHS[name]):
            found += [f"{kind}<{ctype}, {width}>" for kind in ("grad_rows", "grad_columns")]
            found += [f"lerp_broadcast<{ctype}, {width}>", f"grad_broadcast<{ctype}, {width}>"]
            found += [f"lerp_flat<{ctype}, {width}, {tensor}, ANY, {THREADS}>" for tensor in FLAGS]
            flags = (f"{tensor}, {subtract}" for tensor in FLAGS for subtract in FLAGS)
            found += [f"grad_flat<{ctype}, {width}, {both}>" for both in flags]
        found += [
            f"lerp_rows<{ctype}, {WIDTHS[name]}, {x_step}, {y_step}, {step}>"
            for x_step, y_step in STEPS
            for step in (NO_TENSOR, 0, 1)
        ]
        found.append(f"grad_crossed<{ctype}, {WIDTHS[name]}>")
        found += [f"lerp_flat<{ctype}, {WIDTHS[name]}, {tensor}, LARGE, {THREADS}>" for tensor in FLAGS]
        found.append(f"lerp_flat<{ctype}, {WIDTHS[name]}, true, LARGE, {LARGE_THREADS}>")
    return tuple(found)


SOURCE = CudaSource(__file__, "kernels.cu", _expressions(), (f"-DGRID_RESIDENT={GRID_RESIDENT}",))
"""Declared instances of kernels.cu."""


def accumulating(x: Any) -> Any:
    """NumPy type of sums over x and of scalar parameters."""
    return dtype_info(dtype_info(x.dtype.name).accumulate).numpy.type


def split_weight(weight: Any, wide: Any) -> tuple[Any, Any]:
    """The weight as (tensor or None, number)."""
    return (None, wide(weight)) if isinstance(weight, float | int) else (weight, wide(0))


@kernel("lerp", "optimized", "cuda", FLOATS, prepare=True)
def lerp(*, x: Any, y: Any, weight: Any, out: dict[str, Any]) -> Bound:
    """One launch: flat for equal shapes, with index arithmetic otherwise."""
    result = out["out"]
    wide, ctype = accumulating(x), CTYPES[x.dtype.name]
    tensor, number = split_weight(weight, wide)
    operands = (x, y, tensor, result)
    if x.shape == y.shape and (tensor is None or tensor.shape == x.shape):
        width = whole_vector(x, result.size, *operands)
        wide_vectors = width == WIDTHS[x.dtype.name]
        large = tensor is not None and wide_vectors and result.nbytes >= LARGE_BYTES
        threads = LARGE_THREADS if large else THREADS
        kept = evict_last_blocks(result.nbytes) if wide_vectors else 0
        extent = "LARGE" if large or kept else "ANY"
        grid, block = flat(result.size, width, threads)
        function = SOURCE.function(f"lerp_flat<{ctype}, {width}, {flag(tensor is not None)}, {extent}, {threads}>")
        arguments = (*operands, number, np.int64(result.size // width), np.uint32(kept))
        return lambda: function(grid, block, arguments)
    steps = merge_operands(result.shape, x.shape, y.shape, () if tensor is None else tensor.shape)
    width = whole_vector(x, steps.lengths[-1], *operands, *_row_strides(steps.strides))
    if width > 1 and _long_rows(steps.lengths, width):
        rows = _blend_rows(operands, number, steps, width)
        if rows is not None:
            return rows
    dense = [array is not None and array.size == result.size for array in operands[:3]]
    aligned = [array for array, is_dense in zip(operands, dense, strict=False) if is_dense]
    width = whole_vector(x, result, *aligned) if result.size > FEW_ELEMENTS else 1
    function = SOURCE.function(f"lerp_broadcast<{ctype}, {width}>")
    strides = tuple(strides_struct(item) for item in steps.strides)
    bits = np.int32(sum(is_dense << bit for bit, is_dense in enumerate(dense)))
    numbers = (number, np.uint32(result.size), bits, axes_struct(steps), *strides)
    grid = (blocks(result.size, width),)
    return lambda: function(grid, (THREADS,), (*operands, *numbers))


def _long_rows(lengths: Shape, width: int) -> bool:
    """Launch for two axes, with rows long enough for a block."""
    return len(lengths) == 2 and lengths[0] <= MOST_ROWS and lengths[1] >= width * THREADS


def _blend_rows(operands: tuple[Any, ...], number: Any, steps: MergedOperands, width: int) -> Bound | None:
    """Launch for two axes without index division. None if both x and y are repeated along a row."""
    rows, length = steps.lengths
    (across,), block = flat(length, width)
    (x_row, x_step), (y_row, y_step), (weight_row, weight_step) = steps.strides[:3]
    if (x_step, y_step) not in STEPS:
        return None
    if operands[2] is None:
        weight_step = NO_TENSOR
    ctype = CTYPES[operands[0].dtype.name]
    function = SOURCE.function(f"lerp_rows<{ctype}, {width}, {x_step}, {y_step}, {weight_step}>")
    numbers = (np.int64(length // width), *(np.int64(row) for row in (x_row, y_row, weight_row)))
    return lambda: function((across, rows), block, (*operands, number, *numbers))


def _row_strides(strides: tuple[Shape, ...]) -> tuple[int, ...]:
    """Strides of the outer axes, for operands contiguous along the innermost: vectors must stay aligned."""
    return tuple(stride for item in strides if item[-1] == 1 for stride in item[:-1])
