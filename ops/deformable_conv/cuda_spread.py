"""deformable_conv_grad on CUDA, channels last: 16-byte samples per pixel, and 16-byte additions to its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.gemm.launch import multiply
from opgauge.ops._cuda.gemm.problem import SPLITS, GemmProblem, Matrix
from opgauge.ops._cuda.gemm.select import supported, workspace_bytes
from opgauge.ops._cuda.source import CudaSource, Gpu
from opgauge.ops._cuda.struct import pack
from opgauge.ops.deformable_conv.cuda import ALIGNMENT, CONV, THREADS, conv_struct, ctype
from opgauge.ops.deformable_conv.cuda_fused import DTYPES, SHORT_HALVES
from opgauge.ops.deformable_conv.fused_layout import LANES, LARGEST_INDEX, LINES, TRANSPOSE_TILE, Channels, channels_of
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

_PLAN = np.dtype(
    [("conv", CONV), ("lines", LINES), ("out_lines", LINES)]
    + [
        (name, np.int32)
        for name in ("images", "rows", "pieces", "out_pieces", "group_channels", "group_depth", "width", "lanes")
    ]
)
"""`Plan` of spread.cu. lines, out_lines: of x and of the output's gradient; pieces, out_pieces: blocks that transpose
them. rows: output channels. group_channels, group_depth: channels of a group of the filter, in the tensor and stored.
width: channels of a deformable group as stored. lanes: per sample, 1 to 8."""
MOST_GROUPS = 2**16 - 1
"""Limit of the grid."""
SOURCE = CudaSource(
    __file__,
    "spread.cu",
    tuple(
        f"{name}<{dtype_info(item).ctype}>"
        for item in DTYPES
        for name in ("prepare_lines", "spread", "store_gradients")
    ),
    structs={"Conv": CONV, "Lines": LINES, "Plan": _PLAN},
)
"""Declared instances of spread.cu."""


@dataclass(frozen=True, slots=True)
class SpreadLayout:
    """Launch configuration; the columns' gradient is (pixels of all images, taps, channels as stored)."""

    found: SamplingGeometry
    dtype: str
    channels: Channels
    gpu: Gpu

    def __str__(self) -> str:
        return f"spread, {self.lanes} lanes a sample, grid {'x'.join(map(str, self.grid))} block {THREADS}"

    @property
    def itemsize(self) -> int:
        """Bytes of an element of x."""
        return dtype_info(self.dtype).itemsize

    @property
    def depth(self) -> int:
        """Channels of a line."""
        return self.found.groups * self.channels.depth

    @property
    def columns(self) -> int:
        """Pixels of all images."""
        return self.found.batch * self.found.pixels

    @property
    def lanes(self) -> int:
        """Lanes that share a sample."""
        vectors = self.depth // self.found.deformable_groups * self.itemsize // 16
        return min(LANES, 1 << (vectors - 1).bit_length())

    @property
    def pieces(self) -> int:
        """Blocks that transpose x."""
        return self.found.batch * _pieces(self.found.size[0] * self.found.size[1], self.depth)

    @property
    def out_pieces(self) -> int:
        """Blocks that transpose the gradient of the output."""
        return self.found.batch * _pieces(self.found.pixels, self.found.out_channels)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of `spread`."""
        return -(-self.columns * self.lanes // THREADS) * self.found.taps, self.found.deformable_groups

    @property
    def _lines(self) -> Matrix:
        """(pixels, taps, channels) as a matrix of a group's taps and channels."""
        depth = self.channels.depth
        return Matrix(self.found.taps * self.depth, image=self.depth, post=depth, group=depth)

    @property
    def column_product(self) -> GemmProblem:
        """Gradient of the output by the filter, (pixels, taps, channels), in float32."""
        each, length = self.found.out_channels // self.found.groups, self.found.taps * self.channels.depth
        a = Matrix(self.found.out_channels, group=each, k_major=True)
        b, size = Matrix(length, group=each * length), (self.columns, length, each)
        return GemmProblem(self.dtype, "float32", size, a, b, self._lines, self.found.groups)

    @property
    def filter_product(self) -> GemmProblem:
        """Gradient of the output by columns, summed over all pixels, (rows, taps, channels)."""
        each, length = self.found.out_channels // self.found.groups, self.found.taps * self.channels.depth
        a, d = Matrix(self.found.out_channels, group=each), Matrix(length, group=each * length)
        size = (each, length, self.columns)
        return GemmProblem(self.dtype, self.dtype, size, a, self._lines, d, self.found.groups, workspace=SPLITS)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of lines of x and the output's gradient, filter, gradients of it, x and columns, columns, splits."""
        found = self.found
        lines = found.batch * found.size[0] * found.size[1] * self.depth
        reordered = found.out_channels * found.taps * self.channels.depth * self.itemsize
        columns = self.columns * found.taps * self.depth
        exact = (
            *(lines * self.itemsize, self.columns * found.out_channels * self.itemsize, reordered, reordered),
            *(4 * lines, 4 * columns),
            *(columns * self.itemsize * (self.itemsize < np.dtype(np.float32).itemsize),),
            workspace_bytes(self.filter_product, self.gpu),
        )
        return tuple(-(-size // ALIGNMENT) * ALIGNMENT for size in exact)

    def struct(self) -> Any:
        """`Plan` struct of the kernels."""
        found, channels = self.found, self.channels
        outs, area = found.out_channels, found.size[0] * found.size[1]
        lines = {"area": area, "channels": found.channels, "segment": channels.segment, "depth": self.depth}
        out_lines = {"area": found.pixels, "channels": outs, "segment": outs, "depth": outs, "padded": outs}
        numbers = {
            "conv": conv_struct(found),
            "lines": pack(LINES, {**lines, "padded": channels.padded}),
            "out_lines": pack(LINES, out_lines),
            "images": found.batch,
            "rows": outs,
            "group_channels": found.channels // found.groups,
            "group_depth": channels.depth,
            "width": self.depth // found.deformable_groups,
            **{name: getattr(self, name) for name in ("pieces", "out_pieces", "lanes")},
        }
        return pack(_PLAN, numbers)


def _pieces(pixels: int, channels: int) -> int:
    return -(-pixels // TRANSPOSE_TILE[0]) * -(-channels // TRANSPOSE_TILE[1])


def spread_layout(found: SamplingGeometry, dtype: str, gpu: Gpu) -> SpreadLayout | None:
    """The configuration; None if these kernels do not support the convolution."""
    if dtype not in DTYPES or not supported(dtype, gpu) or found.samples == 0 or found.out_channels == 0:
        return None
    channels = channels_of(found, dtype_info(dtype).itemsize, SHORT_HALVES)
    if channels is None or found.deformable_groups > MOST_GROUPS:
        return None
    made = SpreadLayout(found, dtype, channels, gpu)
    blocks, length = made.pieces + made.out_pieces + found.out_channels, found.taps * channels.depth
    return made if max(made.grid[0], made.columns + THREADS, blocks, length) <= LARGEST_INDEX else None


def backward(made: SpreadLayout, arrays: tuple[Any, ...], out: dict[str, Any], workspace: Any) -> list[Bound]:
    """Launches for x, offset, mask, filter and the gradient of the output, in order."""
    x, offset, mask, weights, out_grad = arrays
    ends = accumulate(made.sizes, initial=0)
    parts = [workspace[start:end] for start, end in pairwise(ends)]
    lines, out_lines, reordered, reordered_grad = (part.view(x.dtype) for part in parts[:4])
    reordered, reordered_grad = reordered[: _count(made)], reordered_grad[: _count(made)]
    line_grad, gradient = parts[4], parts[5].view(np.float32)
    columns = gradient if x.dtype == np.float32 else parts[6].view(x.dtype)
    plan, rows = made.struct(), made.found.out_channels
    wanted = (
        columns if "filter_grad" in out else None,
        line_grad if "x_grad" in out else None,
        *(out.get("offset_grad"), out.get("mask_grad")),
    )
    ready = (x, out_grad, weights, lines, out_lines, reordered, wanted[1], plan)
    steps = [
        _launch("prepare_lines", x, (made.pieces + made.out_pieces + rows,), ready),
        multiply(made.column_product, out_lines, reordered, gradient),
        _launch("spread", x, made.grid, (lines, offset, mask, gradient, *wanted, plan)),
    ]
    if "filter_grad" in out:
        steps.append(multiply(made.filter_product, out_lines, columns, reordered_grad, None, parts[7]))
    if {"x_grad", "filter_grad"} & set(out):
        finish = (line_grad, reordered_grad, out.get("x_grad"), out.get("filter_grad"), plan)
        steps.append(_launch("store_gradients", x, (made.pieces + rows,), finish))
    return steps


def _count(made: SpreadLayout) -> int:
    """Elements of the filter as stored."""
    return made.found.out_channels * made.found.taps * made.channels.depth


def _launch(name: str, like: Any, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> Bound:
    function = SOURCE.function(f"{name}<{ctype(like)}>")
    return lambda: function(grid, (THREADS,), arguments)
