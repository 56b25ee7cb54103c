"""conv_data_grad on CUDA for small groups: multiply-adds from a tile of dy in shared memory, see direct.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.source import CudaSource, Gpu
from opgauge.ops._cuda.struct import DIVISOR, pack
from opgauge.ops._cuda.vectors import widest_vector
from opgauge.ops.conv_data_grad.op import ConvGeometry, three

AXES, THREADS, SECTOR_BYTES = 3, 256, 32
TAPS = (7, 5, 3, 1)
"""Vertical taps per window of loads."""
PIXELS = {1: 8, 4: 4}
"""Results of a thread along an axis, by its channels per pixel."""
MOST_PRODUCTS, MOST_PRODUCTS_16_BIT = 64, 32
"""Multiply-adds per tap and pixel of a group, including zeros of a stride, up to which tensor cores are slower."""
RESERVED_BYTES, SM_BYTES, SM_THREADS = 1024, 227 * 1024, 768
"""Shared memory that the driver reserves per block and that a multiprocessor has; its resident threads."""
FEWEST_FILL_LANES, HIDING_WARPS = 8, 16
"""Minimum threads that load a row; resident warps at which latency doubles the time of a block."""
LARGEST_INDEX = 2**31 - 1
DECODE_ROW, LOAD, DECODE_PIXEL, ONCE, START = 10, 4, 10, 60, 200
"""Cycles of a multiprocessor for a warp to locate a row of dy, to load an element of it, to locate and load the
channels of a pixel; fixed cost of a warp and of a block."""
_PLAN = np.dtype(
    [(name, np.int32) for name in ("images", "channels", "outs", "groups", "per_group", "group_outs")]
    + [(name, np.int32, (AXES,)) for name in ("full", "out", "kernel", "padding", "dilation")]
    + [
        (name, np.int32)
        for name in (
            *("block_groups", "group_blocks", "stage_outs", "vector", "row_lanes", "column_lanes"),
            *("row_step", "column_step", "tile_rows", "tile_columns", "tiles", "tiles_across", "rows", "columns"),
            *("pixel_stride", "row_stride", "channel_stride", "weights", "last", "vector_store", "unit", "fill_lanes"),
        )
    ]
    + [("stride", DIVISOR, (AXES,))]
    + [
        (name, DIVISOR)
        for name in (
            *("group_tiles", "tile_rows_by", "tile_columns_by", "vectors", "stage_outs_by", "block_groups_by"),
            *("sub_channels", "taps", "tap_rows"),
        )
    ]
)
"""`Plan` of direct.cu. outs: channels of dy. row_step, column_step: pixels between two results of a thread. tiles:
of an image; tiles_across: of a row. rows, columns: of dy's tile. weights: offset of the filter in shared memory."""


def windows(dtype: str, channels: int) -> tuple[int, ...]:
    """Vertical taps with compiled kernels; others are processed one tap at a time."""
    return (1,) if dtype == "float64" else TAPS if channels == 1 else TAPS[2:]


def _name(dtype: str, taps: int, channels: int) -> str:
    return f"direct<{dtype_info(dtype).ctype}, {taps}, {channels}, {PIXELS[channels]}>"


SOURCE = CudaSource(
    __file__,
    "direct.cu",
    tuple(_name(dtype, taps, channels) for dtype in FLOATS for channels in PIXELS for taps in windows(dtype, channels)),
    structs={"Plan": _PLAN},
)
"""Declared instances of direct.cu."""


