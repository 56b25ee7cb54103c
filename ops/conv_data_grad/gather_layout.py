"""Layout of conv_data_grad's gathering kernels: tiles, patches of dy, shared memory and the kernels' `Plan`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._cuda.struct import DIVISOR, divisor
from opgauge.ops.conv_data_grad.op import ConvGeometry
from opgauge.ops.conv_data_grad.residue_classes import AXES, MOST_PASSES, MOST_TAPS, Axis, ClassTiles, axes_of

LINE_BYTES, SCALE_BYTES, PREPARE_THREADS, RING = 64, 4, 128, 3
ALIGNMENT, RESERVED_BYTES, SECTOR_BYTES = 256, 4096, 32
PATCH_STEP = 8
LARGEST_INDEX = 2**31 - 1
UNIT_WASTE = 0.04
"""Maximum share of idle pixels for tiles that do not cross images."""
_PASS = np.dtype(
    [(name, np.int32) for name in ("columns", "unit", "tiles", "filter", "taps")]
    + [(name, np.int32, (AXES,)) for name in ("count", "first", "residue")]
    + [("unit_tiles", DIVISOR), ("size", DIVISOR, (AXES,))]
)
"""Pixels of dx with common taps. columns: pixels of all images. unit: those divided into tiles, of an image or all.
filter: offset of its filter in lines. count, first: taps of an axis, and reach of the first. residue: of its rows."""
_AXES = ("full", "out", "pitch", "margin", "kernel", "padding", "dilation", "stride", "step")
_PLAN = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("images", "channels", "outs", "group_outs", "rows", "row_tiles", "chunks", "lines"),
            *("patch", "patches", "stage_taps", "share", "splits", "passes", "merged", "last"),
            "row_bits",
        )
    ]
    + [(name, np.int32, (AXES,)) for name in _AXES]
    + [(name, DIVISOR) for name in ("per_group", "line_blocks", "row_blocks", "row_classes")]
    + [("padded", DIVISOR, (AXES,)), ("classes", DIVISOR, (AXES,))]
    + [("pass", _PASS, (MOST_PASSES,))]
)
"""`Plan` of the kernels. rows: of the product of a group. chunks: of channels, each of `lines`. patch: lines of a
patch, `patches` of which are in shared memory. share: chunks of a split. merged: rows are classes of channels. last:
channels are last. step: pixels of dy between taps. row_bits: base-2 logarithm of adjacent rows of a block of `prepare`;
line_blocks, row_blocks, row_classes: its blocks for the lines of a row, for the rows of a class, and classes."""
STRUCTS = {"Pass": _PASS, "Plan": _PLAN}
"""Structs that the generated header declares."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Work of a block: warps along rows and columns, each with products of 16 rows and of 8 columns."""

    warps: tuple[int, int]
    products: tuple[int, int]

    @property
    def rows(self) -> int:
        """Channels of dx."""
        return 16 * self.warps[0] * self.products[0]

    @property
    def columns(self) -> int:
        """Pixels of dx."""
        return 8 * self.warps[1] * self.products[1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * prod(self.warps)


def padded(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


@dataclass(frozen=True)
class GatherLayout:
    """Plan of a convolution: a tile, and whether all classes are rows of one product."""

    found: ConvGeometry
    itemsize: int
    tile: Tile
    merged: bool
    splits: int = 1

    def __str__(self) -> str:
        grid, splits = "x".join(map(str, self.grid)), f", {self.splits} splits" if self.splits > 1 else ""
        classes = "classes as rows" if self.merged else "a product for each class"
        return f"convolve tile {self.tile.rows}x{self.tile.columns}, {classes}{splits}, grid {grid}"

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Three axes, missing ones in front."""
        return axes_of(self.found)

    @property
    def classes(self) -> tuple[int, ...]:
        """Residue classes that are rows, by axis."""
        return tuple(len(axis.residues) if self.merged else 1 for axis in self.axes)

    @property
    def per_group(self) -> int:
        """Channels of dx in a group."""
        return self.found.channels // self.found.groups

    @property
    def rows(self) -> int:
        """Rows of the product of one group."""
        return self.per_group * prod(self.classes)

    @property
    def row_tiles(self) -> int:
        """Tiles along the rows."""
        return -(-self.rows // self.tile.rows)

    @property
    def group_outs(self) -> int:
        """Channels of dy in a group."""
        return self.found.out_channels // self.found.groups

    @property
    def chunks(self) -> int:
        """Lines of channels per pixel."""
        channels = 16 if self.itemsize == 4 else LINE_BYTES // self.itemsize
        return -(-self.group_outs // channels)

    @cached_property
    def parts(self) -> tuple[ClassTiles, ...]:
        """One entry per residue class, or one for all."""
        if self.merged:
            everything = tuple(tuple(axis.all_reaches) for axis in self.axes)
            return (self._part((0,) * AXES, everything),)
        return tuple(
            self._part(residue, tuple(tuple(axis.reaches(r)) for axis, r in zip(self.axes, residue, strict=True)))
            for residue in product(*(axis.residues for axis in self.axes))
        )

    def _part(self, residue: tuple[int, ...], reaches: tuple[tuple[int, ...], ...]) -> ClassTiles:
        size = tuple(axis.size(r) for axis, r in zip(self.axes, residue, strict=True))
        pixels, columns = prod(size), self.tile.columns
        unit = pixels if padded(pixels, columns) <= pixels * (1 + UNIT_WASTE) else pixels * self.found.batch
        tiles = pixels * self.found.batch // unit * -(-unit // columns)
        return ClassTiles(residue, size, reaches, pixels * self.found.batch, unit, tiles)

    def distance(self, reach: tuple[int, ...]) -> int:
        """Distance of a reach in lines."""
        pitch = [axis.pitch for axis in self.axes]
        return (reach[0] * pitch[1] + reach[1]) * pitch[2] + reach[2]

    def line(self, part: ClassTiles, columns: Any) -> Any:
        """Line of dy's pixel with the same index as a column's."""
        coordinates = []
        for size in reversed(part.size):
            coordinates.append(columns % size)
            columns = columns // size
        for axis, at in zip(self.axes, reversed(coordinates), strict=True):
            columns = columns * axis.pitch + at + axis.margin
        return columns

    @cached_property
    def _patches(self) -> tuple[int, int]:
        """Lines of the longest patch, and of the span of all patches."""
        longest = furthest = 0
        for part in self.parts:
            if part.taps == 0:
                continue
            tile = np.arange(part.tiles, dtype=np.int64)
            unit_tiles = -(-part.unit // self.tile.columns)
            offset = tile % unit_tiles * self.tile.columns
            first = tile // unit_tiles * part.unit + offset
            last = first + np.minimum(part.unit - offset, self.tile.columns) - 1
            least = self.distance(tuple(reaches[-1] for reaches in part.reaches))
            most = self.distance(tuple(reaches[0] for reaches in part.reaches))
            start = (self.line(part, first) + least) // PATCH_STEP * PATCH_STEP
            longest = max(longest, int((self.line(part, last) + most - start).max()) + 1)
            furthest = max(furthest, int(start.max()))
        longest = padded(longest, PATCH_STEP)
        return longest, furthest + longest

    @property
    def patch(self) -> int:
        """Lines that a tile touches."""
        return self._patches[0]

    @property
    def lines(self) -> int:
        """Lines of a chunk."""
        return padded(self._patches[1], PREPARE_THREADS)

    @property
    def most_taps(self) -> int:
        """Most taps of a class."""
        return max(part.taps for part in self.parts)

    @property
    def stage_taps(self) -> int:
        """Taps per stage, whose filter is loaded at once."""
        taps = {part.taps for part in self.parts}
        if self.splits == 1:
            return 3 if max(taps) % 3 == 0 else min(max(taps), 4)
        return 1 if max(taps) <= 1 else 4 if any(item % 3 for item in taps) else 3

    @property
    def unrolled(self) -> int:
        """Template argument G of the kernel."""
        return self.stage_taps if self.splits > 1 else 0

    @property
    def patches(self) -> int:
        """Patches in shared memory: a chunk's first stage must not overwrite one that a stage still reads."""
        fewest = min((-(-part.taps // self.stage_taps) for part in self.parts if part.taps), default=1)
        return 1 + -(-(RING - 1) // fewest)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: patches, their scales and the filter's stages; at least its results."""
        filters = RING * self.stage_taps * self.tile.rows * LINE_BYTES
        ring = self.patches * self.patch * (LINE_BYTES + SCALE_BYTES) + filters
        return max(ring, 4 * self.tile.rows * (self.tile.columns + 8))

    @property
    def share(self) -> int:
        """Chunks of a split."""
        return -(-self.chunks // self.splits)

    @property
    def filter_lines(self) -> list[int]:
        """Lines of the filter of each part."""
        each = self.found.groups * self.chunks * self.row_tiles * self.tile.rows
        return [each * part.taps for part in self.parts]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of dy's lines, their scales, the filter's lines, its rows' scales, partial results, their counters."""
        lines = self.found.groups * self.chunks * self.lines
        shared_tiles = prod(self.grid[:2]) if self.splits > 1 else 0
        exact = (
            lines * LINE_BYTES,
            lines * SCALE_BYTES,
            sum(self.filter_lines) * LINE_BYTES,
            self.found.groups * len(self.parts) * self.rows * SCALE_BYTES,
            4 * shared_tiles * self.splits * self.tile.rows * self.tile.columns,
            4 * shared_tiles,
        )
        return tuple(padded(size, ALIGNMENT) for size in exact)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes)

    @property
    def row_bits(self) -> int:
        """Base-2 logarithm of adjacent rows of a block of `prepare`: those of a sector of the filter."""
        adjacent = min(self.per_group, SECTOR_BYTES // self.itemsize) if self.found.channels_last else 1
        return (adjacent - 1).bit_length()

    @property
    def pack_grid(self) -> tuple[int, int, int]:
        """Blocks of `prepare` for the lines of a row, for the rows of a class, and classes, of a part and a group.

        A block has all lines of float32, which share a scale, and one line per thread of other types.
        """
        lines = self.chunks * self.most_taps
        line_blocks = 1 if self.itemsize == 4 else max(1, -(-(lines << self.row_bits) // PREPARE_THREADS))
        return line_blocks, -(-self.per_group // (1 << self.row_bits)), prod(self.classes)

    @property
    def filter_blocks(self) -> int:
        """Blocks of `prepare` for the filter."""
        return self.found.groups * len(self.parts) * prod(self.pack_grid)

    @property
    def prepare_blocks(self) -> int:
        """Blocks of `prepare`, including those that repack dy."""
        return self.filter_blocks + self.found.groups * self.chunks * self.lines // PREPARE_THREADS

    @property
    def grid(self) -> tuple[int, int, int]:
        """Grid of `convolve`."""
        tiles = self.row_tiles * len(self.parts) * max(part.tiles for part in self.parts)
        return tiles, self.found.groups, self.splits

    @property
    def fits(self) -> bool:
        """Whether the kernels' tables and 32-bit numbers suffice."""
        if len(self.parts) > MOST_PASSES or self.most_taps > MOST_TAPS:
            return False
        pixels = self.found.batch * max(prod(self.found.size), prod(self.found.out_size))
        counts = (self.prepare_blocks, self.lines, self.grid[0], pixels + self.tile.columns, sum(self.filter_lines))
        return max(counts) <= LARGEST_INDEX and self.found.groups < 2**16

    def struct(self) -> Any:
        """`Plan` struct of the kernels."""
        plan = np.zeros((), _PLAN)
        found = self.found
        for name, value in (
            *(("images", found.batch), ("channels", found.channels), ("outs", found.out_channels)),
            *(("group_outs", self.group_outs), ("rows", self.rows), ("row_tiles", self.row_tiles)),
            *(("chunks", self.chunks), ("lines", self.lines), ("patch", self.patch), ("patches", self.patches)),
            *(("stage_taps", self.stage_taps), ("share", self.share), ("splits", self.splits)),
            *(("passes", len(self.parts)), ("merged", self.merged), ("last", found.channels_last)),
            ("row_bits", self.row_bits),
        ):
            plan[name] = value
        blocks = ("line_blocks", "row_blocks", "row_classes")
        for name, number in zip(("per_group", *blocks), (self.per_group, *self.pack_grid), strict=True):
            plan[name] = divisor(number)
        for at, (axis, classes) in enumerate(zip(self.axes, self.classes, strict=True)):
            for name in _AXES:
                plan[name][at] = 1 if name == "step" and self.merged else getattr(axis, name)
            plan["padded"][at], plan["classes"][at] = divisor(axis.pitch), divisor(classes)
        starts = accumulate(self.filter_lines, initial=0)
        for item, part, start in zip(plan["pass"], self.parts, starts, strict=False):
            self._fill(item, part, start)
        return plan

    def _fill(self, item: Any, part: ClassTiles, start: int) -> None:
        for name in ("columns", "unit", "tiles", "taps", "residue"):
            item[name] = getattr(part, name)
        item["filter"], item["unit_tiles"] = start, divisor(-(-part.unit // self.tile.columns))
        for at, (size, reaches) in enumerate(zip(part.size, part.reaches, strict=True)):
            item["size"][at], item["count"][at] = divisor(size), len(reaches)
            item["first"][at] = reaches[0] if reaches else 0
