"""Launch configuration of the fused deformable_conv: order of channels, tiles, splits and the kernels' `Plan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.struct import DIVISOR, pack
from opgauge.ops.deformable_conv.cuda import (
    ALIGNMENT,
    CONV,
    conv_struct,
)
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

PREPARE_THREADS = 256
"""Threads per block of `prepare`."""
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
MOST_SPLITS, QUARTER = 64, 64 * 64
"""Maximum splits; results whose partial sums take a quarter of a stage to read."""
PLACE_BYTES, SPOT_BYTES = 16, 32
"""Bytes of a sample position, in global and in shared memory."""
LARGEST_INDEX, LARGEST_LINE, MOST_GROUPS = 2**31 - 1, 2**27 - 1, 2**16 - 1
"""Limits of 32-bit offsets, of lines and of the grid."""
_SPAN = 8
"""Maximum consecutive chunks of channels per tap: few have the pixels in cache, many save instructions; 4 is as fast on
an H200."""
_MOST_STAGES = 4
"""Maximum stages of the ring in shared memory, which takes space from the cache; 2 are as fast on an H200."""
_STRIP = declare(
    "deformable_conv.fused_strip",
    8,
    (1, 4, 8, 16),
    backend="cuda",
    ops=("deformable_conv",),
    why="rows of pixels that tiles traverse column by column: neighbours share reads",
)
_SPLIT_COST = 2
"""Cost of writing a partial result, in stages; reading the largest costs one. 4 is as fast on an H200."""
_PLAN = np.dtype(
    [("conv", CONV)]
    + [
        (name, np.int32)
        for name in (
            *("images", "rows", "row_tiles", "group_channels", "segment", "depth", "line_depth", "chunks", "span"),
            *("share", "splits", "positions", "stages", "tiles", "results", "strip"),
        )
    ]
    + [(name, DIVISOR) for name in ("padded", "per_group", "strip_pixels", "taps", "run")]
)
"""`Plan` of the kernels. rows: output channels of a group. group_channels: of x. segment: channels that share a group
and a deformable group. depth, line_depth: channels of a group and of a line of x as stored. chunks: stages of a tap.
span, run: consecutive ones before the next tap. share: stages of a split. positions: maximum segments that a stage
touches. stages: of the ring. results: offset in bytes of a tile's staged results from the ring. strip: see `_STRIP`.
padded: channels of a segment as stored. per_group: channels of a deformable group."""
LINES = np.dtype([(name, np.int32) for name in ("area", "channels", "segment", "depth")] + [("padded", DIVISOR)])
"""`Lines` of lines.cuh. area, channels: of x. segment, padded: channels of a segment in x and as stored. depth: of a
stored line."""
STRUCTS = {"Conv": CONV, "Lines": LINES, "Plan": _PLAN}
"""Structs of fused.cu."""


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

    def __str__(self) -> str:
        rows, columns = self.tile
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        return f"fused convolve tile {rows}x{columns}, {self.stages} stages{splits}, {self.blocks} blocks a group"

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace, see `sizes`."""
        return sum(self.sizes)

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
        own = ("rows", "row_tiles", "share", "splits", "stages", "tiles")
        numbers = {
            "conv": conv_struct(found),
            "images": found.batch,
            "group_channels": found.channels // found.groups,
            "segment": channels.segment,
            "depth": channels.depth,
            "line_depth": found.groups * channels.depth,
            "chunks": channels.chunks,
            "span": channels.span,
            "positions": channels.places,
            "results": self.ring_bytes if self.blocks < self.tiles else 0,
            "strip": strip,
            **{name: getattr(self, name) for name in own},
        }
        divisors = {
            "padded": channels.padded,
            "per_group": found.channels // found.deformable_groups,
            "strip_pixels": strip * found.out_size[1],
            "taps": found.taps,
            "run": channels.span,
        }
        return pack(_PLAN, {**numbers, **divisors})


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
