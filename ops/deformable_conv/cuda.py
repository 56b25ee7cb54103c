"""deformable_conv on CUDA: columns of all images at once, then one product that writes (N, Co, Ho, Wo) in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opgauge.ops._core.backend import namespace
from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch, in_turn
from opgauge.ops._cuda.blas import multiply_stacks
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops._cuda.gemm.launch import multiply
from opgauge.ops._cuda.gemm.problem import EXACT, SPLITS, GemmProblem, Matrix
from opgauge.ops._cuda.gemm.select import supported, workspace_bytes
from opgauge.ops._cuda.source import CudaSource, current_gpu, flag, multiprocessors
from opgauge.ops._cuda.struct import DIVISOR, pack, pointer
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

THREADS = 256
CHANNELS = 32
"""Maximum channels of a thread that share one sample position."""
FEWEST = 4
ALIGNMENT = 256
"""Minimum channels per chunk, and alignment of workspace parts in bytes."""
FILTER_ROWS = 8
"""Output channels that a block of `filter_grad` sums."""
CONV = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("height", "width", "stride_h", "stride_w", "padding_h", "padding_w", "dilation_h", "dilation_w"),
            *("channels", "per_group", "taps"),
        )
    ]
    + [(name, DIVISOR) for name in ("pixels", "out_width", "kernel_width")]
)
"""`Conv` of the kernels. per_group: channels of a deformable group."""


def product(ctype: str) -> Any:
    """`Product<ctype>` of kernels.cu. outs, rows: output channels, and those of a group. channels: of a group."""
    return np.dtype(
        [
            *(("out_grad", pointer(f"const {ctype}")), ("filter", pointer(f"const {ctype}"))),
            *(("outs", np.int32), ("rows", np.int32), ("channels", DIVISOR), ("pad", "V4")),
        ]
    )


WITH_BLAS = ("float16", "float32", "float64")
LONG_CHAINS = "the library sums thousands of products in one chain: over twice the bound in one element of a million"
"""Dtypes of the BLAS, and the reason for its `relaxed`."""


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for name in FLOATS:
        ctype, wide = dtype_info(name).ctype, accumulator_info(name).ctype
        found += [f"unfold<{ctype}>", f"fold_in_order<{ctype}>", f"gather<{ctype}>"]
        found.append(f"add_splits<{ctype}>")
        for item in dict.fromkeys((ctype, wide)):
            found += [f"fold<{ctype}, {item}, {flag(direct)}>" for direct in (False, True)]
        found.append(f"filter_grad<{ctype}, {ctype}, {FILTER_ROWS}>")
    return tuple(found)


CTYPES = [dtype_info(name).ctype for name in FLOATS]
SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    _expressions(),
    structs={"Conv": CONV} | {f"Product<{each}>": product(each) for each in CTYPES},
)
"""C++ types of tensors, and the declared instances of kernels.cu."""


def ctype(array: Any) -> str:
    """C++ type of an array's elements."""
    return dtype_info(array.dtype.name).ctype


def conv_struct(found: SamplingGeometry) -> Any:
    """`Conv` struct of the kernels."""
    numbers = {
        "channels": found.channels,
        "per_group": found.channels // found.deformable_groups,
        "taps": found.taps,
        "pixels": found.pixels,
        "out_width": found.out_size[1],
        "kernel_width": found.kernel[1],
    }
    (numbers["height"], numbers["width"]), names = found.size, ("stride", "padding", "dilation")
    for name, values in zip(names, (found.strides, found.paddings, found.dilations), strict=True):
        numbers[f"{name}_h"], numbers[f"{name}_w"] = values
    return pack(CONV, numbers)