@dataclass(frozen=True, slots=True)
class DirectConfig:
    """One launch configuration of `direct`.

    channels: channels of one group that a thread computes. taps: vertical taps of one window. along_rows: whether the
    results of a thread are consecutive along rows of the image (else along columns). lanes: threads along height and
    width. block_groups: groups of a thread block. stage_outs: channels of dy per group in shared memory at once.
    """

    found: ConvGeometry
    dtype: str
    channels: int
    taps: int
    along_rows: bool
    lanes: tuple[int, int]
    block_groups: int
    stage_outs: int
    workspace_bytes: ClassVar[int] = 0

    def __str__(self) -> str:
        (rows, columns), groups = self.tile, self.block_groups
        return f"direct tile {rows}x{columns} of {groups} groups, grid {self.blocks} block {self.threads}: small groups"

    @property
    def itemsize(self) -> int:
        """Bytes of an element of dy and dx."""
        return dtype_info(self.dtype).itemsize

    @property
    def wide(self) -> int:
        """Bytes of an element of shared memory."""
        return max(self.itemsize, 4)

    @property
    def pixels(self) -> int:
        """Results of a thread for each of its channels."""
        return PIXELS[self.channels]

    @property
    def steps(self) -> tuple[int, int]:
        """Rows and columns between two results of a thread."""
        if not self.along_rows:
            return 0, self.lanes[1]
        return (three(self.found.dilation, 1)[1] if self.taps > 1 else 1), 0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of dx of a thread block."""
        step = self.steps[0]
        rows = -(-self.lanes[0] // step) * step * self.pixels if step else self.lanes[0]
        return rows, self.lanes[1] * (1 if self.along_rows else self.pixels)

    @property
    def halo(self) -> tuple[int, int]:
        """Rows and columns of the tile of dy."""
        kernel, dilation = three(self.found.kernel, 1), three(self.found.dilation, 1)
        rows, columns = self.tile
        return rows + (kernel[1] - 1) * dilation[1], columns + (kernel[2] - 1) * dilation[2]

    @property
    def per_group(self) -> int:
        """Channels of dx in a group."""
        return self.found.channels // self.found.groups

    @property
    def group_outs(self) -> int:
        """Channels of dy in a group."""
        return self.found.out_channels // self.found.groups

    @property
    def subs(self) -> int:
        """Tiles of `channels` channels of a thread block."""
        return self.block_groups * -(-self.per_group // self.channels)

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps."""
        return -(-self.subs * prod(self.lanes) // WARP) * WARP

    @property
    def tile_elements(self) -> int:
        """Elements of dy in shared memory, padded to 16 bytes."""
        return -(-self.block_groups * self.stage_outs * prod(self.halo) // 4) * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the tile of dy and the filter of one depth tap."""
        _, height, width = three(self.found.kernel, 1)
        return self.wide * (self.tile_elements + self.stage_outs * height * width * self.subs * self.channels)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tiles along height and width, blocks of groups."""
        _, height, width = three(self.found.size, 1)
        rows, columns = self.tile
        return -(-height // rows), -(-width // columns), -(-self.found.groups // self.block_groups)

    @property
    def blocks(self) -> int:
        """Thread blocks of the launch."""
        return prod(self.counts) * three(self.found.size, 1)[0] * self.found.batch

    def vector(self, widest: int) -> int:
        """Elements of dy per load if addresses allow `widest`: 16 bytes or one element."""
        whole = 16 // self.itemsize
        contiguous = self.found.channels_last and self.stage_outs == self.group_outs
        aligned = self.block_groups * self.group_outs % whole == 0 and self.found.out_channels % whole == 0
        return whole if contiguous and aligned and widest >= whole else 1

    @property
    def fill_lanes(self) -> int:
        """Threads that load one row of dy: 8, or more if there are few rows."""
        rows = self.halo[0] * self.block_groups * self.stage_outs
        lanes = FEWEST_FILL_LANES
        while lanes * 2 <= self.threads // rows and lanes < self.halo[1]:
            lanes *= 2
        return lanes

    @property
    def cost(self) -> float:
        """Estimated cycles of a multiprocessor for one block, from its loads and multiply-adds."""
        depth, height, width = three(self.found.kernel, 1)
        rows, columns = self.halo
        channels = self.block_groups * self.stage_outs
        if self.found.channels_last:
            fill = rows * columns * channels / WARP * (DECODE_PIXEL / self.vector(16 // self.itemsize) + 1)
        else:
            fill = rows * channels * self.fill_lanes / WARP * (DECODE_ROW + -(-columns // self.fill_lanes) * LOAD)
        loads = self.pixels + self.taps - 1 + self.taps * (2 if self.channels > 1 else 1)
        issued = (loads + 2 + self.taps * self.pixels * self.channels * (self.wide // 4)) / 4
        products = self.stage_outs * height * width / self.taps * max(loads * self.wide / 4, issued)
        warps = self.threads // WARP
        stages = depth * -(-self.group_outs // self.stage_outs)
        return stages * (fill + warps * products) + warps * ONCE + START

    def duration(self, processors: int) -> float:
        """Estimated cycles of the launch: blocks of a multiprocessor, slower where few warps hide latency."""
        resident = max(min(SM_BYTES // (self.shared_bytes + RESERVED_BYTES), SM_THREADS // self.threads), 1)
        return -(-self.blocks // processors) * self.cost * (1 + HIDING_WARPS * WARP / (resident * self.threads))

    def struct(self, widest: int, *, vector_store: bool) -> Any:
        """The configuration as the kernel's Plan."""
        found = self.found
        kernel = three(found.kernel, 1)
        (rows, columns), (down, across, group_blocks) = self.halo, self.counts
        vector, channels = self.vector(widest), self.block_groups * self.stage_outs
        pixel_stride, channel_stride = (channels, 1) if found.channels_last else (1, rows * columns)
        numbers = {
            "images": found.batch,
            "channels": found.channels,
            "outs": found.out_channels,
            "groups": found.groups,
            "per_group": self.per_group,
            "group_outs": self.group_outs,
            "full": three(found.size, 1),
            "out": three(found.out_size, 1),
            "kernel": kernel,
            "padding": three(found.padding, 0),
            "dilation": three(found.dilation, 1),
            "block_groups": self.block_groups,
            "group_blocks": group_blocks,
            "stage_outs": self.stage_outs,
            "vector": vector,
            "row_lanes": self.lanes[0],
            "column_lanes": self.lanes[1],
            **dict(zip(("row_step", "column_step"), self.steps, strict=True)),
            **dict(zip(("tile_rows", "tile_columns"), self.tile, strict=True)),
            "tiles": down * across,
            "tiles_across": across,
            "rows": rows,
            "columns": columns,
            "pixel_stride": pixel_stride,
            "row_stride": columns * pixel_stride,
            "channel_stride": channel_stride,
            "weights": self.tile_elements,
            "last": found.channels_last,
            "vector_store": vector_store,
            "unit": {*found.strides} == {1},
            "fill_lanes": self.fill_lanes,
        }
        divisors = {
            "group_tiles": self.subs // self.block_groups,
            "tile_rows_by": rows,
            "tile_columns_by": columns,
            "vectors": channels // vector,
            "stage_outs_by": self.stage_outs,
            "block_groups_by": self.block_groups,
            "sub_channels": self.subs * self.channels,
            "taps": kernel[1] * kernel[2],
            "tap_rows": kernel[1],
        }
        return pack(_PLAN, {**numbers, **divisors, "stride": three(found.strides, 1)})


def _splits(length: int, powers: tuple[int, ...]) -> list[int]:
    """Lanes that divide `length` evenly into few tiles, and powers of two below it."""
    least = -(-length // THREADS)
    even = {-(-length // tiles) for tiles in range(least, least + 3)}
    return sorted(lanes for lanes in even.union(powers) if lanes <= min(length, THREADS))


def _shapes(found: ConvGeometry, dtype: str, channels: int) -> Iterator[tuple[int, bool, tuple[int, int]]]:
    """Taps, direction and lanes worth considering."""
    pixels, (_, height, width) = PIXELS[channels], three(found.size, 1)
    kernel, dilation = three(found.kernel, 1), three(found.dilation, 1)
    powers = (4, 16) if found.channels_last else (32, 64)
    taps = next(taps for taps in windows(dtype, channels) if kernel[1] % taps == 0)
    ways = [(taps, True, dilation[1])] if taps > 1 else []
    ways += [(1, True, 1)] if height > 1 else []
    for window, along_rows, step in [*ways, (1, False, 1)]:
        strips = -(-height // (pixels * step)) if along_rows else height
        for rows in _splits(strips, (1, 2)):
            for columns in _splits(width if along_rows else -(-width // pixels), powers):
                if rows * step * columns <= THREADS:
                    yield window, along_rows, (rows * step, columns)


def configs(found: ConvGeometry, dtype: str, shared: int) -> Iterator[DirectConfig]:
    """Configurations within `shared` bytes a block, of at least 64 threads if there is work for them.

    For channels_last a block takes whole 32-byte sectors of neighbouring channels, if there are enough.
    """
    per_group, group_outs = found.channels // found.groups, found.out_channels // found.groups
    channels = 1 if per_group == 1 else max(PIXELS)
    tiles = -(-per_group // channels)
    sector = -(-SECTOR_BYTES // dtype_info(dtype).itemsize // min(per_group, group_outs))
    for taps, along_rows, lanes in _shapes(found, dtype, channels):
        room = min(found.groups, THREADS // (prod(lanes) * tiles))
        fewest = min(found.groups, sector if found.channels_last else 1)
        counts = {1 << power for power in range(0, 9, 1 if found.channels_last else 2)} | {room}
        for block_groups in sorted(count for count in counts if fewest <= count <= room):
            for stage_outs in sorted({group_outs, min(group_outs, 4)}):
                config = DirectConfig(found, dtype, channels, taps, along_rows, lanes, block_groups, stage_outs)
                if config.shared_bytes <= shared:
                    yield config


@lru_cache(maxsize=64)
def select(found: ConvGeometry, dtype: str, shared: int, processors: int) -> DirectConfig | None:
    """The configuration with the shortest estimated duration; None if no tile fits into shared memory."""
    possible = [config for config in configs(found, dtype, shared) if config.blocks <= LARGEST_INDEX]
    return min(possible, key=lambda config: config.duration(processors), default=None)


def pays(found: ConvGeometry, dtype: str) -> bool:
    """Whether groups are so small that tensor cores would be mostly idle."""
    upsampled = prod(map(min, found.strides, found.size))
    products = found.channels // found.groups * (found.out_channels // found.groups) * upsampled
    return products <= (MOST_PRODUCTS_16_BIT if dtype_info(dtype).itemsize == 2 else MOST_PRODUCTS)


def direct_config(found: ConvGeometry, dtype: str, gpu: Gpu) -> DirectConfig | None:
    """The configuration for `gpu`; None if `direct` does not pay or does not fit."""
    if not pays(found, dtype) or min(found.batch, found.out_channels, found.channels) == 0:
        return None
    return select(found, dtype, gpu.shared_memory_bytes - RESERVED_BYTES, gpu.multiprocessors)


def convolve_directly(config: DirectConfig, dy: Any, weight: Any, dx: Any, addend: Any) -> Bound:
    """One launch."""
    dtype, whole = dx.dtype.name, config.channels
    aligned = widest_vector(dx.dtype.itemsize, dx, addend, config.per_group) >= whole
    vector_store = config.found.channels_last and config.per_group % whole == 0 and aligned
    plan = config.struct(widest_vector(dy.dtype.itemsize, dy), vector_store=vector_store)
    name, arguments = _name(dtype, config.taps, whole), (dy, weight, addend, dx, plan)
    return bind_launch(SOURCE, name, (config.blocks,), (config.threads,), arguments, shared=config.shared_bytes)
