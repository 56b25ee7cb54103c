"""deformable_conv on CUDA without a column buffer: samples go through shared memory to the tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ops._core.cuda import DIVISOR, Source, architecture, divisor, multiprocessors, shared_memory_bytes
from ops._core.dtype import dtype_info
from ops._core.gemm import AMPERE, EXACT
from ops._core.kernel import Bound
from ops._core.op import Shapes
from ops._core.registry import kernel
from ops.deformable_conv.cuda import ALIGNMENT, CONV, by_tensor_cores, conv_struct, ctype, split_bytes, unfold_then
from ops.deformable_conv.op import DeformableConvParams, geometry
from ops.deformable_conv.sampling import Geometry

DTYPES = ("float16", "bfloat16", "float32")
BLOCK, PREPARE_THREADS = 384, 256
LINE_BYTES, LANE_BYTES, LANES = 128, 16, 8
TILE = 64 * 256
"""Results of a block: 64, 128 or 256 output channels by as many pixels as that leaves."""
TURNED = (32, 64)
"""Pixels and channels that a block lays out channels last."""
MOST_STAGES, FEWEST_STAGES = 4, 2
MOST_SPLITS, SPLIT_COST = 8, 0.03
SPAN = 2
"""Most chunks of channels in a row at one tap: few keep the pixels around in the cache, many save work."""
PLACE_BYTES = 32
RESERVED_BYTES = 1024
"""Of a block's shared memory, for what the system and the kernel's few fixed variables take."""
LARGEST_INDEX = 2**31 - 1
_PLAN = np.dtype(
    [("conv", CONV)]
    + [
        (name, np.int32)
        for name in (
            *("images", "rows", "row_tiles", "group_channels", "segment", "depth", "line_depth", "chunks", "span"),
            *("share", "splits", "places", "stages"),
        )
    ]
    + [("padded", DIVISOR)]
)


def _expressions() -> tuple[str, ...]:
    ctypes = [dtype_info(name).ctype for name in DTYPES]
    return tuple(f"prepare<{item}>" for item in ctypes) + tuple(
        f"convolve<{item}, {tall}>" for item in ctypes for tall in (1, 2, 4)
    )


SOURCE = Source(__file__, "fused.cu", _expressions())


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


@dataclass(frozen=True, slots=True)
class Channels:
    """Channels as the kernels walk them: segments of one group and deformable group each, padded to whole lanes.

    segment, padded: channels of one, as given and as laid out. segments: of a group. chunk: channels of a stage.
    """

    segment: int
    padded: int
    segments: int
    chunk: int

    @property
    def depth(self) -> int:
        """Channels of a group as laid out."""
        return self.segments * self.padded

    @property
    def chunks(self) -> int:
        """Stages of one tap."""
        return -(-self.depth // self.chunk)

    @property
    def places(self) -> int:
        """Segments that a stage touches, at most."""
        if self.segments == 1 or self.padded % self.chunk == 0:
            return 1
        aligned = self.chunk % self.padded == 0
        return min(self.segments, self.chunk // self.padded if aligned else (self.chunk - 1) // self.padded + 2)

    @property
    def span(self) -> int:
        """Chunks at one tap, all in one segment."""
        within = self.chunks if self.segments == 1 else self.padded // self.chunk if self.places == 1 else 1
        return max(item for item in range(1, SPAN + 1) if within % item == 0)


def channels_of(found: Geometry, itemsize: int) -> Channels | None:
    """None where a group and a deformable group share some, but not all, of the smaller one's channels."""
    group, deformable = found.channels // found.groups, found.channels // found.deformable_groups
    segment = min(group, deformable)
    if max(group, deformable) % segment:
        return None
    padded = _padded(segment, LANE_BYTES // itemsize)
    return Channels(segment, padded, group // segment, LINE_BYTES // itemsize)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a launch needs to know.

    tall: how many times 64 output channels in a tile. stages: of the ring in shared memory. splits: blocks to a
        tile, each with a share of the depth.
    """

    found: Geometry
    itemsize: int
    channels: Channels
    tall: int
    stages: int
    splits: int

    @property
    def rows(self) -> int:
        """Output channels of a group."""
        return self.found.out_channels // self.found.groups

    @property
    def row_tiles(self) -> int:
        """Tiles above each other."""
        return -(-self.rows // (64 * self.tall))

    @property
    def tiles(self) -> int:
        """Of rows within tiles of pixels, of one group."""
        return self.row_tiles * -(-self.found.batch * self.found.pixels // (256 // self.tall))

    @property
    def filter_rows(self) -> int:
        """Rows of all tiles and groups, those that are only there to fill a tile included."""
        return self.found.groups * self.row_tiles * 64 * self.tall

    @property
    def depth_stages(self) -> int:
        """Stages of a tile."""
        return self.channels.chunks * self.found.taps

    @property
    def share(self) -> int:
        """Stages of a split."""
        return -(-self.depth_stages // self.splits)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return ring_bytes(self.tall, self.channels.places, self.stages)

    def sizes(self) -> tuple[int, ...]:
        """Bytes of x and of the filter laid out anew, of the rows' scales, of partial results, of their tickets."""
        pixels = self.found.batch * self.found.size[0] * self.found.size[1]
        shared_tiles = self.tiles * self.found.groups if self.splits > 1 else 0
        exact = (
            (pixels + 1) * self.found.groups * self.channels.depth * self.itemsize,
            self.filter_rows * self.depth_stages * LINE_BYTES,
            4 * self.found.out_channels,
            4 * shared_tiles * self.splits * TILE,
            4 * shared_tiles,
        )
        return tuple(_padded(size, ALIGNMENT) for size in exact)

    def struct(self) -> Any:
        """As the kernels' Plan."""
        found, channels = self.found, self.channels
        numbers = (
            *(found.batch, self.rows, self.row_tiles, found.channels // found.groups, channels.segment),
            *(channels.depth, found.groups * channels.depth, channels.chunks, channels.span),
            *(self.share, self.splits, channels.places, self.stages),
        )
        return np.array((conv_struct(found), *numbers, divisor(channels.padded)), _PLAN)


def ring_bytes(tall: int, places: int, stages: int) -> int:
    """Shared memory of a block: stages, where samples lie, scales and barriers; at least what its results take."""
    rows, columns = 64 * tall, 256 // tall
    ring = stages * ((rows + columns) * LINE_BYTES + 4 * columns + 16) + 2 * places * columns * PLACE_BYTES
    return max(ring, 4 * rows * (columns + 8))


def most_splits(tiles: int, stages: int, processors: int) -> int:
    """Blocks to a tile so that the last wave is full, each with a few stages at least."""
    allowed = range(1, max(1, min(MOST_SPLITS, stages // 4)) + 1)
    return min(allowed, key=lambda splits: -(-tiles * splits // processors) / splits + SPLIT_COST * (splits - 1))


def layout_of(found: Geometry, itemsize: int, shared: int, processors: int) -> Layout | None:
    """How to compute a convolution with `shared` bytes a block; None where these kernels cannot."""
    channels = channels_of(found, itemsize)
    if channels is None:
        return None
    rows = found.out_channels // found.groups
    for tall in [item for item in (1, 2, 4) if rows <= 64 * item] or [4]:
        fits = [
            item for item in range(FEWEST_STAGES, MOST_STAGES + 1) if ring_bytes(tall, channels.places, item) <= shared
        ]
        if fits:
            layout = Layout(found, itemsize, channels, tall, fits[-1], 1)
            splits = most_splits(layout.tiles * found.groups, layout.depth_stages, processors)
            share = -(-layout.depth_stages // splits)
            layout = Layout(found, itemsize, channels, tall, fits[-1], -(-layout.depth_stages // share))
            return layout if _countable(layout) else None
    return None


def _countable(layout: Layout) -> bool:
    """Whether the kernels' 32-bit numbers reach."""
    found = layout.found
    counts = (
        found.batch * (found.size[0] * found.size[1] + TURNED[0]) * layout.channels.depth * found.groups // TURNED[1],
        found.batch * found.size[0] * found.size[1] + 1,
        found.batch * found.pixels + TILE,
        found.batch * found.deformable_groups * found.taps,
        found.out_channels // found.groups * layout.depth_stages * LINE_BYTES,
        layout.filter_rows,
    )
    return max(counts) <= LARGEST_INDEX and found.groups < 2**16


def _layout(found: Geometry, dtype: str) -> Layout | None:
    """On the current device."""
    if architecture() < AMPERE or found.samples == 0 or found.out_channels == 0:
        return None
    return layout_of(found, dtype_info(dtype).itemsize, shared_memory_bytes() - RESERVED_BYTES, multiprocessors())


def _workspace_bytes(shapes: Shapes, params: DeformableConvParams) -> int:
    found = geometry(shapes.inputs["x"].shape, shapes.inputs["filter"].shape, params)
    layout = _layout(found, shapes.inputs["x"].dtype)
    return split_bytes(shapes, params) if layout is None else sum(layout.sizes())


_COLUMNS = unfold_then(by_tensor_cores(EXACT))


@kernel("deformable_conv", "fused", "cuda", DTYPES, prepare=True, workspace=_workspace_bytes)
def fused(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out: dict[str, Any],
    workspace: Any,
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Two launches, the first of which lays x and the filter out anew; by columns where `layout_of` has no way."""
    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    layout = _layout(found, x.dtype.name)
    if layout is None:
        return _COLUMNS(x=x, offset=offset, filter=filter, out=out, workspace=workspace, mask=mask, **options)
    lines, packed, scales, partial, tickets = _cut(workspace, layout.sizes())
    plan = layout.struct()
    prepare, convolve = (
        SOURCE.function(f"prepare<{ctype(x)}>"),
        SOURCE.function(f"convolve<{ctype(x)}, {layout.tall}>"),
    )
    convolve.max_dynamic_shared_size_bytes = layout.shared_bytes
    turned = [
        -(-size // step) for size, step in zip((found.size[0] * found.size[1], plan["line_depth"]), TURNED, strict=True)
    ]
    blocks = layout.filter_rows + 1 + found.batch * turned[0] * turned[1]
    first = (x, filter, lines, packed, scales, np.int32(layout.filter_rows), np.int32(64 * layout.tall), plan)
    second = (lines, packed, scales, offset, mask, out["out"], partial, tickets, plan)
    grid, shared = (layout.tiles, found.groups, layout.splits), layout.shared_bytes

    def run() -> None:
        prepare((blocks,), (PREPARE_THREADS,), first)
        convolve(grid, (BLOCK,), second, shared_mem=shared)

    return run


def _cut(workspace: Any, sizes: tuple[int, ...]) -> list[Any]:
    """The parts of the workspace, one after the other."""
    starts = np.cumsum((0, *sizes))
    return [workspace[int(start) : int(start) + size] for start, size in zip(starts[:-1], sizes, strict=True)]
