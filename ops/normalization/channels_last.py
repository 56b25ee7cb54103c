"""normalization on CUDA, channels last, in training: blocks share rows, or one holds all of few rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.source import CudaSource, flag, multiprocessors, shared_memory_bytes
from opgauge.ops._cuda.struct import divisor
from opgauge.ops.normalization.call import (
    LARGEST_SIZE,
    LETTER,
    MOST_PARTIALS,
    STATIC_BYTES,
    STATISTICS,
    WIDTHS,
    Call,
    View,
    allow,
)

COLUMN_THREADS = 512
"""Maximum threads of a block."""
COLUMN_LANES = 8
"""Threads along the channels: with 16-byte vectors they read one cache line."""
WIDE_LANES, WIDE_VECTORS = 16, range(9, 65)
"""Threads along the channels, and vectors of a row, if x does not fit on chip."""
WIDE_STATIC_BYTES = {2: STATIC_BYTES, 4: STATIC_BYTES, 8: 20 * 1024}
"""STATIC_BYTES for that layout, by elements of a vector."""
FEW_CHANNELS, MANY_CHANNELS = ((8, 4, False), (8, 4, True), (8, 16, True)), ((16, 8, False), (16, 8, True))
"""Layouts for few rows: lanes of a warp along channels, vectors per thread, whether warps share rows."""
CHANNELS_MANY = 4096
"""Channels from which longer lines outweigh more blocks, for few rows."""
SHORT_BYTES = 4
"""Bytes of a vector for few rows."""
SHORT_WARPS = 4
"""Threads of a block for few rows whose warps have separate channels."""
MINIMUM_ROUNDS = 2
"""Minimum vectors per thread, unless one block has all rows: twice as many blocks exchange twice as many statistics,
which costs 20 % for 16384 rows of three channels."""
FEW_CHANNELS_ROUNDS = 4
"""The same for a single part of a row of single elements: 12526 rows of three channels take 13 % less than by two,
100352 of two channels 5 % less, others as long."""
MOST_SPLITS = 256
"""Maximum blocks per channel."""
WIDE_SPLITS = 160
"""Maximum blocks per channel if each merges the statistics of a part of the channels."""


def _short_width(itemsize: int) -> int:
    return max(1, SHORT_BYTES // itemsize)


@dataclass(frozen=True, slots=True)
class Short:
    """Layout of a warp over (rows, C) with few rows: `lanes` vectors of a row, up to `vectors` per thread."""

    width: int
    lanes: int
    vectors: int
    shared: bool

    @classmethod
    def of(cls, view: View, width: int) -> Short | None:
        """The layout for a shape, or None if a block cannot hold all rows."""
        hows = MANY_CHANNELS if view.channels >= CHANNELS_MANY else FEW_CHANNELS
        return next((short for how in hows if (short := cls(width, *how)).most_rows >= view.images), None)

    @property
    def deep(self) -> int:
        """Rows that a warp reads at a time."""
        return WARP // self.lanes

    @property
    def most_rows(self) -> int:
        """Maximum rows of a block."""
        return self.deep * self.vectors * (COLUMN_THREADS // WARP if self.shared else 1)

    def share(self, rows: int) -> int:
        """Warps along the rows: whole rounds, with the minimum number of warps."""
        warps = -(-rows // (self.deep * self.vectors))
        return -(-rows // (warps * self.deep)) * self.deep

    def warps(self, rows: int) -> int:
        """Threads of a block."""
        return -(-rows // self.share(rows)) if self.shared else SHORT_WARPS

    def blocks(self, channels: int) -> int:
        """Number of blocks."""
        across = 1 if self.shared else SHORT_WARPS
        return -(-channels // (self.width * self.lanes * across))

    def expression(self, ctype: str) -> str:
        """Name of the kernel instance."""
        return f"normalize_short<{ctype}, {self.width}, {self.lanes}, {self.vectors}, {flag(self.shared)}>"


def _last() -> tuple[str, ...]:
    """Expressions for channels_last."""
    found = []
    for dtype, widest in WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        found += [f"normalize_columns<{ctype}, {width}, false>" for width in (1, widest)]
        found.append(f"normalize_columns<{ctype}, {widest}, true>")
        for width in sorted({1, _short_width(dtype_info(dtype).itemsize)}):
            shorts = (Short(width, *how) for how in FEW_CHANNELS + MANY_CHANNELS)
            found += [short.expression(ctype) for short in shorts]
    return tuple(found)


SOURCE = CudaSource(
    __file__,
    "channels_last.cu",
    _last(),
    constants={
        "COLUMN_THREADS": COLUMN_THREADS,
        "COLUMN_LANES": COLUMN_LANES,
        "WIDE_LANES": WIDE_LANES,
        "PARTIALS_EACH": WIDE_SPLITS // WARP,
    },
    structs=STATISTICS,
)
"""Declared instances of channels_last.cu."""


def flagged_bytes(view: View, wide: int) -> int:
    """Bytes of flagged partials of blocks that share rows, statistics having `wide` bytes each."""
    padded = view.channels + COLUMN_LANES * max(WIDTHS.values())
    return LETTER * wide * padded * (_most_splits(view) + 1)


def bind(call: Call) -> Bound:
    """One launch."""
    return _short(call) or _columns(call)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Division of (rows, C): `across` groups of `splits` blocks, each with `share` rows, `tile` at a time."""

    width: int
    lanes: int
    across: int
    splits: int
    share: int
    tile: int
    wide: bool = False

    @classmethod
    def of(cls, view: View, width: int, *, wide: bool = False) -> Tiles:
        """Number of groups; blocks of a group wait for each other, so that all blocks must be resident."""
        lanes, across = lanes_across(view, width, WIDE_LANES if wide else COLUMN_LANES)
        most_tile, most = COLUMN_THREADS // lanes, _most_splits(view)
        most = min(multiprocessors() // across, WIDE_SPLITS if wide else most, most)
        rounds = 1 if wide else FEW_CHANNELS_ROUNDS if width == across == 1 else MINIMUM_ROUNDS
        splits = max(1, min(most, -(-view.images // (most_tile * rounds))))
        share = -(-view.images // splits)
        tile, unit = -(-share // -(-share // most_tile)), max(WARP // lanes, width)
        return cls(width, lanes, across, -(-view.images // share), share, -(-tile // unit) * unit, wide)

    @property
    def threads(self) -> int:
        """Threads of a block: at least one per column."""
        return self.lanes * self.tile

    @property
    def lane_bits(self) -> int:
        """Base-2 logarithm of the lanes, a power of two."""
        return self.lanes.bit_length() - 1

    @property
    def team_bits(self) -> int:
        """Base-2 logarithm of the threads that finish a column: up to a warp."""
        return min(WARP, self.threads // (self.lanes * self.width)).bit_length() - 1

    @property
    def rounds(self) -> int:
        """Vectors per thread."""
        return -(-self.share // self.tile)

    def round_bytes(self, itemsize: int) -> int:
        """Bytes of x in shared memory."""
        return self.threads * self.width * itemsize

    def kept(self, itemsize: int) -> int:
        """Rounds whose x stays in shared memory."""
        room = shared_memory_bytes() - (WIDE_STATIC_BYTES[self.width] if self.wide else STATIC_BYTES)
        return max(0, min(self.rounds, room // self.round_bytes(itemsize)))


def lanes_across(view: View, width: int, lanes: int = COLUMN_LANES) -> tuple[int, int]:
    """Vectors of a row per block, and number of such parts of a row."""
    vectors, most = -(-view.channels // width), WARP if width == 1 else lanes
    lanes = min(most, 1 << (vectors - 1).bit_length())
    return lanes, -(-vectors // lanes)


def _most_splits(view: View) -> int:
    """Blocks of a group, limited by the workspace for partial statistics."""
    return max(1, min(MOST_SPLITS, MOST_PARTIALS // view.channels))


def _short(call: Call) -> Bound | None:
    """One launch for few rows."""
    view, width = call.view, _short_width(call.itemsize)
    if call.vector < width:
        width = 1
    how = Short.of(view, width)
    if how is None or call.x.size >= LARGEST_SIZE:
        return None
    sizes = (np.int32(view.images), np.int32(view.channels), np.int32(how.share(view.images)))
    arguments = (*call.arrays, call.statistics, *sizes, *call.numbers)
    grid, block = (how.blocks(view.channels),), (WARP * how.warps(view.images),)
    return bind_launch(SOURCE, how.expression(call.ctype), grid, block, arguments)


def _columns(call: Call) -> Bound:
    view, width = call.view, call.width
    tiles = Tiles.of(view, width)
    if width > 1 and view.channels // width in WIDE_VECTORS and tiles.kept(call.itemsize) < tiles.rounds:
        tiles = Tiles.of(view, width, wide=True)
    function = SOURCE.function(f"normalize_columns<{call.ctype}, {width}, {flag(tiles.wide)}>")
    kept = tiles.kept(call.itemsize)
    shared = kept * tiles.round_bytes(call.itemsize)
    allow(function, shared)
    sizes = map(np.int32, (view.images, view.channels, tiles.lane_bits, tiles.team_bits))
    parts = (divisor(tiles.splits), np.int32(tiles.share), divisor(tiles.tile), np.int32(kept))
    arguments = (*call.arrays, call.statistics, call.flagged, call.counters, *sizes, *parts, *call.numbers)
    grid, block = (tiles.across * tiles.splits,), (tiles.threads,)
    return lambda: function(grid, block, arguments, shared_mem=shared)