def grid_of(found: SamplingGeometry, images: int) -> tuple[tuple[int, int, int], int]:
    """Blocks by (pixels, taps, chunks of channels), and channels of a chunk: fewer where there is little work."""
    across = -(-images * found.pixels // THREADS)
    per_group, chunk = found.channels // found.deformable_groups, CHANNELS
    wanted = 8 * multiprocessors()
    while chunk > FEWEST and across * found.taps * found.deformable_groups * -(-per_group // chunk) < wanted:
        chunk //= 2
    return (across, found.taps, found.deformable_groups * -(-per_group // chunk)), chunk


def unfold(found: SamplingGeometry, x: Any, offset: Any, mask: Any, columns: Any) -> Bound:
    """Sample `len(x)` images into `columns`, (N, C, taps, P), by one launch."""
    images = x.shape[0]
    grid, chunk = grid_of(found, images)
    arguments = (x, offset, mask, columns, np.int32(images), np.int32(chunk), conv_struct(found))
    return bind_launch(SOURCE, f"unfold<{ctype(x)}>", grid, (THREADS,), arguments)


Multiply = Callable[[SamplingGeometry, Any, Any, Any, Any], Bound]
"""Product of (convolution, filter, columns, out, workspace)."""


def _columns_bytes(shapes: Shapes, params: DeformableConvParams) -> int:
    """One column buffer of all images, in the tensors' dtype."""
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    return found.samples * dtype_info(shapes.inputs["x"].dtype).itemsize


def split_bytes(shapes: Shapes, params: DeformableConvParams) -> int:
    """Bytes for the columns, and for a product that splits its depth among blocks."""
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    problem = columns_product(found, shapes.inputs["x"].dtype)
    return -(-_columns_bytes(shapes, params) // ALIGNMENT) * ALIGNMENT + workspace_bytes(problem, current_gpu())


def _image_bytes(shapes: Shapes, params: DeformableConvParams) -> int:
    return _columns_bytes(shapes, params) // max(shapes.inputs["x"].shape[0], 1)


def _by_blas(found: SamplingGeometry, filter: Any, columns: Any, out: Any, workspace: Any = None) -> Bound:
    """One strided-batched product over images and groups, straight into `out`."""
    del workspace
    xp = namespace(filter)
    matrix = filter.reshape(found.groups, found.out_channels // found.groups, -1)
    given = columns.reshape(-1, found.groups, matrix.shape[2], found.pixels)
    target = out.reshape(-1, found.groups, matrix.shape[1], found.pixels)
    if out.dtype in (np.float32, np.float64):
        return multiply_stacks(matrix[None], given, target)
    return lambda: xp.matmul(matrix, given, out=target)


def columns_product(found: SamplingGeometry, dtype: str, parts: int = EXACT) -> GemmProblem:
    """Product of the filter and columns of all images."""
    depth, each, pixels = found.depth, found.out_channels // found.groups, found.pixels
    a = Matrix(depth, group=each * depth, k_major=True)
    b = Matrix(pixels, image=found.channels * found.taps * pixels, post=pixels, group=depth * pixels)
    d = Matrix(pixels, image=found.out_channels * pixels, post=pixels, group=each * pixels)
    size = (each, found.batch * pixels, depth)
    return GemmProblem(dtype, dtype, size, a, b, d, found.groups, parts=parts, workspace=SPLITS)


def by_tensor_cores(parts: int) -> Multiply:
    """One product over all images by the project's own kernel."""

    def multiply_columns(found: SamplingGeometry, filter: Any, columns: Any, out: Any, workspace: Any) -> Bound:
        dtype = filter.dtype.name
        if not supported(dtype, current_gpu()):
            return _by_blas(found, filter, columns, out)
        return multiply(columns_product(found, dtype, parts), filter, columns, out, None, workspace)

    return multiply_columns


def unfold_then(multiply: Multiply) -> Callable[..., Bound]:
    """A forward kernel of two steps."""

    def forward(
        *,
        x: Any,
        offset: Any,
        filter: Any,
        out: dict[str, Any],
        workspace: Any,
        mask: Any = None,
        **options: Any,
    ) -> Bound:
        """Sample all images, then multiply: two launches."""
        found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
        if x.size == 0 or filter.size == 0:
            return bind_fill(out["out"], 0)
        columns = workspace[: found.samples * x.dtype.itemsize].view(x.dtype)
        rest = workspace[-(-columns.nbytes // ALIGNMENT) * ALIGNMENT :]
        first = unfold(found, x, offset, mask, columns)
        return in_turn(first, multiply(found, filter, columns, out["out"], rest))

    return forward


kernel(
    "deformable_conv",
    "batched_im2col",
    "cuda",
    WITH_BLAS,
    prepare=True,
    workspace=_columns_bytes,
    relaxed=4.0,
    note=LONG_CHAINS,
)(unfold_then(_by_blas))


@kernel(
    "deformable_conv",
    "per_image",
    "cuda",
    WITH_BLAS,
    prepare=True,
    workspace=_image_bytes,
    relaxed=4.0,
    note=LONG_CHAINS,
)
def per_image(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out: dict[str, Any],
    workspace: Any,
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Image by image, like upstream at the time of the design document: a launch and a product for each."""
    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    if x.size == 0 or filter.size == 0:
        return bind_fill(out["out"], 0)
    columns = workspace.view(x.dtype)
    steps = []
    for image in range(found.batch):
        part = slice(image, image + 1)
        weights = None if mask is None else mask[part]
        steps.append(unfold(found, x[part], offset[part], weights, columns))
        steps.append(_by_blas(found, filter, columns, out["out"][part]))

    def run() -> None:
        for step in steps:
            step()

    return run
