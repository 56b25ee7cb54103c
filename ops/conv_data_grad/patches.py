"""Plan of `convolve_patches`: conv_data_grad in 16-bit types, by patches of dy in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, product, starmap
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.bind import in_turn
from opgauge.ops._cuda.source import CudaSource, Gpu
from opgauge.ops._cuda.struct import address, pack
from opgauge.ops._cuda.tensor_map import box_map
from opgauge.ops.conv_data_grad.gather_layout import LARGEST_INDEX
from opgauge.ops.conv_data_grad.op import ConvGeometry
from opgauge.ops.conv_data_grad.pack_channels import Packed, pack_channels, packed, packed_bytes
from opgauge.ops.conv_data_grad.residue_classes import Axis, axes_of

DTYPES = ("float16", "bfloat16")
ARCHITECTURE = 90
"""Compute capability with wgmma as `patches.cu` has it: later ones have another instruction."""
COLUMNS, VECTORS = (64, 128), (1, 2, 4)
"""Channels of dx in a tile, and pixels of it that are stored at once where channels are first."""
WIDE_BLOCKS = 0.7
"""Tiles of 128 channels per multiprocessor from which they are taken: on an H200 half as many take 1.4 times as long as
twice as many of 64, and as many 0.75 of the time."""
FEWEST_BLOCKS, MANY_STAGES = 0.25, 16
"""Blocks per multiprocessor below which more stages than these are divided among blocks by other kernels."""
FEWEST_CHANNELS = 32
"""Channels of a group, of dx and of dy, below which tiles would be mostly padding."""
FIRST_PRODUCTS, FIRST_CHANNELS = 50_000_000, 1200
"""Multiply-adds of all of dx, and of a pixel and a tap, from which packing pays where channels are first."""
LINES, GROUP_LINES, LINE_BYTES, DEEP = 128, 64, 128, 64
"""Lines of a tile and of each warpgroup, their bytes, and channels of dy in a line."""
RING, THREADS, MOST_CLASSES = 4, 288, 4
"""Stages of the filter in shared memory, threads of a block, and residue classes of a launch."""
MOST_BOX = 256
"""Maximum of a box's lengths."""
RESULT_PITCH = LINES + 4
"""Elements from the results of one channel to those of the next, where channels are first."""
RESERVED_BYTES = 2048
"""Shared memory for alignment and barriers."""
_CLASS = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("first_tile", "across", "down", "low_x", "low_y", "residue_x", "residue_y"),
            *("taps_x", "taps_y", "tap_x", "tap_y"),
        )
    ]
)
"""Pixels of dx with common taps. first_tile: the first of its tiles, of which so many are across and down. low: first
pixel of a patch of dy relative to a tile. tap: first tap of an axis, in the filter."""
_PLAN = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("width", "height", "images", "channels", "outs", "chunks", "column_tiles", "classes"),
            *("box_width", "box_height", "box_images", "pitch", "image_lines", "patches", "patch_bytes"),
            "patch_room",
            *("kernel_width", "between_x", "between_y", "step_x", "step_y", "stride_x", "stride_y"),
        )
    ]
    + [("pixels", _CLASS, (MOST_CLASSES,))]
)
"""`PatchPlan` of patches.cu. channels: of dx in a group; outs: of a group in a line of dy. box: pixels of a class in a
tile. pitch: lines of a row of a patch; image_lines: of an image of it; patches: in shared memory; patch_room: bytes
from one to the next. between: taps of the filter from one of a class to the next; step: the pixels of dy between them.
"""


def _convolve(dtype: str, columns: int, first: int) -> str:
    return f"convolve_patches<{dtype_info(dtype).ctype}, {columns}, {first}>"


SOURCE = CudaSource(
    __file__,
    "patches.cu",
    tuple(starmap(_convolve, product(DTYPES, COLUMNS, (0, *VECTORS)))),
    constants={"RING": RING, "RESULT_PITCH": RESULT_PITCH},
    structs={"PixelClass": _CLASS, "PatchPlan": _PLAN},
)
"""Declared instances of patches.cu."""


class Box(NamedTuple):
    """Pixels of a class in a tile, and taps of most classes along both axes with the pixels of dy between them."""

    width: int
    height: int
    images: int
    reach_x: int
    reach_y: int

    @property
    def pitch(self) -> int:
        """Lines of a row of a patch."""
        return self.width + self.reach_x

    @property
    def lines(self) -> int:
        """Lines of an image of a patch."""
        return self.pitch * (self.height + self.reach_y)


