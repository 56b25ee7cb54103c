"""Deep products of 16-bit matrices on Hopper: large tiles by TMA and wgmma, at best one per multiprocessor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.gemm.hopper import DEEP, DTYPES, LARGEST_BLOCK, hopper_fits
from opgauge.ops._cuda.source import DIVISOR, CudaSource, divisor, multiprocessors
from opgauge.ops._cuda.tensor_map import tensor_map

if TYPE_CHECKING:
    from opgauge.ops._cuda.gemm.gemm import Matrix

GROUPS, THREADS, TRANSPOSE_THREADS = 2, 384, 256
FEWEST, MOST_IMAGES = 32, 65535
"""Minimum pixels per image, as smaller ones are stored in too many pieces; maximum images, a limit of the grid."""
SHAPES = {True: ((1, 208), (2, 192)), False: ((1, 208),)}
"""(64-channel slabs per warpgroup, pixels) of a tile, by whether channels are last."""
LEAST_DEPTH = 256
"""Minimum depth: below it, products take too little time to hide the loads and stores. 512 is as fast on an H200."""
_NUMBERS = ("stages", "pixels", "added", "filter_rows", "filter_columns", "dy_columns", "channels", "count")
_FIELDS = [*((name, "i4") for name in (*_NUMBERS, "images", "each")), ("pitch", "i8")]
_TILES = np.dtype([*_FIELDS, ("shares", DIVISOR), ("by_pixels", DIVISOR)])
"""Stages of the depth; pixels of an image; whether there is an addend; strides to the next group of the convolution;
channels of d; tiles; images, and images per tile; elements to d's next pixel or image; shares of channels."""


def _name(dtype: str, last: bool, shape: tuple[int, int]) -> str:  # noqa: FBT001
    return f"cooperative<{dtype_info(dtype).ctype}, {str(last).lower()}, {shape[0]}, {shape[1]}>"


def _transpose_name(dtype: str) -> str:
    return f"transpose_images<{dtype_info(dtype).ctype}>"


SOURCE = CudaSource(
    __file__,
    "cooperative.cu",
    tuple(
        name
        for dtype in DTYPES
        for name in (_transpose_name(dtype), *(_name(dtype, last, shape) for last in SHAPES for shape in SHAPES[last]))
    ),
    structs={"Tiles": _TILES},
)
"""Declared instances of cooperative.cu."""


def cooperative_pays(dtype: str, size: tuple[int, int, int], groups: int, *, only: bool, added: bool) -> bool:
    """Whether `cooperative` is the better choice on the current device, if 16-byte vectors are possible.

    only: no other kernel supports such depths. added: there is an addend.
    """
    if not _takes(dtype, size[1], size):
        return False
    return only or (added and groups * _waves(_shape(size), size) == 1)


def _takes(dtype: str, channels: int, size: tuple[int, int, int]) -> bool:
    if not hopper_fits(dtype, size) or size[2] % DEEP or channels % (DEEP * GROUPS):
        return False
    return size[2] >= LEAST_DEPTH


def cooperative_images_fit(dtype: str, size: tuple[int, int, int], pixels: int) -> bool:
    """Whether `cooperative_images` pays for images of that many pixels on the current device: they fill tiles."""
    most = SHAPES[False][0][1]
    if not FEWEST <= pixels <= most or size[1] // pixels > MOST_IMAGES:
        return False
    return _takes(dtype, size[0], size) and most // pixels * pixels * 5 >= most * 4


def cooperative(matrices: tuple[Matrix, Matrix, Matrix], addend: Any, size: tuple[int, int, int], groups: int) -> Bound:
    """One launch, with 16-byte accesses; matrices are dy (K-major), the filter and d."""
    return _multiply(matrices, addend, size, groups, _shape(size), 0)


def cooperative_images(
    matrices: tuple[Matrix, Matrix, Matrix], addend: Any, size: tuple[int, int, int], groups: int, workspace: Any
) -> Bound:
    """Two launches; matrices are the filter (16-byte vectors), dy and d; the workspace is as large as dy.

    Images of dy are transposed first, as for channels_last.
    """
    weight, dy, d = matrices
    pixels, images = dy.post, size[1] // dy.post
    depth = dy.image // pixels
    transposed = workspace.view(dy.array.dtype)[: dy.array.size]
    turn = SOURCE.function(_transpose_name(dy.array.dtype.name))
    numbers = (np.int32(depth), np.int32(pixels))
    factor = replace(dy, array=transposed, stride=depth, image=0, post=0, group=dy.group // pixels, along=True)
    multiply = _multiply((factor, weight, d), addend, (size[1], size[0], size[2]), groups, SHAPES[False][0], pixels)

    def run() -> None:
        turn((depth // DEEP, images), (TRANSPOSE_THREADS,), (dy.array, transposed, *numbers))
        multiply()

    return run


def _multiply(
    matrices: tuple[Matrix, Matrix, Matrix],
    addend: Any,
    size: tuple[int, int, int],
    groups: int,
    shape: tuple[int, int],
    of_image: int,
) -> Bound:
    """Launch of the kernel; of_image: pixels, 0 for channels_last."""
    a, b, d = matrices
    pixels, channels, depth = size
    each = shape[1] // of_image if of_image else 0
    images = pixels // of_image if of_image else 0
    shares = channels // (DEEP * GROUPS * shape[0])
    count = shares * (-(-images // each) if of_image else -(-pixels // shape[1]))
    places = (*divmod(b.group, b.stride), a.group, d.group // max(of_image, 1))
    numbers = (depth // DEEP, of_image or pixels, int(addend is not None), *places, count, images, each)
    more = d.array if addend is None else addend
    ends = ((a.array, a), (a.array, a)) if of_image else ((more, d), (d.array, d))  # the former are not read
    sent = DEEP if shape[1] % DEEP == 0 else 16
    lengths = (DEEP, shape[1], shape[1], sent)
    mapped = tuple(
        (array, matrix.stride, lines)
        for (array, matrix), lines in zip(((b.array, b), (a.array, a), *ends), lengths, strict=True)
    )
    maps = [tensor_map(*one) for one in mapped]
    function = SOURCE.function(_name(d.array.dtype.name, not of_image, shape))
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK
    pitch = d.image if of_image else d.stride
    dividing = (divisor(shares), divisor(max(of_image, 1)))
    arguments = (*maps, more, d.array, np.array((*numbers, pitch, *dividing), _TILES))
    grid = (min(count, max(multiprocessors() // groups, 1)), groups)

    def run(_mapped: Any = mapped) -> None:  # the arrays must live as long as their maps
        function(grid, (THREADS,), arguments, shared_mem=LARGEST_BLOCK)

    return run


def _shape(size: tuple[int, int, int]) -> tuple[int, int]:
    """The tile shape that minimizes the time of all waves."""
    fitting = [shape for shape in SHAPES[True] if size[1] % (DEEP * GROUPS * shape[0]) == 0]
    return min(fitting, key=lambda shape: _waves(shape, size) * shape[0] * shape[1])


def _waves(shape: tuple[int, int], size: tuple[int, int, int]) -> int:
    tiles = size[1] // (DEEP * GROUPS * shape[0]) * -(-size[0] // shape[1])
    return -(-tiles // multiprocessors())
