"""normalization on CUDA, channels last, by its own statistics: blocks share rows, or hold all where they are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.source import Source, divisor, flag, multiprocessors, shared_memory_bytes
from opgauge.ops.normalization.call import (
    LARGEST_SIZE,
    LETTER,
    MOST_PARTIALS,
    STATIC_BYTES,
    WARP,
    WIDTHS,
    Call,
    View,
    allow,
)

COLUMN_THREADS = 512
"""Most of a block that normalizes columns."""
COLUMN_LANES = 8
"""Threads side by side where channels come last: with packs of 16 bytes they read one line."""
WIDE_LANES, WIDE_PACKS = 16, range(9, 65)
"""Threads side by side, and packs of a row, where x does not fit on the chip."""
WIDE_STATIC_BYTES = {2: STATIC_BYTES, 4: STATIC_BYTES, 8: 20 * 1024}
"""In the place of STATIC_BYTES there, by elements of a pack."""
FEW_CHANNELS, MANY_CHANNELS = ((8, 4, False), (8, 4, True), (8, 16, True)), ((16, 8, False), (16, 8, True))
"""Where rows are few: lanes of a warp side by side, packs of a thread, whether warps of a block share rows."""
CHANNELS_MANY = 4096
"""From which on longer lines are worth more than more blocks, where rows are few."""
SHORT_BYTES = 4
"""Of a pack there."""
SHORT_WARPS = 4
"""Of a block there whose warps have channels of their own."""
MOST_SPLITS = 256
"""Blocks that share a channel, where channels come last."""
WIDE_SPLITS = 160
"""The same, where each puts together what all found of a part of the channels."""


def _short_width(itemsize: int) -> int:
    return max(1, SHORT_BYTES // itemsize)


@dataclass(frozen=True, slots=True)
class Short:
    """How warps take (rows, C) of few rows: `lanes` packs of a row, up to `packs` a thread."""

    width: int
    lanes: int
    packs: int
    shared: bool

    @classmethod
    def of(cls, view: View, width: int) -> Short | None:
        """For so many rows and channels, or None where a block cannot hold all rows."""
        hows = MANY_CHANNELS if view.channels >= CHANNELS_MANY else FEW_CHANNELS
        return next((short for how in hows if (short := cls(width, *how)).most_rows >= view.images), None)

    @property
    def deep(self) -> int:
        """Rows that a warp takes at a time."""
        return WARP // self.lanes

    @property
    def most_rows(self) -> int:
        """What a block holds."""
        return self.deep * self.packs * (COLUMN_THREADS // WARP if self.shared else 1)

    def share(self, rows: int) -> int:
        """Rows of a warp: whole turns, as few warps as can hold all."""
        warps = -(-rows // (self.deep * self.packs))
        return -(-rows // (warps * self.deep)) * self.deep

    def warps(self, rows: int) -> int:
        """Of a block."""
        return -(-rows // self.share(rows)) if self.shared else SHORT_WARPS

    def blocks(self, channels: int) -> int:
        """All that there are channels for."""
        across = 1 if self.shared else SHORT_WARPS
        return -(-channels // (self.width * self.lanes * across))

    def expression(self, ctype: str) -> str:
        """The kernel."""
        return f"normalize_short<{ctype}, {self.width}, {self.lanes}, {self.packs}, {flag(self.shared)}>"


def _last() -> tuple[str, ...]:
    """Channels last."""
    found = []
    for dtype, widest in WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        found += [f"normalize_columns<{ctype}, {width}, false>" for width in (1, widest)]
        found.append(f"normalize_columns<{ctype}, {widest}, true>")
        for width in sorted({1, _short_width(dtype_info(dtype).itemsize)}):
            shorts = (Short(width, *how) for how in FEW_CHANNELS + MANY_CHANNELS)
            found += [short.expression(ctype) for short in shorts]
    return tuple(found)


SOURCE = Source(__file__, "channels_last.cu", _last())


def mail_bytes(view: View, wide: int) -> int:
    """Room for what blocks that share rows tell each other, statistics being `wide` bytes each."""
    padded = view.channels + COLUMN_LANES * max(WIDTHS.values())
    return LETTER * wide * padded * (_most_splits(view) + 1)


def bind(call: Call) -> Bound:
    """One launch."""
    return _short(call) or _columns(call)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How blocks share (rows, C): `across` groups of `splits` of them, each with `share` rows, `tile` at a time."""

    width: int
    lanes: int
    across: int
    splits: int
    share: int
    tile: int
    wide: bool = False

    @classmethod
    def of(cls, view: View, width: int, *, wide: bool = False) -> Tiles:
        """Groups whose blocks wait for each other only where the device holds all blocks at once."""
        lanes, across = lanes_across(view, width, WIDE_LANES if wide else COLUMN_LANES)
        most_tile, most = COLUMN_THREADS // lanes, _most_splits(view)
        most = min(multiprocessors() // across, WIDE_SPLITS if wide else most, most)
        splits = max(1, min(most, -(-view.images // most_tile)))
        share = -(-view.images // splits)
        tile, unit = -(-share // -(-share // most_tile)), max(WARP // lanes, width)
        return cls(width, lanes, across, -(-view.images // share), share, -(-tile // unit) * unit, wide)

    @property
    def threads(self) -> int:
        """Of a block: at least one for each column."""
        return self.lanes * self.tile

    @property
    def lane_bits(self) -> int:
        """Of the number of lanes, a power of two."""
        return self.lanes.bit_length() - 1

    @property
    def team_bits(self) -> int:
        """Of the number of threads that finish a column: a power of two up to a warp."""
        return min(WARP, self.threads // (self.lanes * self.width)).bit_length() - 1

    @property
    def rounds(self) -> int:
        """Packs of a thread."""
        return -(-self.share // self.tile)

    def round_bytes(self, itemsize: int) -> int:
        """Of x, in shared memory."""
        return self.threads * self.width * itemsize

    def kept(self, itemsize: int) -> int:
        """Rounds of which x stays in shared memory."""
        room = shared_memory_bytes() - (WIDE_STATIC_BYTES[self.width] if self.wide else STATIC_BYTES)
        return max(0, min(self.rounds, room // self.round_bytes(itemsize)))


def lanes_across(view: View, width: int, lanes: int = COLUMN_LANES) -> tuple[int, int]:
    """Packs of a row that a block takes, and how many such parts a row has."""
    packs, most = -(-view.channels // width), WARP if width == 1 else lanes
    lanes = min(most, 1 << (packs - 1).bit_length())
    return lanes, -(-packs // lanes)


def _most_splits(view: View) -> int:
    """Blocks of a group: as many partial statistics as the workspace has room for."""
    return max(1, min(MOST_SPLITS, MOST_PARTIALS // view.channels))


def _short(call: Call) -> Bound | None:
    """Few rows."""
    view, width = call.view, _short_width(call.itemsize)
    if call.pack < width:
        width = 1
    how = Short.of(view, width)
    if how is None or call.x.size >= LARGEST_SIZE:
        return None
    function = SOURCE.function(how.expression(call.ctype))
    sizes = (np.int32(view.images), np.int32(view.channels), np.int32(how.share(view.images)))
    arguments = (*call.arrays, call.statistics, *sizes, *call.numbers)
    grid, block = (how.blocks(view.channels),), (WARP * how.warps(view.images),)
    return lambda: function(grid, block, arguments)


def _columns(call: Call) -> Bound:
    view, width = call.view, call.width
    tiles = Tiles.of(view, width)
    if width > 1 and view.channels // width in WIDE_PACKS and tiles.kept(call.itemsize) < tiles.rounds:
        tiles = Tiles.of(view, width, wide=True)
    function = SOURCE.function(f"normalize_columns<{call.ctype}, {width}, {flag(tiles.wide)}>")
    kept = tiles.kept(call.itemsize)
    shared = kept * tiles.round_bytes(call.itemsize)
    allow(function, shared)
    sizes = map(np.int32, (view.images, view.channels, tiles.lane_bits, tiles.team_bits))
    parts = (divisor(tiles.splits), np.int32(tiles.share), divisor(tiles.tile), np.int32(kept))
    arguments = (*call.arrays, call.statistics, call.mail, call.tickets, *sizes, *parts, *call.numbers)
    grid, block = (tiles.across * tiles.splits,), (tiles.threads,)
    return lambda: function(grid, block, arguments, shared_mem=shared)