@dataclass(frozen=True)
class PatchLayout:
    """Launch of `convolve_patches`: a box of pixels and the channels of a tile.

    workspace_bytes: for the kernels that take its place if addresses do not allow vectors.
    """

    found: ConvGeometry
    box: Box
    columns: int
    workspace_bytes: int = 0

    def __str__(self) -> str:
        box = "x".join(map(str, (self.box.images, self.box.height, self.box.width)))
        return f"convolve_patches, {box} pixels by {self.columns} channels, grid {'x'.join(map(str, self.grid))}"

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of pixels."""
        _, rows, columns = axes_of(self.found)
        return rows, columns

    @property
    def classes(self) -> list[tuple[int, int]]:
        """Residues of each class of pixels, of rows and columns."""
        rows, columns = self.axes
        return list(product(rows.residues, columns.residues))

    def tiles(self, residues: tuple[int, int]) -> tuple[int, int, int]:
        """Tiles of a class: along images, rows and columns."""
        rows, columns = (axis.size(r) for axis, r in zip(self.axes, residues, strict=True))
        box = self.box
        return -(-self.found.batch // box.images), -(-rows // box.height), -(-columns // box.width)

    @property
    def column_tiles(self) -> int:
        """Tiles of the channels of a group."""
        return -(-(self.found.channels // self.found.groups) // self.columns)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of all tiles, and groups."""
        return self.column_tiles * sum(prod(self.tiles(one)) for one in self.classes), self.found.groups

    @property
    def chunks(self) -> int:
        """Lines of channels of dy of a group, per pixel."""
        return -(-(self.found.out_channels // self.found.groups) // DEEP)

    @property
    def stages(self) -> int:
        """Products of a block of the class with most taps."""
        return self.chunks * max(
            prod(len(a.taps(r)) for a, r in zip(self.axes, one, strict=True)) for one in self.classes
        )

    @property
    def packed(self) -> Packed:
        """Channels of a group of dy and the filter as they are read."""
        return packed(self.found, DEEP)

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """Bytes of copies of dy and of the filter, which channels last do without."""
        return (0, 0) if self.found.channels_last else packed_bytes(self.found, self.packed)

    @property
    def patches(self) -> int:
        """Patches in shared memory: one is loaded while another is multiplied."""
        return min(self.chunks, 2)

    @property
    def patch_bytes(self) -> int:
        """Bytes of a patch."""
        return self.box.images * self.box.lines * LINE_BYTES

    @property
    def patch_room(self) -> int:
        """The same rounded up to whole patterns of the swizzle."""
        return -(-self.patch_bytes // 1024) * 1024

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: patches and the filter's stages, or results."""
        read = self.patches * self.patch_room + RING * self.columns * LINE_BYTES
        return max(read, 0 if self.found.channels_last else 4 * self.columns * RESULT_PITCH) + RESERVED_BYTES

    @property
    def vector(self) -> int:
        """Adjacent pixels of a row of a tile that are stored at once; 0 where channels are last."""
        if self.found.channels_last:
            return 0
        return 1 if self.axes[1].stride > 1 else gcd(self.axes[1].full, self.box.width, VECTORS[-1])

    def struct(self) -> Any:
        """`PatchPlan` of the kernel."""
        found, box, (rows, columns) = self.found, self.box, self.axes
        numbers = {
            "width": columns.full,
            "height": rows.full,
            "images": found.batch,
            "channels": found.channels // found.groups,
            "outs": self.packed.outs,
            "chunks": self.chunks,
            "column_tiles": self.column_tiles,
            "classes": len(self.classes),
            "box_width": box.width,
            "box_height": box.height,
            "box_images": box.images,
            "pitch": box.pitch,
            "image_lines": box.lines,
            "patches": self.patches,
            "patch_bytes": self.patch_bytes,
            "patch_room": self.patch_room,
            "kernel_width": columns.kernel,
            "step_x": columns.step,
            "step_y": rows.step,
            "between_x": columns.between,
            "between_y": rows.between,
            "stride_x": columns.stride,
            "stride_y": rows.stride,
        }
        starts = accumulate((prod(self.tiles(one)) for one in self.classes), initial=0)
        pixels = [self._class(*each) for each in zip(self.classes, starts, strict=False)]
        idle = [np.zeros((), _CLASS)] * (MOST_CLASSES - len(pixels))
        return pack(_PLAN, {**numbers, "pixels": [*pixels, *idle]})

    def _class(self, residues: tuple[int, int], first_tile: int) -> Any:
        """`PixelClass` of the kernel."""
        _, down, across = self.tiles(residues)
        numbers = {"first_tile": first_tile, "down": down, "across": across}
        for name, axis, residue in zip("yx", self.axes, residues, strict=True):
            taps = axis.taps(residue)
            numbers |= {f"residue_{name}": residue, f"taps_{name}": len(taps)}
            numbers |= {f"tap_{name}": taps[0][0] if taps else 0, f"low_{name}": taps[-1][1] if taps else 0}
        return pack(_CLASS, numbers)


def _boxes(found: ConvGeometry) -> list[Box]:
    """Boxes whose lines fit a tile: of one image, or of two, which have a warpgroup each."""
    _, rows, columns = axes_of(found)
    reach_y, reach_x = (
        (max(len(axis.taps(r)) for r in axis.residues) or 1) * axis.step - axis.step for axis in (rows, columns)
    )
    boxes, width = [], columns.size(0)
    for images, lines in ((1, LINES), (2, GROUP_LINES)):
        for parts in range(1, -(-width // 4) + 1):
            across = -(-width // parts)
            if across > lines:
                continue
            height = min(rows.size(0), (lines - across) // (across + reach_x) + 1)
            boxes.append(Box(across, height, images, reach_x, reach_y))
    return [box for box in boxes if max(box.pitch, box.height + reach_y) <= MOST_BOX]


def _pays_to_pack(found: ConvGeometry, each: int, outs: int) -> bool:
    """Whether the kernel is faster by more than its packing takes; not where one tap writes strided pixels of dx."""
    products = found.batch * prod(found.out_size) * prod(found.kernel) * found.groups * each * outs
    return prod(found.kernel) > 1 and each * outs >= FIRST_CHANNELS and products >= FIRST_PRODUCTS


@lru_cache(maxsize=64)
def patch_layout(found: ConvGeometry, dtype: str, gpu: Gpu) -> PatchLayout | None:
    """The launch with the fewest tiles; None where other kernels are needed, or faster.

    Those are other types and devices, three spatial axes, few channels or unaligned last ones, many residue classes,
    and few tiles of many stages.
    """
    each, outs = (number // found.groups for number in (found.channels, found.out_channels))
    is_packed = not found.channels_last or packed(found, DEEP) == (outs, each)
    if dtype not in DTYPES or gpu.architecture != ARCHITECTURE or not is_packed:
        return None
    if len(found.size) > 2 or min(each, outs) < FEWEST_CHANNELS or found.batch == 0 or found.is_pointwise:
        return None
    if not (found.channels_last or _pays_to_pack(found, each, outs)):
        return None
    wide = [PatchLayout(found, box, COLUMNS[1]) for box in _boxes(found)]
    wide = [one for one in wide if one.shared_bytes <= gpu.shared_memory_bytes and len(one.classes) <= MOST_CLASSES]
    if not wide:
        return None
    best = min(wide, key=lambda one: (one.grid[0], one.patch_bytes))
    if each <= COLUMNS[0] or prod(best.grid) < WIDE_BLOCKS * gpu.multiprocessors:
        best = PatchLayout(found, best.box, COLUMNS[0])
    few = prod(best.grid) < FEWEST_BLOCKS * gpu.multiprocessors and best.stages > MANY_STAGES
    sizes = found.batch * prod(found.size) * found.channels, found.batch * prod(found.out_size) * found.out_channels
    return None if few or prod(best.grid) > LARGEST_INDEX or max(sizes) > LARGEST_INDEX * DEEP else best


def is_aligned(*arrays: Any) -> bool:
    """Whether 16-byte vectors and tensor maps can have these addresses; None is no array."""
    return all(address(array) % 16 == 0 for array in arrays)


def convolve_patches(layout: PatchLayout, dy: Any, weight: Any, dx: Any, addend: Any, workspace: Any) -> Bound:
    """One launch, which reads dy and the filter as they are, or copies, after the launch that packs them."""
    found = layout.found
    if found.channels_last:
        return _multiply(layout, dy, weight, dx, addend)
    of_dy, of_filter = layout.packed_bytes
    lines, filters = (part.view(dx.dtype) for part in (workspace[:of_dy], workspace[of_dy : of_dy + of_filter]))
    first = pack_channels(found, layout.packed, dy, weight, lines, filters)
    return in_turn(first, _multiply(layout, lines, filters, dx, addend))


def _multiply(layout: PatchLayout, dy: Any, weight: Any, dx: Any, addend: Any) -> Bound:
    """The launch that multiplies."""
    found, box, packed = layout.found, layout.box, layout.packed
    size, outs = (1, *found.out_size)[-2:], found.groups * packed.outs
    pixels = box_map(dy, (outs, size[1], size[0], found.batch), (DEEP, box.pitch, box.height + box.reach_y, box.images))
    taps = box_map(weight, (packed.each, prod(found.kernel), outs), (DEEP, 1, DEEP))
    vector = gcd(layout.vector, *(address(array) // 2 for array in (dx, addend))) if layout.vector else 0
    function = SOURCE.function(_convolve(dx.dtype.name, layout.columns, vector))
    function.max_dynamic_shared_size_bytes = shared = layout.shared_bytes
    function.preferred_shared_memory_carveout = 100  # per cent
    arguments, grid = (pixels, taps, addend, dx, layout.struct()), layout.grid

    def run(_mapped: Any = (dy, weight)) -> None:  # the arrays must live as long as their maps
        function(grid, (THREADS,), arguments, shared_mem=shared)

    return run
