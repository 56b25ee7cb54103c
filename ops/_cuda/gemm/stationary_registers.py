"""Products of 16-bit matrices of short depth on Hopper, channels first: the filter is resident in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.gemm.hopper import DEEP, DTYPES, LARGEST_BLOCK, VECTOR, hopper_fits
from opgauge.ops._cuda.source import DIVISOR, CudaSource, divisor, flag, multiprocessors, widest_vector
from opgauge.ops._cuda.tensor_map import tensor_map

if TYPE_CHECKING:
    from opgauge.ops._cuda.gemm.gemm import Matrix

THREADS, WARP_ROWS = 288, 16
CHANNELS, PIXELS = 128, 64
"""Channels per block, pixels per strip."""
STAGES = (1, 2, 3, 4)
"""Depths, in slabs of 64, for which the filter fits the registers."""
FEWEST = 4
"""Minimum strips per thread block; below it, loading the filter dominates."""
SENT_MEGABYTES = 32
"""Maximum size of results stored by TMA; larger ones exceed L2 and are streamed. 16 is as fast on an H200."""
_PLACES = ("strips", "step", "filter_rows", "filter_columns", "dy_rows", "channels", "pixels", "pad")
_STRIPS = np.dtype([*((name, "i4") for name in _PLACES), ("image", "i8"), ("each", DIVISOR), ("resident", DIVISOR)])
"""Strips of all images; distance between a block's strips; strides to the next group of the convolution; channels of d;
pixels of an image; elements between images of d; strips of an image; shares of 128 channels."""


def _name(dtype: str, stages: int, sent: bool) -> str:  # noqa: FBT001
    return f"a_stationary_registers<{dtype_info(dtype).ctype}, {stages}, {flag(sent)}>"


SOURCE = CudaSource(
    __file__,
    "stationary_registers.cu",
    tuple(_name(dtype, stages, sent) for dtype in DTYPES for stages in STAGES for sent in (False, True)),
    structs={"Strips": _STRIPS},
)
"""Declared instances of stationary_registers.cu."""


def a_stationary_registers_fits(
    dtype: str, matrices: tuple[Matrix, Matrix, Matrix], size: tuple[int, int, int], groups: int
) -> bool:
    """Whether `a_stationary_registers` supports the product of the filter and dy to d on the current device."""
    a, b, d = matrices
    channels, _, depth = size
    if (
        not hopper_fits(dtype, size)
        or a.along
        or channels % CHANNELS
        or depth not in [DEEP * stages for stages in STAGES]
    ):
        return False
    pixels = b.post
    if not pixels or not pixels == b.stride == d.stride == d.post or pixels * 5 < -(-pixels // PIXELS) * PIXELS * 4:
        return False
    _, strips, step = _shares(size, pixels, groups)
    return strips >= FEWEST * step and widest_vector(2, a.array, b.array, d.array, a.stride, a.group, pixels) == VECTOR


def a_stationary_registers(matrices: tuple[Matrix, Matrix, Matrix], size: tuple[int, int, int], groups: int) -> Bound:
    """One launch, with 16-byte accesses; matrices are the filter, dy and d."""
    a, b, d = matrices
    pixels, sent = b.post, 2 * groups * size[0] * size[1] >> 20 <= SENT_MEGABYTES
    shares, strips, step = _shares(size, pixels, groups)
    places = (*divmod(a.group, a.stride), b.group // pixels, d.group // pixels)
    numbers = (strips, step, *places, pixels, 0, d.image, divisor(-(-pixels // PIXELS)), divisor(shares))
    mapped = (a.array, b.array, d.array)
    maps = (
        tensor_map(a.array, a.stride, DEEP),
        tensor_map(b.array, pixels, DEEP, b.image // pixels),
        tensor_map(d.array, pixels, WARP_ROWS, d.image // pixels),
    )
    function = SOURCE.function(_name(d.array.dtype.name, size[2] // DEEP, sent))
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK
    arguments = (*maps, d.array, np.array(numbers, _STRIPS))

    def run(_mapped: Any = mapped) -> None:  # the arrays must live as long as their maps
        function((shares * step, groups), (THREADS,), arguments, shared_mem=LARGEST_BLOCK)

    return run


def _shares(size: tuple[int, int, int], pixels: int, groups: int) -> tuple[int, int, int]:
    """Shares of channels, strips of all images, and blocks per share."""
    shares, strips = size[0] // CHANNELS, size[1] // pixels * -(-pixels // PIXELS)
    return shares, strips, min(strips, max(multiprocessors() // (shares * groups), 1))
