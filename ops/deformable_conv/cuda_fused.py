"""deformable_conv on CUDA without a column buffer: samples go through shared memory to the tensor cores.

Columns of all images and a product are used if they are faster, or if these kernels do not support the shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shapes
from opgauge.ops._core.registry import kernel
from opgauge.ops._core.tuning import Parameter, declare
from opgauge.ops._cuda.gemm.gemm import EXACT, TF32
from opgauge.ops._cuda.source import DIVISOR, CudaSource, architecture, divisor, multiprocessors, shared_memory_bytes
from opgauge.ops.deformable_conv.cuda import (
    ALIGNMENT,
    CONV,
    by_tensor_cores,
    conv_struct,
    ctype,
    split_bytes,
    unfold_then,
)
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

ARCHITECTURE = 90
"""The only supported compute capability: later ones lack these instructions, earlier ones are slower."""
THREADS, PREPARE_THREADS = 512, 256
LINE_BYTES, LANE_BYTES, LANES = 128, 16, 8
TEAM_PIXELS = 64
ROW_SCALES = 1024
"""Shared memory that is not available to the ring, in bytes."""
SHAPES = ((64, 1, 2), (128, 1, 2), (128, 2, 1))
"""Output channels of four consumer warps, and their rows and columns in a block, so that one tile has all
output channels; the last entry if none does."""
SMALLER = {(64, 1, 2): (32, 2, 1), (128, 1, 2): (64, 2, 1)}
"""Tile for as many channels and half the pixels."""
STAGE_PIXELS = 32
"""Fixed cost of a stage, in pixels."""
TRANSPOSE_TILE = (32, 64)
"""Pixels and channels that a block transposes to channels last."""
FEWEST_STAGES = 2
EXACT_HALVES, SHORT_HALVES = 2, 1
"""11-bit halves per float32, for float32 accuracy and for TF32 accuracy. 16-bit elements are one half."""
HALVES = {"float16": (SHORT_HALVES,), "bfloat16": (SHORT_HALVES,), "float32": (SHORT_HALVES, EXACT_HALVES)}
DTYPES = tuple(HALVES)
MOST_SPLITS, QUARTER = 16, 64 * 64
"""Maximum splits; results whose partial sums take a quarter of a stage to read."""
PLACE_BYTES, SPOT_BYTES = 16, 32
"""Bytes of a sample position, in global and in shared memory."""
RANGE = "float32 is exact to 22 bits within 2^-17 of the largest of a filter's row, or of 32 channels at a sample"
TF32_NOTE = "11 bits of each factor, as TF32 has"
"""Accuracy of the kernels."""
LARGEST_INDEX, LARGEST_LINE, MOST_GROUPS = 2**31 - 1, 2**27 - 1, 2**16 - 1
"""Limits of 32-bit offsets, of lines and of the grid."""


def _declare(name: str, default: int, candidates: tuple[int, ...], why: str) -> Parameter:
    return declare(f"deformable_conv.{name}", default, candidates, backend="cuda", ops=("deformable_conv",), why=why)


_SPAN = 8
"""Maximum consecutive chunks of channels per tap: few have the pixels in cache, many save instructions; 4 is as fast on
an H200."""
_MOST_STAGES = 4
"""Maximum stages of the ring in shared memory, which takes space from the cache; 2 are as fast on an H200."""
_STRIP = _declare(
    "fused_strip", 8, (1, 4, 8, 16), "rows of pixels that tiles traverse column by column: neighbours share reads"
)
_SPLIT_COST = 2
"""Cost of writing a partial result, in stages; reading the largest costs one. 4 is as fast on an H200."""
_MOST_PLACES = _declare(
    "fused_places", 4, (1, 2, 4, 8), "deformable groups per stage from which a column buffer is faster"
)
_PLAN = np.dtype(
    [("conv", CONV)]
    + [
        (name, np.int32)
        for name in (
            *("images", "rows", "row_tiles", "group_channels", "segment", "depth", "line_depth", "chunks", "span"),
            *("share", "splits", "places", "stages", "tiles", "results", "strip"),
        )
    ]
    + [(name, DIVISOR) for name in ("padded", "per_group", "strip_pixels", "taps", "visit")]
)


def _expressions() -> tuple[str, ...]:
    found = []
    for dtype, halves in ((dtype, halves) for dtype, each in HALVES.items() for halves in each):
        kind = f"{dtype_info(dtype).ctype}, {halves}"
        found.append(f"prepare<{kind}>")
        found += [f"convolve<{kind}, {', '.join(map(str, shape))}>" for shape in (*SHAPES, *SMALLER.values())]
    return tuple(found)


SOURCE = CudaSource(__file__, "fused.cu", _expressions())
"""Declared instances of fused.cu."""


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


@dataclass(frozen=True, slots=True)
class Channels:
    """Order of channels in the kernels: segments of one group and deformable group each, padded to whole lanes.

    segment, padded: channels of one, in the tensor and as stored. segments: per group. chunk: channels of a stage.
    """

    segment: int
    padded: int
    segments: int
    chunk: int

    @property
    def halves(self) -> int:
        """Halves of an element, see EXACT_HALVES."""
        return LINE_BYTES // 2 // self.chunk

    @property
    def depth(self) -> int:
        """Channels of a group as stored."""
        return self.segments * self.padded

    @property
    def chunks(self) -> int:
        """Stages of one tap."""
        return -(-self.depth // self.chunk)

    @property
    def places(self) -> int:
        """Maximum segments that a stage touches."""
        if self.segments == 1 or self.padded % self.chunk == 0:
            return 1
        aligned = self.chunk % self.padded == 0
        return min(self.segments, self.chunk // self.padded if aligned else (self.chunk - 1) // self.padded + 2)

    @property
    def span(self) -> int:
        """Consecutive chunks per tap, all in one segment."""
        within = self.chunks if self.segments == 1 else self.padded // self.chunk if self.places == 1 else 1
        return max(item for item in range(1, _SPAN + 1) if within % item == 0)


def channels_of(found: SamplingGeometry, itemsize: int, halves: int) -> Channels | None:
    """Order of channels; None if a group and a deformable group partially overlap."""
    group, deformable = found.channels // found.groups, found.channels // found.deformable_groups
    segment = min(group, deformable)
    if max(group, deformable) % segment:
        return None
    padded = _padded(segment, LANE_BYTES // itemsize)
    return Channels(segment, padded, group // segment, LINE_BYTES // 2 // halves)


@dataclass(frozen=True, slots=True)
class FusedLayout:
    """Launch configuration.

    shape: of a tile, see SHAPES. stages: of the ring in shared memory. processors: of the device. stays: whether
        blocks are persistent. splits: blocks per tile, each with a share of the depth.
    """

    found: SamplingGeometry
    itemsize: int
    channels: Channels
    shape: tuple[int, int, int]
    stages: int
    processors: int
    stays: bool = True
    splits: int = 1

    @property
    def tile(self) -> tuple[int, int]:
        """Output channels and pixels of a block."""
        each, rows, columns = self.shape
        return each * rows, TEAM_PIXELS * columns

    @property
    def rows(self) -> int:
        """Output channels of a group."""
        return self.found.out_channels // self.found.groups

    @property
    def row_tiles(self) -> int:
        """Tiles along the output channels."""
        return -(-self.rows // self.tile[0])

    @property
    def tiles(self) -> int:
        """Tiles of one group: rows of tiles within tiles of pixels."""
        return self.row_tiles * -(-self.found.batch * self.found.pixels // self.tile[1])

    @property
    def filter_rows(self) -> int:
        """Rows of all tiles and groups, including padding."""
        return self.found.groups * self.row_tiles * self.tile[0]

    @property
    def depth_stages(self) -> int:
        """Stages of a tile."""
        return self.channels.chunks * self.found.taps

    @property
    def share(self) -> int:
        """Stages of a split."""
        return -(-self.depth_stages // self.splits)

    @property
    def blocks(self) -> int:
        """Blocks that share the tiles of a group and split; the resident blocks if they are persistent."""
        if not self.stays:
            return self.tiles
        return max(1, min(self.tiles, self.processors // (self.found.groups * self.splits)))

    @property
    def ring_bytes(self) -> int:
        """Shared memory for stages, sample positions, scales, barriers and a counter."""
        rows, columns = self.tile
        stages = self.stages * ((rows + columns) * LINE_BYTES + 4 * columns + 16)
        return stages + self.channels.places * columns * (PLACE_BYTES + SPOT_BYTES) + 16

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: scales of rows, the ring, and results, which reuse it if there is one tile."""
        rows, columns = self.tile
        results = 4 * rows * (columns + 4)
        apart = self.blocks < self.tiles
        return ROW_SCALES + (self.ring_bytes + results if apart else max(self.ring_bytes, results))

    @property
    def places(self) -> int:
        """Sample positions, common to all channels of a deformable group."""
        found = self.found
        return found.batch * found.pixels * found.taps * found.deformable_groups

    @property
    def pixels(self) -> int:
        """Pixels of all images."""
        return self.found.batch * self.found.size[0] * self.found.size[1]

    @property
    def line_bytes(self) -> int:
        """Bytes of one pixel, all its channels."""
        return self.found.groups * self.channels.depth * self.itemsize

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of x and zeros as lines, filter as stages, row scales, positions, partial results, counters."""
        shared_tiles = self.tiles * self.found.groups if self.splits > 1 else 0
        exact = (
            (self.pixels + 1) * self.line_bytes,
            self.filter_rows * self.depth_stages * LINE_BYTES,
            4 * self.found.out_channels,
            PLACE_BYTES * self.places,
            4 * shared_tiles * self.splits * self.tile[0] * self.tile[1],
            4 * shared_tiles,
        )
        return tuple(_padded(size, ALIGNMENT) for size in exact)

    @property
    def pieces(self) -> int:
        """Blocks that transpose x."""
        area, line = self.found.size[0] * self.found.size[1], self.found.groups * self.channels.depth
        return self.found.batch * -(-area // TRANSPOSE_TILE[0]) * -(-line // TRANSPOSE_TILE[1])

    @property
    def prepare_blocks(self) -> int:
        """Blocks that repack the filter and x, write a line of zeros, and locate samples."""
        return self.filter_rows + self.pieces + 1 + -(-self.places // PREPARE_THREADS)

    @property
    def countable(self) -> bool:
        """Whether the kernels' 32-bit numbers suffice."""
        found, area = self.found, self.found.size[0] * self.found.size[1]
        counts = (
            self.prepare_blocks,
            found.batch * found.pixels + self.tile[1],
            self.places + PREPARE_THREADS,
            self.line_bytes,
            self.depth_stages * LANES,
            self.rows * found.channels // found.groups * found.taps,
        )
        lines = found.batch * area + 1
        return max(counts) <= LARGEST_INDEX and lines <= LARGEST_LINE and found.groups <= MOST_GROUPS

    def with_splits(self, splits: int) -> FusedLayout:
        """The configuration with about `splits` splits, none of them empty."""
        share = -(-self.depth_stages // splits)
        return replace(self, splits=-(-self.depth_stages // share))

    def struct(self) -> Any:
        """`Plan` struct of the kernels."""
        found, channels, strip = self.found, self.channels, _STRIP.value()
        numbers = (
            *(found.batch, self.rows, self.row_tiles, found.channels // found.groups, channels.segment),
            *(channels.depth, found.groups * channels.depth, channels.chunks, channels.span),
            *(self.share, self.splits, channels.places, self.stages),
            *(self.tiles, self.ring_bytes if self.blocks < self.tiles else 0, strip),
        )
        per_group = found.channels // found.deformable_groups
        divided = channels.padded, per_group, strip * found.out_size[1], found.taps, channels.span
        return np.array((conv_struct(found), *numbers, *map(divisor, divided)), _PLAN)


def _cost(tiles: int, stages: int, slots: int, splits: int, area: int) -> int:
    """Duration in quarters of stages, including partial results of `area` each."""
    extra = _SPLIT_COST * (splits > 1)
    return 4 * -(-tiles * splits // slots) * (-(-stages // splits) + extra) + -(-splits * area // QUARTER)


def best_splits(tiles: int, stages: int, slots: int, area: int) -> int:
    """Blocks per tile that minimize the duration of all waves."""
    return min(range(1, min(MOST_SPLITS, stages) + 1), key=lambda splits: _cost(tiles, stages, slots, splits, area))


def _layouts(
    found: SamplingGeometry, itemsize: int, channels: Channels, shared: int, processors: int
) -> Iterator[FusedLayout]:
    """Configurations whose tile has all output channels, or as many as possible, with the maximum number of stages."""
    rows = found.out_channels // found.groups
    shape = next((item for item in SHAPES if rows <= item[0] * item[1]), SHAPES[-1])
    for one in (shape, *([SMALLER[shape]] if shape in SMALLER else [])):
        for stays, stages in product((True, False), range(_MOST_STAGES, FEWEST_STAGES - 1, -1)):
            whole = FusedLayout(found, itemsize, channels, one, stages, processors, stays)
            tiles, area = whole.tiles * found.groups, whole.tile[0] * whole.tile[1]
            layout = whole.with_splits(best_splits(tiles, whole.depth_stages, processors, area))
            if layout.shared_bytes <= shared and layout.countable:
                yield layout
                break


def layout_of(found: SamplingGeometry, itemsize: int, halves: int, shared: int, processors: int) -> FusedLayout | None:
    """Configuration of a convolution within `shared` bytes per block; None if it is not supported."""
    channels = channels_of(found, itemsize, halves)
    if channels is None:
        return None

    def cost(layout: FusedLayout) -> int:
        tiles, area = layout.tiles * found.groups, layout.tile[0] * layout.tile[1]
        return (layout.tile[1] + STAGE_PIXELS) * _cost(tiles, layout.depth_stages, processors, layout.splits, area)

    return min(_layouts(found, itemsize, channels, shared, processors), key=cost, default=None)


def chosen(found: SamplingGeometry, dtype: str, *, exact: bool) -> FusedLayout | None:
    """Configuration on the current device; None if columns are faster. Halves as `exact` requires, or fewer."""
    if dtype not in HALVES or architecture() != ARCHITECTURE or found.samples == 0 or found.out_channels == 0:
        return None
    for halves in HALVES[dtype][-1:] if exact else HALVES[dtype]:
        layout = layout_of(found, dtype_info(dtype).itemsize, halves, shared_memory_bytes(), multiprocessors())
        if layout is not None and _MOST_PLACES.covers(layout.channels.places):
            return layout
    return None


def _forward(name: str, dtypes: tuple[str, ...], *, exact: bool, **options: Any) -> None:
    """Register a kernel of two launches, the first of which repacks x and the filter; or by columns."""
    by_columns = unfold_then(by_tensor_cores(EXACT if exact else TF32))

    def workspace_bytes(shapes: Shapes, params: DeformableConvParams) -> int:
        x = shapes.inputs["x"]
        layout = chosen(geometry(x.shape, shapes.inputs["filter"].shape, params), x.dtype, exact=exact)
        return split_bytes(shapes, params) if layout is None else sum(layout.sizes)

    @kernel("deformable_conv", name, "cuda", dtypes, prepare=True, workspace=workspace_bytes, **options)
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
        found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
        layout = chosen(found, x.dtype.name, exact=exact)
        if layout is None:
            return by_columns(x=x, offset=offset, filter=filter, out=out, workspace=workspace, mask=mask, **options)
        lines, packed, scales, places, partial, counters = _cut(workspace, layout.sizes)
        zeros = lines[layout.pixels * layout.line_bytes :]
        plan, shared, variant = layout.struct(), layout.shared_bytes, f"{ctype(x)}, {layout.channels.halves}"
        prepare = SOURCE.function(f"prepare<{variant}>")
        convolve = SOURCE.function(f"convolve<{variant}, {', '.join(map(str, layout.shape))}>")
        convolve.max_dynamic_shared_size_bytes = shared
        counts = (np.int32(layout.filter_rows), np.int32(layout.pieces), np.int32(layout.tile[0]))
        first = (x, filter, offset, mask, lines, zeros, packed, scales, places, *counts, plan)
        second = (lines, zeros, packed, scales, places, out["out"], partial, counters, plan)
        blocks, grid = layout.prepare_blocks, (layout.blocks, found.groups, layout.splits)

        def run() -> None:
            prepare((blocks,), (PREPARE_THREADS,), first)
            convolve(grid, (THREADS,), second, shared_mem=shared)

        return run


_forward("optimized", FLOATS, exact=True, note=RANGE)
_forward("tf32", ("float32",), exact=False, relaxed=2.0**8, note=TF32_NOTE)


def _cut(workspace: Any, sizes: tuple[int, ...]) -> list[Any]:
    """Consecutive parts of the workspace."""
    ends = accumulate(sizes, initial=0)
    return [workspace[start:end] for start, end in pairwise(ends)]
