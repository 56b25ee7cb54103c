"""conv_data_grad on CUDA: one launch for most 1x1 convolutions, two for others, with a fused addend.

Columns and a fold are used if the tensor cores lack the dtype, or a tap reaches beyond shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.backend import namespace
from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shape, Shapes
from opgauge.ops._core.plans import announce
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch, in_turn
from opgauge.ops._cuda.blas import multiply_stacks
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops._cuda.gemm.launch import multiply
from opgauge.ops._cuda.gemm.problem import SPLITS, TRANSPOSE, GemmProblem, Matrix
from opgauge.ops._cuda.gemm.select import supported, workspace_bytes
from opgauge.ops._cuda.source import CudaSource, Gpu, current_gpu, multiprocessors
from opgauge.ops._cuda.struct import DIVISOR, divisor, pack
from opgauge.ops._cuda.vectors import whole_vector
from opgauge.ops.conv_data_grad.cuda_depthwise import PIXELS, STRIDES, TAPS, DepthwiseConfig, depthwise_config
from opgauge.ops.conv_data_grad.cuda_direct import DirectConfig, convolve_directly, direct_config
from opgauge.ops.conv_data_grad.cuda_gather import gather, gather_layout, has_few_blocks
from opgauge.ops.conv_data_grad.cuda_small import (
    FEW_OUTS,
    IN_FLIGHT,
    THREADS,
    SmallConfig,
    replaces_direct,
    replaces_product,
    small_config,
)
from opgauge.ops.conv_data_grad.gather_layout import GatherLayout
from opgauge.ops.conv_data_grad.op import ConvDataGradParams, ConvGeometry, geometry, three
from opgauge.ops.conv_data_grad.patches import PatchLayout, convolve_patches, is_aligned, patch_layout

AXES = 3
"""Number of spatial axes."""
IDLE, FEWEST_SPLITS, MOST_PARTIAL_BYTES = 4, 3, 4 << 20
LONG = {"float32": 512, "float16": 1536, "bfloat16": 1536}
"""A product whose tiles occupy at most a fourth of the device, of at least this depth, is divided among blocks, if
partial sums of at least three fit these bytes: on an H200 1.2 to 4.5 times as fast."""
_FOLD_BLOCKS = 16
"""Maximum blocks per multiprocessor that fold columns into dx: more shorten the last wave, each has a cost."""
_AXES = np.dtype(
    [(name, np.int32, (AXES,)) for name in ("kernel", "out", "padding", "move")]
    + [(name, DIVISOR, (AXES,)) for name in ("size", "stride", "dilation", "step")]
)
"""`Axes` of kernels.cu: the shape of the convolution, by spatial axis; see `Reach` there for step and move."""
_COLUMNS = np.dtype([(name, np.int64) for name in ("image", "group", "channel", "tap", "pixel")])
"""`Columns` of kernels.cu: strides of the columns, in elements."""
_FACTORS = np.dtype(
    [(name, np.int64) for name in ("dy_image", "dy_out", "dy_pixel", "filter_out", "filter_inner", "filter_tap")]
    + [("outs", np.int32), ("lanes", np.int32)]
)
"""`Factors` of kernels.cu: strides of dy and of the filter in elements. outs: output channels of a group."""


def _fold_name(dtype: str, last: bool) -> str:  # noqa: FBT001
    info = dtype_info(dtype)
    return f"fold<{info.ctype}, {dtype_info(info.accumulate).ctype}, {str(last).lower()}>"


def _multiply_name(dtype: str, last: bool) -> str:  # noqa: FBT001
    return f"multiply<{dtype_info(dtype).ctype}, {str(last).lower()}>"


def _depthwise_name(dtype: str, vector: int, taps: int, stride: int) -> str:
    return f"depthwise<{dtype_info(dtype).ctype}, {vector}, {taps}, {stride}>"


def _depthwise_names(dtype: str) -> Iterator[str]:
    vectors = (1, 16 // dtype_info(dtype).itemsize)
    return (_depthwise_name(dtype, *numbers) for numbers in product(vectors, TAPS, STRIDES))


SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    (
        *(name(dtype, last) for name in (_fold_name, _multiply_name) for dtype in FLOATS for last in (False, True)),
        *(name for dtype in FLOATS for name in _depthwise_names(dtype)),
    ),
    constants={"PIXELS": PIXELS, "IN_FLIGHT": IN_FLIGHT, "FEW_OUTS": FEW_OUTS},
    structs={"Axes": _AXES, "Columns": _COLUMNS, "Factors": _FACTORS},
)
"""Declared instances of kernels.cu."""


class ColumnsConfig(NamedTuple):
    """Columns that are folded into dx: a product, or None for the BLAS, and bytes of the columns."""

    product: GemmProblem | None
    workspace_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"columns by {'a product' if self.product else 'the BLAS'}, folded: {self.reason}"


ConvConfig = DepthwiseConfig | DirectConfig | SmallConfig | GemmProblem | PatchLayout | GatherLayout | ColumnsConfig


def plan(found: ConvGeometry, dtype: str, gpu: Gpu, *, added: bool = False, aligned: bool = True) -> ConvConfig:
    """The kernels for a convolution that is not empty, on `gpu`. added: there is an addend.

    One launch for small groups or few products; one product for 1x1; taps that read patches of dy, or gather it; else
    columns. aligned: 16-byte vectors can have the arrays' addresses, as is assumed before they are known.
    """
    depthwise = depthwise_config(found, dtype, gpu)
    if depthwise is not None:
        return depthwise
    small, direct = small_config(found, gpu), direct_config(found, dtype, gpu)
    if direct is not None:
        return small if replaces_direct(small, direct, gpu) else direct
    if replaces_product(small, dtype):
        return small
    if supported(dtype, gpu) and found.is_pointwise:
        return _split(_product(found, dtype, dtype, added=added), gpu)
    aligned = aligned or not found.channels_last
    patches, any_addresses = patch_layout(found, dtype, gpu) if aligned else None, _gathered(found, dtype, gpu)
    if patches is not None:
        return replace(patches, workspace_bytes=max(any_addresses.workspace_bytes, sum(patches.packed_bytes)))
    return any_addresses


def _gathered(found: ConvGeometry, dtype: str, gpu: Gpu) -> GatherLayout | ColumnsConfig:
    """The kernels that suit any filter and addresses."""
    own, wide = supported(dtype, gpu), dtype_info(dtype).accumulate
    columns = found.channels * prod(found.kernel) * found.batch * prod(found.out_size) * dtype_info(wide).itemsize
    layout, product = gather_layout(found, dtype, gpu), _product(found, dtype, wide) if own else None
    if layout is not None and not (product and has_few_blocks(layout, product, columns, gpu)):
        return layout
    reason = "few blocks would gather" if layout else "taps reach beyond shared memory"
    return ColumnsConfig(product, columns, reason if product else "tensor cores lack the dtype")


def _geometry(x: Shape, weight: Shape, params: ConvDataGradParams) -> ConvGeometry:
    """The convolution; of one pixel and one tap, for which both layouts are the same, as channels last: whole rows."""
    found = geometry(x, weight, params)
    return replace(found, channels_last=True) if found.is_pointwise and prod(found.size) == 1 else found


def _workspace(shapes: Shapes, params: ConvDataGradParams) -> int:
    """Bytes of: none for one launch; dy transposed for a product; dy and the filter repacked; else the columns."""
    found, gpu = _geometry(shapes.inputs["x_like"].shape, shapes.inputs["filter"].shape, params), current_gpu()
    config = plan(found, shapes.outputs["dx"].dtype, gpu)
    return workspace_bytes(config, gpu) if isinstance(config, GemmProblem) else config.workspace_bytes


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
    found = _geometry(x_like.shape, filter.shape, ConvDataGradParams(**options))
    dx = out["dx"]
    if min(dx.size, dy.size) == 0:
        return _copy(dx, add_to_output)
    aligned = is_aligned(dy, filter, dx, add_to_output)
    config = plan(found, dx.dtype.name, current_gpu(), added=add_to_output is not None, aligned=aligned)
    if not isinstance(config, GemmProblem):
        announce(config)
    if isinstance(config, DepthwiseConfig | DirectConfig | SmallConfig):
        return _in_one_launch(config, dy, filter, dx, add_to_output)
    if isinstance(config, PatchLayout):
        return convolve_patches(config, dy, filter, dx, add_to_output, workspace)
    if isinstance(config, GatherLayout):
        return gather(config, dy, filter, dx, add_to_output, workspace)
    if isinstance(config, GemmProblem):
        return multiply(config, *_factors(found, dy, filter), dx, add_to_output, workspace)
    return _by_columns(found, config.product, dy, filter, dx, add_to_output, workspace)


def _copy(dx: Any, addend: Any) -> Bound:
    if addend is None:
        return bind_fill(dx, 0)
    return lambda: namespace(dx).copyto(dx, addend)


def _product(found: ConvGeometry, dtype: str, result: str, *, added: bool = False) -> GemmProblem:
    """Product of filter and dy to (C taps, N P), for channels_last (N P, taps C); a single tap is dx itself."""
    pixels, taps, groups = prod(found.out_size), prod(found.kernel), found.groups
    outs, each = found.out_channels // groups, found.channels // groups * taps
    weight = Matrix(each, group=outs * each)
    if found.channels_last:
        dy, d = Matrix(found.out_channels, group=outs, k_major=True), Matrix(groups * each, group=each)
        return GemmProblem(dtype, result, (found.batch * pixels, each, outs), dy, weight, d, groups, added)
    dy = Matrix(pixels, image=found.out_channels * pixels, post=pixels, group=outs * pixels)
    d = Matrix(pixels, image=groups * each * pixels, post=pixels, group=each * pixels)
    workspace = TRANSPOSE if found.is_pointwise else ""
    return GemmProblem(
        dtype, result, (each, found.batch * pixels, outs), weight, dy, d, groups, added, workspace=workspace
    )


def _split(problem: GemmProblem, gpu: Gpu) -> GemmProblem:
    """The problem, with its depth divided among blocks where tiles are few and the depth is long."""
    elements = max(problem.groups * problem.size[0] * problem.size[1], 1)
    most = min(problem.most_splits, MOST_PARTIAL_BYTES // (4 * elements))
    if problem.tiles > gpu.multiprocessors // IDLE or problem.size[2] < LONG[problem.dtype] or most < FEWEST_SPLITS:
        return problem
    return replace(problem, workspace=SPLITS, most_splits=most)


def _factors(found: ConvGeometry, dy: Any, weight: Any) -> tuple[Any, Any]:
    """Arrays of a and b of `_product`."""
    return (dy, weight) if found.channels_last else (weight, dy)


def _by_columns(
    found: ConvGeometry, problem: GemmProblem | None, dy: Any, weight: Any, dx: Any, addend: Any, workspace: Any
) -> Bound:
    """Two launches: a product to columns, which are folded into dx."""
    columns = workspace.view(accumulator_info(dx.dtype.name).numpy)
    if problem is None:
        first = _multiply_by_blas(found, dy, weight, columns)
    else:
        first = multiply(problem, *_factors(found, dy, weight), columns)
    return in_turn(first, _fold(found, columns, dx, addend))


def _multiply_by_blas(found: ConvGeometry, dy: Any, weight: Any, columns: Any) -> Bound:
    """Like `_product`, by the BLAS."""
    groups, batch = found.groups, found.batch
    each, pixels = found.out_channels // groups, prod(found.out_size)
    matrix = weight.reshape(1, groups, each, -1)
    if found.channels_last:
        rows, result = (array.reshape(1, batch * pixels, groups, -1).swapaxes(1, 2) for array in (dy, columns))
        return multiply_stacks(rows, matrix, result)
    images, result = (array.reshape(batch, groups, -1, pixels) for array in (dy, columns))
    return multiply_stacks(matrix.swapaxes(2, 3), images, result)


def _columns(found: ConvGeometry) -> Any:
    """`Columns` of (N, groups, C / groups, taps, P) or, channels_last, (N, P, groups, taps, C / groups)."""
    pixels, taps, each = prod(found.out_size), prod(found.kernel), found.channels // found.groups
    if found.channels_last:
        row = found.channels * taps
        return pack(_COLUMNS, {"image": pixels * row, "group": taps * each, "channel": 1, "tap": each, "pixel": row})
    channel = taps * pixels
    strides = {"image": found.channels * channel, "group": each * channel, "channel": channel}
    return pack(_COLUMNS, {**strides, "tap": pixels, "pixel": 1})


def _axes(found: ConvGeometry) -> Any:
    """`Axes` struct of the kernels."""
    strides, dilations = three(found.strides, 1), three(found.dilation, 1)
    common = [gcd(stride, dilation) for stride, dilation in zip(strides, dilations, strict=True)]
    numbers = {
        "kernel": three(found.kernel, 1),
        "out": three(found.out_size, 1),
        "padding": three(found.padding, 0),
        "move": [dilation // each for dilation, each in zip(dilations, common, strict=True)],
    }
    divisors = {
        "size": three(found.size, 1),
        "stride": strides,
        "dilation": dilations,
        "step": [stride // each for stride, each in zip(strides, common, strict=True)],
    }
    return pack(_AXES, {**numbers, **divisors})


def _fold(found: ConvGeometry, columns: Any, dx: Any, addend: Any) -> Bound:
    name = _fold_name(dx.dtype.name, found.channels_last)
    grid = (min(-(-dx.size // THREADS), _FOLD_BLOCKS * multiprocessors()),)
    each = divisor(found.channels // found.groups)
    numbers = (np.uint32(dx.size), _axes(found), _columns(found), divisor(found.channels), each)
    return bind_launch(SOURCE, name, grid, (THREADS,), (columns, addend, dx, *numbers))


def _in_one_launch(
    config: DepthwiseConfig | DirectConfig | SmallConfig, dy: Any, weight: Any, dx: Any, addend: Any
) -> Bound:
    """One launch without tensor cores."""
    if isinstance(config, DepthwiseConfig):
        return _multiply_depthwise(config, dy, weight, dx, addend)
    if isinstance(config, DirectConfig):
        return convolve_directly(config, dy, weight, dx, addend)
    return _multiply_small(config, dy, weight, dx, addend)


def _multiply_small(config: SmallConfig, dy: Any, weight: Any, dx: Any, addend: Any) -> Bound:
    """Threads that share elements of dx."""
    found, lanes = config.found, config.lanes
    pixels, taps, each = prod(found.out_size), prod(found.kernel), found.channels // found.groups
    outs = found.out_channels
    if found.channels_last:
        strides = {"dy_image": outs * pixels, "dy_out": 1, "dy_pixel": outs}
        strides |= {"filter_out": taps * each, "filter_inner": 1, "filter_tap": each}
    else:
        strides = {"dy_image": outs * pixels, "dy_out": pixels, "dy_pixel": 1}
        strides |= {"filter_out": each * taps, "filter_inner": taps, "filter_tap": 1}
    factors = pack(_FACTORS, {**strides, "outs": outs // found.groups, "lanes": lanes})
    name, grid = _multiply_name(dx.dtype.name, found.channels_last), (-(-dx.size * lanes // THREADS),)
    numbers = (np.uint32(dx.size), _axes(found), factors, divisor(found.channels), divisor(each))
    return bind_launch(SOURCE, name, grid, (THREADS,), (dy, weight, addend, dx, *numbers))


def _multiply_depthwise(config: DepthwiseConfig, dy: Any, weight: Any, dx: Any, addend: Any) -> Bound:
    """Threads that compute vectors of channels."""
    found = config.found
    if whole_vector(dx, dy, addend) < config.vector:
        config = config.unaligned
    name = _depthwise_name(dx.dtype.name, config.vector, found.kernel[-1], found.strides[-1])
    divisors = config.across, config.vectors, prod(found.kernel)
    numbers = (np.uint32(config.rows), np.uint32(found.channels), _axes(found), *map(divisor, divisors))
    arguments = (dy, weight, addend, dx, *numbers)
    return bind_launch(SOURCE, name, config.grid, (THREADS,), arguments, shared=config.shared_bytes)
