"""Products of 16-bit matrices of short depth on Hopper where multiplying takes as long as writing: groups in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.gemm.hopper import DEEP, DTYPES, LARGEST_BLOCK, PACK, hopper_fits
from opgauge.ops._cuda.source import DIVISOR, Source, divisor, multiprocessors, widest_pack
from opgauge.ops._cuda.tensor_map import tensor_map

if TYPE_CHECKING:
    from opgauge.ops._cuda.gemm.gemm import Matrix

LINE = 2 * DEEP
ALIGNMENT = 2048
"""Bytes of shared memory for panels to be aligned to 1024, and for barriers."""
OTHERS = 12 * DEEP * LINE
"""Bytes of shared memory for stages and results."""
LONGEST = 512
"""Depth: barriers are for as many stages."""
MOST_AHEAD = 24 << 20
"""Bytes of an addend that comes into the L2 cache at once."""
KEPT = 4
"""64s of channels that a block keeps."""
WIDTHS = {False: (8, 4), True: (8,)}
"""Elements of one access to pixels that come last, and to channels."""
TURNS_THREADS, LAST_THREADS = 384, 288
FEWEST_TILES = 4
"""Of a block: of fewer, the filter is what the launch waits for."""
_DEPTH = declare(
    "gemm_turns.depth",
    256,
    (64, 128, 256, 1024),
    backend="cuda",
    ops=("conv_data_grad",),
    why="from which multiplying takes long enough for others to write meanwhile",
)
_DEPTH_LAST = declare(
    "gemm_turns.depth_of_channels_last",
    128,
    (64, 128, 256, 1024),
    backend="cuda",
    ops=("conv_data_grad",),
    why="the same where channels come last, there is no addend and blocks have several tiles",
)
_TURNS = np.dtype([*((name, "i4") for name in ("pixels", "depth", "tiles", "step", "ahead")), ("kept", DIVISOR)])
_GROUPS = ("filter_rows", "filter_columns", "dy_columns", "channels")
_NUMBERS = ("depth", "stages", "tiles", "step", *_GROUPS, "pixels", "pad")
_LAST = np.dtype([*((name, "i4") for name in _NUMBERS), ("pitch", "i8"), ("kept", DIVISOR), ("end", "V4")])


def _ping_pong_name(dtype: str, width: int, last: bool) -> str:  # noqa: FBT001
    return f"ping_pong<{dtype_info(dtype).ctype}, {width}, {str(last).lower()}>"


def _last_name(dtype: str) -> str:
    return f"b_stationary_shared<{dtype_info(dtype).ctype}>"


SOURCE = Source(
    __file__,
    "ping_pong.cu",
    tuple(_ping_pong_name(dtype, width, last) for dtype in DTYPES for last in WIDTHS for width in WIDTHS[last]),
)
LAST = Source(__file__, "stationary_shared.cu", tuple(_last_name(dtype) for dtype in DTYPES))


def ping_pong_fits(dtype: str, size: tuple[int, int, int], groups: int, *, last: bool, added: bool) -> bool:
    """Whether `KEPT` 64s of channels are kept on the current device, where packs allow it."""
    channels, depth = size[1 if last else 0], size[2]
    if not hopper_fits(dtype, size) or depth % DEEP or depth > LONGEST or channels % (KEPT * DEEP):
        return False
    if _shared_bytes(depth) > LARGEST_BLOCK:
        return False
    if depth >= _DEPTH.value():
        return True
    if not last or added or depth < _DEPTH_LAST.value():
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
    """As `persistent.sweep`, where `keeps` says so."""
    channels, pixels, depth = (size[1], size[0], size[2]) if last else size
    shares, tiles, step = _shares(channels, pixels, groups)
    function = SOURCE.function(_ping_pong_name(arrays[3].dtype.name, width, last))
    shared = _shared_bytes(depth)
    function.max_dynamic_shared_size_bytes = LARGEST_BLOCK  # of any depth: one function serves them all
    numbers = np.array((pixels, depth, tiles, step, _ahead(arrays[2]), divisor(shares)), _TURNS)
    arguments = (*arrays, *views, numbers)
    return lambda: function((shares * step, groups), (TURNS_THREADS,), arguments, shared_mem=shared)


def b_stationary_shared(matrices: tuple[Matrix, Matrix, Matrix], size: tuple[int, int, int], groups: int) -> Bound:
    """One launch, all in packs of 16 bytes; matrices are dy, along the depth, the filter and d."""
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
    arguments = (*maps, d.array, np.array((*numbers, divisor(shares), b""), _LAST))

    def run(_mapped: Any = mapped) -> None:  # which must live as long as their maps
        function((shares * step, groups), (LAST_THREADS,), arguments, shared_mem=shared)

    return run


def _shares(channels: int, pixels: int, groups: int) -> tuple[int, int, int]:
    """Shares of channels, tiles of pixels, and blocks of each share."""
    shares, tiles = channels // (DEEP * KEPT), -(-pixels // DEEP)
    return shares, tiles, min(tiles, max(multiprocessors() // (shares * groups), 1))


def _ahead(addend: Any) -> int:
    """Bytes of an addend that come into the L2 cache at once: of one that has room there."""
    if addend is None or addend.nbytes > MOST_AHEAD or addend.size % PACK or widest_pack(2, addend) < PACK:
        return 0
    return int(addend.nbytes)


def _shared_bytes(depth: int) -> int:
    return ALIGNMENT + KEPT * depth * LINE + OTHERS
