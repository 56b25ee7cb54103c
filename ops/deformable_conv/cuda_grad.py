"""deformable_conv_grad on CUDA: product for the columns' gradient, one pass over it, product for the filter's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from opgauge.ops._core.backend import namespace
from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shapes
from opgauge.ops._core.plans import announce
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.blas import multiply_stacks
from opgauge.ops._cuda.fill import bind_fill
from opgauge.ops._cuda.gemm.launch import multiply
from opgauge.ops._cuda.gemm.problem import SPLITS, GemmProblem, Matrix
from opgauge.ops._cuda.gemm.select import supported, workspace_bytes
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.source import Gpu, current_gpu, flag, multiprocessors
from opgauge.ops._cuda.struct import address, divisor, pack
from opgauge.ops.deformable_conv.cuda import FILTER_ROWS, SOURCE, THREADS, conv_struct, ctype, grid_of, product
from opgauge.ops.deformable_conv.cuda_spread import SpreadLayout, backward, spread_layout
from opgauge.ops.deformable_conv.op import DeformableConvGradParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

WARPS = THREADS // WARP
PARTS = 3
ALIGNMENT = 256
"""Warps per block, gradients of a sample position and mask, and alignment of workspace parts in bytes."""
VECTOR = 4
"""Channels that one addition to the gradient of x covers, if a matrix product gives the columns' gradient."""
FEWEST_PIXELS, MOST_PIXELS = 2048, 256 * THREADS
"""Pixels of a split of the filter's gradient: fewer do not pay, and longer chains of sums lose accuracy."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Workspace: columns' gradient, sums over channels, 16-bit columns, gradient of x, splits of the filter's."""

    found: SamplingGeometry
    dtype: str
    gpu: Gpu

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each part, aligned."""
        found, info = self.found, dtype_info(self.dtype)
        wide, in_16_bits = dtype_info(info.accumulate).itemsize, info.accumulate != self.dtype
        chunks = grid_of(found, found.batch)[0][2] // found.deformable_groups
        sums = PARTS * chunks * found.batch * found.deformable_groups * found.taps * found.pixels
        splits = _filter_splits(found) if few(found) else found.batch * (not supported(self.dtype, self.gpu))
        directly = found.out_channels * found.depth * splits * wide
        exact = (
            found.samples * wide,
            sums * wide,
            found.samples * info.itemsize * in_16_bits,
            found.batch * found.channels * found.size[0] * found.size[1] * wide * in_16_bits,
            max(workspace_bytes(_filter_product(found, self.dtype), self.gpu), directly),
        )
        return tuple(-(-size // ALIGNMENT) * ALIGNMENT for size in exact)

    def cut(self, workspace: Any) -> list[Any]:
        """The parts of the workspace, as bytes."""
        ends = accumulate(self.sizes(), initial=0)
        return [workspace[start:end] for start, end in pairwise(ends)]


def few(found: SamplingGeometry) -> bool:
    """Whether groups are so small that tiles of a matrix product, and vectors of channels, would be mostly empty."""
    return found.out_channels // found.groups <= FILTER_ROWS and found.channels // found.groups < VECTOR


def _filter_splits(found: SamplingGeometry) -> int:
    """Blocks that share the pixels of a row of the columns: they fill the device, and each has enough of them."""
    rows, pixels = found.channels * found.taps, found.batch * found.pixels
    return max(-(-pixels // MOST_PIXELS), min(4 * multiprocessors() // rows, pixels // FEWEST_PIXELS), 1)


def _workspace(shapes: Shapes, params: DeformableConvGradParams) -> int:
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    return sum(_Buffers(found, shapes.inputs["x"].dtype, current_gpu()).sizes())


def plan_grad(found: SamplingGeometry, dtype: str, gpu: Gpu) -> SpreadLayout | None:
    """The configuration with channels last on `gpu`; None if columns are faster, or these kernels do not support it."""
    return None if few(found) else spread_layout(found, dtype, gpu)


def _workspace_channels_last(shapes: Shapes, params: DeformableConvGradParams) -> int:
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    made = plan_grad(found, shapes.inputs["x"].dtype, current_gpu())
    return _workspace(shapes, params) if made is None else sum(made.sizes)


def _column_grad(found: SamplingGeometry, filter: Any, out_grad: Any, to: Any) -> Bound:
    """Product filter^T out_grad, (N, C taps, P), in the accumulating dtype."""
    each, pixels, rows = found.out_channels // found.groups, found.pixels, found.depth
    if supported(filter.dtype.name, current_gpu()):
        a = Matrix(rows, group=each * rows)
        b, d = _by_image(found, found.out_channels), _by_image(found, found.channels * found.taps)
        size = (rows, found.batch * pixels, each)
        problem = GemmProblem(filter.dtype.name, to.dtype.name, size, a, b, d, found.groups)
        return multiply(problem, filter, out_grad, to)
    target = to[: found.samples].reshape(found.batch, found.groups, rows, pixels)

    matrix = filter.reshape(1, found.groups, each, rows).swapaxes(2, 3)
    return multiply_stacks(matrix, out_grad.reshape(found.batch, found.groups, each, pixels), target)


def _by_image(found: SamplingGeometry, channels: int, *, k_major: bool = False) -> Matrix:
    """(N, channels, P) as a matrix of a group's channels and all pixels."""
    pixels, each = found.pixels, channels // found.groups
    return Matrix(pixels, image=channels * pixels, post=pixels, group=each * pixels, k_major=k_major)


