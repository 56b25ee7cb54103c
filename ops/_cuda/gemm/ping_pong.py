"""Ping-pong products of 16-bit matrices on Hopper: one warpgroup multiplies while the other writes its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.gemm.hopper import DEEP, DTYPES, LARGEST_BLOCK, VECTOR, hopper_fits
from opgauge.ops._cuda.source import DIVISOR, CudaSource, divisor, multiprocessors, widest_vector
from opgauge.ops._cuda.tensor_map import tensor_map

if TYPE_CHECKING:
    from opgauge.ops._cuda.gemm.gemm import Matrix

LINE = 2 * DEEP
ALIGNMENT = 2048
"""Bytes of shared memory to align swizzled tiles to 1024, and for barriers."""
OTHERS = 12 * DEEP * LINE
"""Bytes of shared memory for stages and results."""
LONGEST = 512
"""Maximum depth, by the number of barriers."""
MOST_AHEAD = 24 << 20
"""Maximum bytes of an addend that is prefetched into L2 at once."""
KEPT = 4
"""64-channel slabs of the filter that are resident in shared memory."""
WIDTHS = {False: (8, 4), True: (8,)}
"""Access widths in elements, by whether channels are last."""
PING_PONG_THREADS, LAST_THREADS = 384, 288
FEWEST_TILES = 4
"""Minimum tiles per thread block; below it, loading the filter dominates."""
LEAST_DEPTH, LEAST_DEPTH_LAST = 256, 128
"""Minimum depth, for which a product hides the other warpgroup's stores: in general, and for channels_last without an
addend, with several tiles per block. On an H200 others change less than 1 %."""
_SIZE = np.dtype(
    [*((name, "i4") for name in ("pixels", "depth", "tiles", "step")), ("ahead", "u4"), ("resident", DIVISOR)]
)
"""Pixels and depth of one group of the convolution; tiles of 64 pixels; distance between a block's tiles; bytes of the
addend to prefetch into L2 at once; shares of 256 channels, all of them full."""
_GROUPS = ("filter_rows", "filter_columns", "dy_columns", "channels")
_NUMBERS = ("depth", "stages", "tiles", "step", *_GROUPS, "pixels", "pad")
_STATIONARY_SIZE = np.dtype([*((name, "i4") for name in _NUMBERS), ("pitch", "i8"), ("kept", DIVISOR), ("end", "V4")])


def _ping_pong_name(dtype: str, width: int, last: bool) -> str:  # noqa: FBT001
    return f"ping_pong<{dtype_info(dtype).ctype}, {width}, {str(last).lower()}>"


def _last_name(dtype: str) -> str:
    return f"b_stationary_shared<{dtype_info(dtype).ctype}>"


SOURCE = CudaSource(
    __file__,
    "ping_pong.cu",
    tuple(_ping_pong_name(dtype, width, last) for dtype in DTYPES for last in WIDTHS for width in WIDTHS[last]),
    structs={"PingPongSize": _SIZE},
)
LAST = CudaSource(__file__, "stationary_shared.cu", tuple(_last_name(dtype) for dtype in DTYPES))
"""Declared instances of ping_pong.cu and stationary_shared.cu (channels_last)."""


def ping_pong_fits(dtype: str, size: tuple[int, int, int], groups: int, *, last: bool, added: bool) -> bool:
    """Whether `KEPT` slabs of the filter can be resident on the current device, if vectors are possible."""
    channels, depth = size[1 if last else 0], size[2]
    if not hopper_fits(dtype, size) or depth % DEEP or depth > LONGEST or channels % (KEPT * DEEP):
        return False
    if _shared_bytes(depth) > LARGEST_BLOCK:
        return False
    if depth >= LEAST_DEPTH:
        return True
    if not last or added or depth < LEAST_DEPTH_LAST:
        return False
    _, tiles, step = _shares(channels, size[0], groups)
    return tiles >= FEWEST_TILES * step


def ping_pong(
    views: tuple[Any, Any, Any],
    arrays: tuple[Any, Any, Any, Any],
    size: tuple[int, int, int],
    *,
    width: int,
    groups: int,
    last: bool,
) -> Bound:
    """Like `persistent.persistent`, for products that `ping_pong_fits` accepts."""
    channels, pixels, depth = (size[1], size[0], size[2]) if last else size
    shares, tiles, step = _shares(channels, pixels, groups)
    function = SOURCE.function(_ping_pong_name(arrays[3].dtype.name, width, last))
    shared = _shared_bytes(depth)
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK  # for every depth: the function is shared
    numbers = np.array((pixels, depth, tiles, step, _ahead(arrays[2]), divisor(shares)), _SIZE)
    arguments = (*arrays, *views, numbers)
    return lambda: function((shares * step, groups), (PING_PONG_THREADS,), arguments, shared_mem=shared)


def b_stationary_shared(matrices: tuple[Matrix, Matrix, Matrix], size: tuple[int, int, int], groups: int) -> Bound:
    """One launch, with 16-byte accesses; matrices are dy (K-major), the filter and d."""
    a, b, d = matrices
    pixels, channels, depth = size
    shares, tiles, step = _shares(channels, pixels, groups)
    places = (*divmod(b.group, b.stride), a.group, d.group)
    numbers = (depth, depth // DEEP, tiles, step, *places, pixels, 0, d.stride)
    mapped = ((b.array, b.stride), (a.array, a.stride))
    maps = [tensor_map(array, stride, DEEP) for array, stride in mapped]
    function = LAST.function(_last_name(d.array.dtype.name))
    shared = _shared_bytes(depth)
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK
    arguments = (*maps, d.array, np.array((*numbers, divisor(shares), b""), _STATIONARY_SIZE))

    def run(_mapped: Any = mapped) -> None:  # the arrays must live as long as their maps
        function((shares * step, groups), (LAST_THREADS,), arguments, shared_mem=shared)

    return run


def _shares(channels: int, pixels: int, groups: int) -> tuple[int, int, int]:
    """Shares of channels, tiles of pixels, and blocks per share."""
    shares, tiles = channels // (DEEP * KEPT), -(-pixels // DEEP)
    return shares, tiles, min(tiles, max(multiprocessors() // (shares * groups), 1))


def _ahead(addend: Any) -> int:
    """Bytes of an addend to prefetch into L2 at once; 0 if L2 is too small."""
    if addend is None or addend.nbytes > MOST_AHEAD or addend.size % VECTOR or widest_vector(2, addend) < VECTOR:
        return 0
    return int(addend.nbytes)


def _shared_bytes(depth: int) -> int:
    return ALIGNMENT + KEPT * depth * LINE + OTHERS
