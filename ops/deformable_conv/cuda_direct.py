"""deformable_conv on CUDA for few channels or few pixels: one launch, samples stay in registers, see direct.cu."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

import numpy as np

from opgauge.ops._core.dtype import FLOATS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.source import CudaSource, Gpu
from opgauge.ops._cuda.struct import DIVISOR, pack
from opgauge.ops.deformable_conv.cuda import CONV, conv_struct, ctype
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

THREADS = 256
SHAPES = ((4, 4), (1, 8), (1, 2))
"""Groups and output channels of a group that a thread sums; the last where blocks of the others leave most
multiprocessors idle."""
FEWER_ROWS = SHAPES[1][1] // SHAPES[2][1]
"""Blocks of the last shape in place of one of the second."""
LONGEST_CHAIN = 256
"""Maximum products that a thread adds one after the other: longer sums lose accuracy."""
WAVES = 2
"""Blocks per multiprocessor below which more threads share a pixel."""
MOST_PER_SAMPLE, SMALL = 16, 1 << 17
"""Channels sampled per group, pixel and tap, once for eight output channels, up to which tensor cores are slower; those
of a whole convolution below which they are, too."""
LARGEST_INDEX, MOST_BLOCKS = 2**31 - 1, 2**16 - 1
"""Limits of 32-bit offsets and of the grid."""
_PLAN = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("images", "groups", "group_channels", "rows", "group_blocks", "owner_groups", "owner_blocks"),
            *("segment", "segments", "owner_segments", "units", "lanes", "unit_lanes"),
        )
    ]
    + [("depth", DIVISOR)]
)


def _name(kind: str, shape: tuple[int, int]) -> str:
    return f"direct<{kind}, {shape[0]}, {shape[1]}>"


SOURCE = CudaSource(
    __file__,
    "direct.cu",
    tuple(_name(dtype_info(dtype).ctype, shape) for dtype in FLOATS for shape in SHAPES),
    constants={"THREADS": THREADS},
    structs={"Conv": CONV, "Plan": _PLAN},
)
"""Declared instances of direct.cu."""


@dataclass(frozen=True, slots=True)
class DirectLayout:
    """Launch configuration: `lanes` threads share the depth of a pixel, `unit_lanes` of them its taps and segments."""

    found: SamplingGeometry
    wide: int
    shape: tuple[int, int]
    lanes: int = 1
    unit_lanes: int = 1
    workspace_bytes: ClassVar[int] = 0

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid))
        return f"direct, {self.lanes} threads a pixel, grid {grid} block {THREADS}: few channels or few pixels"

    @property
    def group_channels(self) -> int:
        """Channels of a group of the filter."""
        return self.found.channels // self.found.groups

    @property
    def rows(self) -> int:
        """Output channels of a group."""
        return self.found.out_channels // self.found.groups

    @property
    def segment(self) -> int:
        """Channels that a group and a deformable group have in common."""
        return gcd(self.group_channels, self.found.channels // self.found.deformable_groups)

    @property
    def segments(self) -> int:
        """Segments of a group."""
        return self.group_channels // self.segment

    @property
    def owner_groups(self) -> int:
        """Consecutive groups that share a deformable group."""
        per_group = self.found.channels // self.found.deformable_groups
        return per_group // self.group_channels if self.segments == 1 else 1

    @property
    def owner_blocks(self) -> int:
        """Blocks of those groups."""
        return -(-self.owner_groups // self.shape[0])

    @property
    def group_blocks(self) -> int:
        """Blocks of all groups."""
        return self.found.groups // self.owner_groups * self.owner_blocks

    @property
    def units(self) -> int:
        """Sample positions of a pixel and group."""
        return self.segments * self.found.taps

    @property
    def steps(self) -> int:
        """Channels that a thread samples for each of its groups."""
        return -(-self.units // self.unit_lanes) * -(-self.segment // (self.lanes // self.unit_lanes))

    @property
    def grid(self) -> tuple[int, int]:
        """Thread blocks."""
        pixels = self.found.batch * self.found.pixels
        return -(-pixels * self.lanes // THREADS), self.group_blocks * -(-self.rows // self.shape[1])

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: its filter, or the sums of half its threads."""
        sums = THREADS // 2 * (self.lanes > 1)
        return self.wide * self.shape[0] * self.shape[1] * max(self.found.depth, sums)

    @property
    def countable(self) -> bool:
        """Whether 32-bit numbers and the grid suffice."""
        counts = (self.found.batch * self.found.pixels + THREADS, self.found.channels * self.found.depth)
        return max(counts) <= LARGEST_INDEX and self.grid[1] <= MOST_BLOCKS

    def struct(self) -> Any:
        """`Plan` struct of the kernel."""
        found = self.found
        numbers = {
            "images": found.batch,
            "groups": found.groups,
            "owner_segments": found.channels // found.deformable_groups // self.segment,
            "depth": found.depth,
        }
        same = ("group_channels", "rows", "group_blocks", "owner_groups", "owner_blocks", "segment", "segments")
        own = {name: getattr(self, name) for name in (*same, "units", "lanes", "unit_lanes")}
        return pack(_PLAN, {**numbers, **own})


def _with_lanes(found: SamplingGeometry, wide: int, shape: tuple[int, int], lanes: int) -> DirectLayout:
    """The configuration whose lanes are divided among units and channels so that threads take the fewest steps."""
    shares = (1 << power for power in range(lanes.bit_length()))
    return min((DirectLayout(found, wide, shape, lanes, share) for share in shares), key=lambda one: one.steps)


def direct_layout(found: SamplingGeometry, wide: int, processors: int) -> DirectLayout:
    """The configuration with the fewest lanes that fill the device and keep chains of sums short."""
    one = DirectLayout(found, wide, SHAPES[0])
    shape = SHAPES[0] if one.rows <= SHAPES[0][1] and one.owner_groups > 1 else SHAPES[1]
    layout, lanes = _with_lanes(found, wide, shape, 1), 1
    while lanes < THREADS and lanes < found.depth:
        across, down = layout.grid
        if across * down >= WAVES * processors and layout.steps <= LONGEST_CHAIN:
            break
        lanes *= 2
        layout = _with_lanes(found, wide, shape, lanes)
    across, down = layout.grid
    if shape == SHAPES[1] and across * down * FEWER_ROWS <= processors:
        return _with_lanes(found, wide, SHAPES[2], lanes)
    return layout


def pays(found: SamplingGeometry) -> bool:
    """Whether a tile of the fused kernel would be mostly empty, or the whole convolution is small."""
    per_sample = found.channels // found.groups * -(-found.out_channels // found.groups // SHAPES[1][1])
    return per_sample <= MOST_PER_SAMPLE or found.batch * found.pixels * found.taps * found.groups * per_sample <= SMALL


def direct_config(found: SamplingGeometry, dtype: str, gpu: Gpu) -> DirectLayout | None:
    """The configuration for `gpu`; None if `direct` does not pay or does not fit."""
    if found.samples == 0 or found.out_channels == 0 or not pays(found):
        return None
    layout = direct_layout(found, accumulator_info(dtype).itemsize, gpu.multiprocessors)
    return layout if layout.countable and layout.shared_bytes <= gpu.shared_memory_bytes else None


def sample_directly(layout: DirectLayout, x: Any, offset: Any, mask: Any, filter: Any, out: Any) -> Bound:
    """One launch."""
    arguments = (x, offset, mask, filter, out, conv_struct(layout.found), layout.struct())
    name = _name(ctype(x), layout.shape)
    return bind_launch(SOURCE, name, layout.grid, (THREADS,), arguments, shared=layout.shared_bytes)