def _filter_product(found: SamplingGeometry, dtype: str) -> GemmProblem:
    """Product out_grad columns^T, summed over all images."""
    each, rows = found.out_channels // found.groups, found.depth
    a = _by_image(found, found.out_channels, k_major=True)
    b = _by_image(found, found.channels * found.taps, k_major=True)
    size, d = (each, rows, found.batch * found.pixels), Matrix(rows, group=each * rows)
    return GemmProblem(dtype, dtype, size, a, b, d, found.groups, workspace=SPLITS)


def _filter_grad_directly(found: SamplingGeometry, columns: Any, out_grad: Any, to: Any, workspace: Any) -> Bound:
    """The same sum without a matrix product: two launches."""
    depth, pixels, outs = found.depth, found.batch * found.pixels, found.out_channels
    rows, splits, kind = outs // found.groups, _filter_splits(found), ctype(to)
    share = -(-pixels // splits)
    sums = workspace.view(accumulator_info(to.dtype.name).numpy)
    numbers = (*map(np.int32, (pixels, share, outs, rows)), divisor(depth), divisor(found.pixels))
    grid = (found.channels * found.taps, splits, -(-rows // FILTER_ROWS))
    name, arguments = f"filter_grad<{kind}, {kind}, {FILTER_ROWS}>", (out_grad, columns, sums, *numbers)
    multiply_all, add = bind_launch(SOURCE, name, grid, (THREADS,), arguments), _add_splits(sums, to, splits)

    def run() -> None:
        multiply_all()
        add()

    return run


def _filter_grad(found: SamplingGeometry, columns: Any, out_grad: Any, to: Any, workspace: Any) -> Bound:
    """Product out_grad columns^T, summed over all images."""
    if few(found):
        return _filter_grad_directly(found, columns, out_grad, to, workspace)
    each, pixels, rows = found.out_channels // found.groups, found.pixels, found.depth
    if supported(to.dtype.name, current_gpu()):
        return multiply(_filter_product(found, to.dtype.name), out_grad, columns, to, None, workspace)
    wide = accumulator_info(to.dtype.name).numpy
    sums = workspace.view(wide)[: found.batch * to.size].reshape(found.batch, found.groups, each, rows)

    grads = out_grad.reshape(found.batch, found.groups, each, pixels)
    samples = columns[: found.samples].reshape(found.batch, found.groups, rows, pixels).swapaxes(2, 3)
    multiply_all, add = multiply_stacks(grads, samples, sums), _add_splits(sums, to, found.batch)

    def run() -> None:
        multiply_all()
        add()

    return run


def _add_splits(sums: Any, to: Any, splits: int) -> Bound:
    grid, arguments = (-(-to.size // THREADS),), (sums, None, to, np.int64(to.size), np.int32(splits))
    return bind_launch(SOURCE, f"add_splits<{ctype(to)}>", grid, (THREADS,), arguments)


def _fold(
    found: SamplingGeometry,
    arrays: tuple[Any, Any, Any],
    buffers: tuple[Any, Any, Any, Any],
    factors: tuple[Any, Any] | None,
) -> tuple[Bound, int]:
    """One pass over the columns' gradient, or its `factors`; also the number of chunks in `partial`."""
    x = arrays[0]
    gradient, columns, _, _ = buffers
    grid, chunk = grid_of(found, found.batch)
    to = gradient if columns is None else columns
    name = f"fold<{ctype(x)}, {ctype(to)}, {flag(factors)}>"
    first, second = map(address, factors or (None, None))
    outs, groups = found.out_channels, found.groups
    sizes = {"outs": outs, "rows": outs // groups, "channels": found.channels // groups}
    packed = pack(product(ctype(x)), {"out_grad": first, "filter": second, **sizes})
    arguments = (*arrays, *buffers, np.int32(found.batch), np.int32(chunk), conv_struct(found), packed)
    return bind_launch(SOURCE, name, grid, (THREADS,), arguments), grid[2] // found.deformable_groups


def _gather(found: SamplingGeometry, partial: Any, chunks: int, out: dict[str, Any], like: Any) -> Bound:
    size = found.batch * found.deformable_groups * found.taps * found.pixels
    targets = (out.get("offset_grad"), out.get("mask_grad"))
    arguments = (partial, *targets, np.int32(size), np.int32(chunks), divisor(found.pixels))
    return bind_launch(SOURCE, f"gather<{ctype(like)}>", (-(-size // THREADS),), (THREADS,), arguments)


def _x_grad_in_order(found: SamplingGeometry, arrays: tuple[Any, Any, Any], gradient: Any, to: Any) -> Bound:
    x, offset, mask = arrays
    planes = found.batch * found.channels
    arguments = (offset, mask, gradient, to, np.int32(planes), conv_struct(found))
    return bind_launch(SOURCE, f"fold_in_order<{ctype(x)}>", (-(-planes // WARPS),), (THREADS,), arguments)


def _sampled(
    found: SamplingGeometry,
    arrays: tuple[Any, Any, Any],
    buffers: tuple[Any, Any, Any, Any],
    factors: tuple[Any, Any] | None,
    out: dict[str, Any],
) -> list[Bound]:
    """The pass over the columns' gradient, and the sums over chunks of channels that follow it."""
    if all(buffer is None for buffer in buffers[1:]):
        return []
    fold, chunks = _fold(found, arrays, buffers, factors)
    return [fold] if buffers[2] is None else [fold, _gather(found, buffers[2], chunks, out, arrays[0])]


def _backward(*, in_order: bool) -> Callable[..., Bound]:
    def backward_by_columns(
        *,
        x: Any,
        offset: Any,
        filter: Any,
        out_grad: Any,
        out: dict[str, Any],
        workspace: Any,
        need_x: bool,
        need_offset: bool,
        need_filter: bool,
        need_mask: bool,
        mask: Any = None,
        **options: Any,
    ) -> Bound:
        """Product, one pass over its result, sums over channels, product: four launches, more for 16-bit types."""
        del need_x, need_offset, need_filter, need_mask
        found = geometry(x.shape, filter.shape, DeformableConvGradParams(**options))
        steps: list[Bound] = []
        if x.size == 0 or filter.size == 0:
            return _run([bind_fill(gradient, 0) for gradient in out.values()])
        wide = accumulator_info(x.dtype.name).numpy
        parts = _Buffers(found, x.dtype.name, current_gpu()).cut(workspace)
        gradient, sums = parts[0].view(wide), parts[1].view(wide)
        columns = gradient if x.dtype == wide else parts[2].view(x.dtype)
        arrays, x_grad = (x, offset, mask), None
        if "x_grad" in out:
            x_grad = out["x_grad"] if x.dtype == wide else parts[3].view(wide)[: x.size].reshape(x.shape)
            steps.append(partial(x_grad.fill, 0))
        factors = (out_grad, filter) if few(found) and not in_order else None
        if factors is None:
            steps.append(_column_grad(found, filter, out_grad, gradient))
        if in_order and x_grad is not None:
            steps.append(_x_grad_in_order(found, arrays, gradient, x_grad))
        wanted = (
            columns if "filter_grad" in out else None,
            sums if {"offset_grad", "mask_grad"} & set(out) else None,
            None if in_order else x_grad,
        )
        steps += _sampled(found, arrays, (gradient, *wanted), factors, out)
        if "filter_grad" in out:
            steps.append(_filter_grad(found, columns, out_grad, out["filter_grad"], parts[4]))
        if x_grad is not None and x.dtype != wide:
            steps.append(partial(namespace(x).copyto, out["x_grad"], x_grad))
        return _run(steps)

    return backward_by_columns


def _run(steps: list[Bound]) -> Bound:
    def run() -> None:
        for step in steps:
            step()

    return run


_IN_ANY_ORDER = _backward(in_order=False)


@kernel(
    "deformable_conv_grad",
    "optimized",
    "cuda",
    FLOATS,
    prepare=True,
    workspace=_workspace_channels_last,
    deterministic=False,
    note="adds up the gradient of x by atomics: its last bits change from run to run",
)
def channels_last(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out_grad: Any,
    out: dict[str, Any],
    workspace: Any,
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Five launches and a few more for splits; falls back to columns for unsupported channels."""
    params = DeformableConvGradParams(**options)
    made = plan_grad(geometry(x.shape, filter.shape, params), x.dtype.name, current_gpu())
    if made is not None:
        announce(made)
        return _run(backward(made, (x, offset, mask, filter, out_grad), out, workspace))
    return _IN_ANY_ORDER(
        x=x, offset=offset, filter=filter, out_grad=out_grad, out=out, workspace=workspace, mask=mask, **options
    )


kernel("deformable_conv_grad", "deterministic", "cuda", FLOATS, prepare=True, workspace=_workspace)(
    _backward(in_order=True)
)
