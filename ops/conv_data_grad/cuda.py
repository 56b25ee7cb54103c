"""conv_data_grad on CUDA: one launch for most 1x1 convolutions, two for others, with a fused addend.

Columns and a fold are used if the tensor cores lack the dtype, or a tap reaches beyond shared memory.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np

from opgauge.ops._core.backend import namespace
from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.gemm.gemm import Matrix, product, product_of_images, supported, transposed_bytes
from opgauge.ops._cuda.source import DIVISOR, CudaSource, divisor, multiprocessors
from opgauge.ops.conv_data_grad.cuda_direct import config_here, convolve_directly
from opgauge.ops.conv_data_grad.cuda_gather import gather, workspace_bytes
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, ConvGeometry, geometry

THREADS = 256
AXES = 3
"""Threads per block, and number of spatial axes."""
_FOLD_BLOCKS = 16
"""Maximum blocks per multiprocessor that fold columns into dx: more shorten the last wave, each has a cost."""
_AXES = np.dtype(
    [(name, np.int32, (AXES,)) for name in ("kernel", "out", "padding", "dilation", "step", "move")]
    + [(name, DIVISOR, (AXES,)) for name in ("size", "stride")]
)
_STRIDES = np.dtype([(name, np.int64) for name in ("image", "group", "channel", "tap", "pixel")])
_FACTORS = np.dtype(
    [(name, np.int64) for name in ("dy_image", "dy_out", "dy_pixel", "filter_out", "filter_inner", "filter_tap")]
    + [("outs", np.int32), ("lanes", np.int32)]
)
_LANE_THREADS = 512
"""Threads per multiprocessor up to which more of them share an element of dx; on an H100 twice as many are slower."""
_LONGEST_CHAIN = 256
"""Maximum products that a thread adds one after the other: longer sums lose accuracy."""
_ELEMENT_PRODUCTS = 8
"""Multiply-adds in the time of which an element of dx is located."""
_FEW_POINTWISE, _FEW_16_BIT, _FEW = 3 << 20, 4 << 20, 10 << 20
"""Multiply-adds up to which one launch without tensor cores is faster: than a single product, than repacking and a
product in 16 bits, and in wider types."""


def _fold_name(dtype: str, last: bool) -> str:  # noqa: FBT001
    info = dtype_info(dtype)
    return f"fold<{info.ctype}, {dtype_info(info.accumulate).ctype}, {str(last).lower()}>"


def _multiply_name(dtype: str, last: bool) -> str:  # noqa: FBT001
    return f"multiply<{dtype_info(dtype).ctype}, {str(last).lower()}>"


SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    tuple(name(dtype, last) for name in (_fold_name, _multiply_name) for dtype in FLOATS for last in (False, True)),
)
"""Declared instances of kernels.cu."""


def _workspace(shapes: Shapes, params: ConvDataGradParams) -> int:
    """Bytes of: none for a single product, or dy transposed; dy and the filter repacked; else the columns."""
    found = geometry(shapes.inputs["x_like"].shape, shapes.inputs["filter"].shape, params)
    dtype = shapes.outputs["dx"].dtype
    info = dtype_info(dtype)
    if config_here(found, dtype) is not None or is_small(found, dtype):
        return 0
    if found.is_pointwise and supported(dtype):
        return _transposed_bytes(found, dtype)
    gathering = workspace_bytes(found, dtype)
    if gathering is not None:
        return gathering
    columns = found.channels * prod(found.kernel) * found.batch * prod(found.out_size)
    return columns * dtype_info(info.accumulate).itemsize


@kernel("conv_data_grad", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def conv_data_grad(
    *,
    dy: Any,
    filter: Any,
    x_like: Any,
    out: dict[str, Any],
    workspace: Any,
    add_to_output: Any = None,
    **options: Any,
) -> Bound:
    """Few products: one launch. 1x1 with stride 1: one product with a fused addend. Else taps gather dy, or columns."""
    found = geometry(x_like.shape, filter.shape, ConvDataGradParams(**options))
    dx = out["dx"]
    if min(dx.size, dy.size) == 0:
        return _copy(dx, add_to_output)
    direct = config_here(found, dx.dtype.name)
    if direct is not None:
        return convolve_directly(direct, dy, filter, dx, add_to_output)
    if is_small(found, dx.dtype.name):
        return _multiply_small(found, dy, filter, dx, add_to_output)
    own = supported(dy.dtype.name)
    if own and found.is_pointwise:
        return _multiply(found, dy, filter, dx, add_to_output, workspace)
    if workspace_bytes(found, dx.dtype.name) is not None:
        return gather(found, dy, filter, dx, add_to_output, workspace)
    columns = workspace.view(dtype_info(dtype_info(dx.dtype.name).accumulate).numpy)
    multiply = _multiply(found, dy, filter, columns, None) if own else _multiply_by_blas(found, dy, filter, columns)
    fold = _fold(found, columns, dx, add_to_output)

    def run() -> None:
        multiply()
        fold()

    return run


def _copy(dx: Any, addend: Any) -> Bound:
    if addend is None:
        return lambda: dx.fill(0)
    return lambda: namespace(dx).copyto(dx, addend)


def _transposed_bytes(found: ConvGeometry, dtype: str) -> int:
    if found.channels_last:
        return 0
    pixels, groups = prod(found.out_size), found.groups
    size = (found.channels // groups, found.batch * pixels, found.out_channels // groups)
    return transposed_bytes(dtype, size, pixels, groups)


def _multiply(found: ConvGeometry, dy: Any, weight: Any, d: Any, addend: Any, workspace: Any = None) -> Bound:
    """Multiply filter and dy to (C taps, N P), for channels_last (N P, taps C); with dx as d, to dx.

    workspace: buffer for the transposed dy.
    """
    pixels, taps = prod(found.out_size), prod(found.kernel)
    out_each, each = found.out_channels // found.groups, found.channels // found.groups * taps
    if found.channels_last:
        rows = found.batch * pixels
        a = Matrix(dy, found.out_channels, group=out_each, along=True)
        b = Matrix(weight, each, group=out_each * each)
        target = Matrix(d, found.groups * each, group=each)
        return product(a, b, target, (rows, each, out_each), groups=found.groups, addend=addend)
    image = found.out_channels * pixels
    a = Matrix(weight, each, group=out_each * each)
    b = Matrix(dy, pixels, image=image, post=pixels, group=out_each * pixels)
    target = Matrix(d, pixels, image=found.groups * each * pixels, post=pixels, group=each * pixels)
    size = (each, found.batch * pixels, out_each)
    if workspace is not None and _transposed_bytes(found, dy.dtype.name):
        turned = product_of_images(a, b, target, size, groups=found.groups, addend=addend, workspace=workspace)
        if turned is not None:
            return turned
    return product(a, b, target, size, groups=found.groups, addend=addend)


def _multiply_by_blas(found: ConvGeometry, dy: Any, weight: Any, columns: Any) -> Bound:
    """Like `_multiply`, by the BLAS."""
    xp = namespace(dy)
    wide, groups = columns.dtype, found.groups
    out_each = found.out_channels // groups
    shape = (groups, out_each, -1)

    def run() -> None:
        given, matrix = dy.astype(wide, copy=False), weight.astype(wide, copy=False).reshape(shape)
        if found.channels_last:
            rows = given.reshape(-1, groups, out_each).transpose(1, 0, 2)
            result = columns.reshape(rows.shape[1], groups, -1)
            result[...] = xp.matmul(rows, matrix).transpose(1, 0, 2)
        else:
            images = given.reshape(found.batch, groups, out_each, -1)
            result = columns.reshape(found.batch, groups, -1, images.shape[3])
            result[...] = xp.matmul(matrix.transpose(0, 2, 1), images)

    return run


def _strides(found: ConvGeometry) -> Any:
    """Strides of the columns, (N, groups, C / groups, taps, P) or, channels_last, (N, P, groups, taps, C / groups)."""
    pixels, taps, each = prod(found.out_size), prod(found.kernel), found.channels // found.groups
    if found.channels_last:
        pixel = found.channels * taps
        return np.array((pixels * pixel, taps * each, 1, each, pixel), _STRIDES)
    return np.array((found.channels * taps * pixels, each * taps * pixels, taps * pixels, pixels, 1), _STRIDES)


def _three(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    return (fill,) * (AXES - len(values)) + tuple(values)


def _axes(found: ConvGeometry) -> Any:
    """`Axes` struct of the kernels."""
    axes = np.zeros((), _AXES)
    axes["kernel"], axes["out"] = _three(found.kernel, 1), _three(found.out_size, 1)
    axes["padding"], axes["dilation"] = _three(found.padding, 0), _three(found.dilation, 1)
    for axis, (size, stride) in enumerate(zip(_three(found.size, 1), _three(found.strides, 1), strict=True)):
        axes["size"][axis], axes["stride"][axis] = divisor(size), divisor(stride)
        dilation = int(axes["dilation"][axis])
        axes["step"][axis] = stride // gcd(stride, dilation)
        axes["move"][axis] = dilation // gcd(stride, dilation)
    return axes


def _fold(found: ConvGeometry, columns: Any, dx: Any, addend: Any) -> Bound:
    function = SOURCE.function(_fold_name(dx.dtype.name, found.channels_last))
    grid = (min(-(-dx.size // THREADS), _FOLD_BLOCKS * multiprocessors()),)
    each = divisor(found.channels // found.groups)
    numbers = (np.uint32(dx.size), _axes(found), _strides(found), divisor(found.channels), each)
    arguments = (columns, addend, dx, *numbers)
    return lambda: function(grid, (THREADS,), arguments)


def products(found: ConvGeometry) -> int:
    """Multiply-adds, without those of taps that reach beyond dy."""
    total = found.batch * found.out_channels * (found.channels // found.groups)
    for axis in zip(
        found.size, found.out_size, found.kernel, found.strides, found.padding, found.dilation, strict=True
    ):
        size, out, kernel, stride, padding, dilation = axis
        moved = (padding - tap * dilation for tap in range(kernel))
        total *= sum(max(0, min(out, (size - 1 + at) // stride + 1) - max(0, -(-at // stride))) for at in moved)
    return total


def is_small(found: ConvGeometry, dtype: str) -> bool:
    """Whether one launch without tensor cores is faster than others."""
    in_16_bits = dtype_info(dtype).itemsize == np.dtype(np.float16).itemsize
    elements = found.batch * found.channels * prod(found.size)
    work = products(found) + _ELEMENT_PRODUCTS * elements
    return work <= (_FEW_POINTWISE if found.is_pointwise else _FEW_16_BIT if in_16_bits else _FEW)


def _lanes(found: ConvGeometry, size: int) -> int:
    """Threads that share an element of dx: they fill the device, and their chains of sums are short."""
    lanes, outs = 1, found.out_channels // found.groups
    wanted = _LANE_THREADS * multiprocessors()
    while lanes < min(outs, THREADS) and (
        size * lanes < wanted or -(-outs // lanes) * prod(found.kernel) > _LONGEST_CHAIN
    ):
        lanes *= 2
    return lanes


def _multiply_small(found: ConvGeometry, dy: Any, weight: Any, dx: Any, addend: Any) -> Bound:
    """One launch without tensor cores."""
    pixels, taps, each = prod(found.out_size), prod(found.kernel), found.channels // found.groups
    outs, lanes = found.out_channels, _lanes(found, dx.size)
    first, last = (outs * pixels, pixels, 1, each * taps, taps, 1), (outs * pixels, 1, outs, taps * each, 1, each)
    strides = last if found.channels_last else first
    factors = np.array((*strides, outs // found.groups, lanes), _FACTORS)
    function = SOURCE.function(_multiply_name(dx.dtype.name, found.channels_last))
    numbers = (np.uint32(dx.size), _axes(found), factors, divisor(found.channels), divisor(each))
    arguments, grid = (dy, weight, addend, dx, *numbers), (-(-dx.size * lanes // THREADS),)
    return lambda: function(grid, (THREADS,), arguments)
