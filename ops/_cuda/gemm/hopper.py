"""Choice among the templates for 16-bit types on Hopper, by wgmma: tiles, stages and grids of each.

All but `persistent_wgmma` have a filter of a convolution as one factor: b if channels are last, else a.
"""

from __future__ import annotations

from opgauge.ops._cuda.gemm.problem import SPLITS, TRANSPOSE, GemmConfig, GemmProblem, Matrix, expression
from opgauge.ops._cuda.source import HOPPER, Gpu

HALF_DTYPES = ("float16", "bfloat16")
DEEP, VECTOR, ALIGNED = 64, 8, 16
"""Depth of a stage on Hopper, and rows or columns of a slab; elements of an access, and its bytes."""
SLAB_BYTES = DEEP * DEEP * 2
LARGEST_BLOCK, MULTIPROCESSOR, RESERVED = 227 * 1024, 228 * 1024, 1024
"""Shared memory per block and per multiprocessor, and the driver's reserve per block, in bytes."""
LARGEST_INDEX, LEAST = 2**31 - 1 - 4 * DEEP, 64
"""Maximum size; minimum rows, columns and depth: smaller products do not fill the matrix units."""
LONGEST = 512
"""Maximum depth of a filter in shared memory, for whose stages there are barriers."""
KEPT = 4
"""64-channel slabs of the filter that `ping_pong` and `b_stationary_shared` have in shared memory."""
FEWEST_TILES = 4
"""Minimum tiles per persistent block; below it, loading the filter dominates."""

WGMMA_COLUMNS = 128
WGMMA_STAGES = {1: 2, 2: 3}
"""Stages of `persistent_wgmma`, by 64-row slabs per block; with four slabs, too few blocks are in flight."""

PERSISTENT_STAGES, STAGING = 3, 2048
"""Stages of `persistent`, and bytes of shared memory per warp for staging results."""
PERSISTENT_TILES = {False: ((1, 2), (2, 2), (4, 2)), True: ((2, 1), (2, 2), (4, 2))}
"""Tiles of `persistent` in 64-row and 64-column slabs, by whether channels are last."""
BLOCKS = {(1, 2): 4, (2, 1): 3, (2, 2): 2, (4, 2): 1}
"""Blocks per multiprocessor that registers allow, by tile."""
FILTER_FIRST = {False: ("a", "b", "addend", "target"), True: ("b", "a", "addend", "target")}
"""Order of arrays of `persistent` and `ping_pong`, by whether channels are last."""
WIDTHS = {False: (8, 4), True: (8,)}
"""Access widths of `persistent` and `ping_pong` in elements, by whether channels are last."""
TALL_DEPTH = 256
"""Minimum depth for tiles of 256 rows, whose results few warps write. On an H200 others change less than 1 %."""

PING_PONG_THREADS, PING_PONG_STAGES = 384, 4
LAST_THREADS, LAST_STAGES = 288, 8
PING_PONG_DEPTH, LAST_DEPTH = 256, 128
"""Minimum depth, for which a product hides the other warpgroup's stores: in general, and for channels_last without an
addend, with several tiles per block. On an H200 others change less than 1 %."""
MOST_AHEAD = 24 << 20
"""Maximum bytes of an addend that is prefetched into L2 at once."""

STRIP_THREADS, STRIP_STAGES = 288, 24
"""Threads of `a_stationary_registers`, and 64-channel slabs of its ring."""
STRIP_CHANNELS, STRIP_SLABS = 128, (1, 2, 3, 4)
"""Channels per block; depths in slabs for which the filter fits the registers."""
WARP_ROWS, SENT_MEGABYTES = 16, 32
"""Rows of a warp; maximum size of results stored by TMA: larger ones exceed L2 and are streamed. 16 is as fast."""

COOPERATIVE_GROUPS, COOPERATIVE_THREADS, RING_BYTES = 2, 384, 226 * 1024 - 256
"""Consumer warpgroups and threads of `cooperative`, and bytes of its stages."""
COOPERATIVE_TILES = {True: ((1, 208), (2, 192)), False: ((1, 208),)}
"""(64-channel slabs per warpgroup, pixels) of a tile, by whether channels are last."""
COOPERATIVE_DEPTH = 256
"""Minimum depth: below it, products take too little time to hide the loads and stores. 512 is as fast on an H200."""
FEWEST_PIXELS, MOST_IMAGES = 32, 65535
"""Minimum pixels per image, as smaller ones are stored in too many pieces; maximum images, a limit of the grid."""


def select_hopper(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """The fastest template for `problem`; None if none supports it."""
    if problem.dtype not in HALF_DTYPES or not problem.is_plain or problem.workspace == SPLITS:
        return None
    if gpu.architecture != HOPPER or min(problem.size) < LEAST or max(problem.size) > LARGEST_INDEX:
        return None
    return next((found for choice in CHOICES if (found := choice(problem, gpu))), None)


def _sides(problem: GemmProblem) -> tuple[int, int, int]:
    """Channels, pixels and depth of a convolution: pixels are rows if channels are last, else columns."""
    rows, columns, depth = problem.size
    return (columns, rows, depth) if problem.a.k_major else (rows, columns, depth)


def _filter_group(filter: Matrix) -> dict[str, int]:
    """Strides of a tensor map's coordinates to the next group of the convolution."""
    return dict(zip(("filter_rows", "filter_columns"), divmod(filter.group, filter.stride), strict=True))


def _blocks_each(tiles: int, shares: int, problem: GemmProblem, gpu: Gpu) -> int:
    """Persistent blocks, at most one per multiprocessor, for each of `shares` shares of the channels."""
    return min(tiles, max(gpu.multiprocessors // (shares * problem.groups), 1))


def _transposed(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """Images of b are transposed first; a tile then consists of whole images."""
    (channels, columns, depth), pixels, tile = problem.size, problem.b.post, COOPERATIVE_TILES[False][0]
    if problem.workspace != TRANSPOSE or not FEWEST_PIXELS <= pixels <= tile[1] or columns // pixels > MOST_IMAGES:
        return None
    each, a = tile[1] // pixels, problem.a
    aligned = min(problem.alignment) >= ALIGNED and a.stride % VECTOR == a.group % VECTOR == 0
    if not aligned or each * pixels * 5 < tile[1] * 4 or not _takes_cooperative(channels, depth):
        return None
    return None if _fits_ping_pong(problem, gpu) else _cooperative_config(problem, gpu, tile, pixels)


def _a_stationary_registers(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """Channels first, a short depth: strips of 64 pixels of an image."""
    (channels, columns, depth), a, b, d = problem.size, problem.a, problem.b, problem.d
    pixels, slabs = b.post, depth // DEEP
    if problem.added or a.k_major or channels % STRIP_CHANNELS or depth % DEEP or slabs not in STRIP_SLABS:
        return None
    strips = -(-pixels // DEEP)
    if not pixels or not pixels == b.stride == d.stride == d.post or pixels * 5 < strips * DEEP * 4:
        return None
    shares, tiles = channels // STRIP_CHANNELS, columns // pixels * strips
    step = _blocks_each(tiles, shares, problem, gpu)
    aligned = min(problem.alignment[:3]) >= ALIGNED and not any(at % VECTOR for at in (a.stride, a.group, pixels))
    if tiles < FEWEST_TILES * step or not aligned:
        return None
    sent = 2 * problem.groups * channels * columns >> 20 <= SENT_MEGABYTES
    return GemmConfig(
        expression("a_stationary_registers", problem.dtype, slabs, sent),
        (STRIP_CHANNELS, DEEP),
        STRIP_STAGES,
        (shares * step, problem.groups),
        STRIP_THREADS,
        LARGEST_BLOCK,
        {
            "strips": tiles,
            "step": step,
            **_filter_group(a),
            "dy_rows": b.group // pixels,
            "channels": d.group // pixels,
            "pixels": pixels,
            "image": d.image,
            "each": strips,
            "resident": shares,
        },
        "the filter fits the registers of persistent blocks",
        ("target",),
        (
            ("a", a.stride, DEEP, 0),
            ("b", pixels, DEEP, b.image // pixels),
            ("target", pixels, WARP_ROWS, d.image // pixels),
        ),
    )


def _takes_cooperative(channels: int, depth: int) -> bool:
    return depth % DEEP == channels % (DEEP * COOPERATIVE_GROUPS) == 0 and depth >= COOPERATIVE_DEPTH


def _cooperative(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """Channels last: large tiles for depths of which no filter is resident, and for sums of one tile each."""
    channels, pixels, depth = _sides(problem)
    if not _is_last(problem) or not problem.allows((VECTOR,) * 3) or not _takes_cooperative(channels, depth):
        return None

    def waves(tile: tuple[int, int]) -> int:
        return -(-(channels // (DEEP * COOPERATIVE_GROUPS * tile[0]) * -(-pixels // tile[1])) // gpu.multiprocessors)

    fitting = [tile for tile in COOPERATIVE_TILES[True] if channels % (DEEP * COOPERATIVE_GROUPS * tile[0]) == 0]
    tile = min(fitting, key=lambda tile: waves(tile) * tile[0] * tile[1])
    if _fits_ping_pong(problem, gpu) and not (problem.added and problem.groups * waves(tile) == 1):
        return None
    return _cooperative_config(problem, gpu, tile, 0)


def _cooperative_config(problem: GemmProblem, gpu: Gpu, tile: tuple[int, int], image: int) -> GemmConfig:
    """Two warpgroups share the channels of a tile. image: pixels of a transposed image of b, 0 if channels are last."""
    channels, pixels, depth = _sides(problem)
    b, d, groups, width = problem.b, problem.d, problem.groups, DEEP * COOPERATIVE_GROUPS * tile[0]
    each, images = (tile[1] // image, pixels // image) if image else (0, 0)
    shares = channels // width
    count = shares * (-(-images // each) if image else -(-pixels // tile[1]))
    weight, dy = (problem.a, b) if image else (b, problem.a)
    line, dy_columns = (dy.image // image, dy.group // image) if image else (dy.stride, dy.group)
    more = "addend" if problem.added else "target"
    sent = DEEP if tile[1] % DEEP == 0 else 16
    loaded = ("transposed" if image else "a", line)
    stored = (loaded, loaded) if image else ((more, d.stride), ("target", d.stride))  # the former are not read
    filter_map = ("a" if image else "b", weight.stride, DEEP, 0)
    boxes = ((*loaded, tile[1], 0), (*stored[0], tile[1], 0), (*stored[1], sent, 0))
    return GemmConfig(
        expression("cooperative", problem.dtype, not image, *tile),
        (width, each * image) if image else (tile[1], width),
        RING_BYTES // (SLAB_BYTES * COOPERATIVE_GROUPS * tile[0] + 2 * DEEP * tile[1]),
        (min(count, max(gpu.multiprocessors // groups, 1)), groups),
        COOPERATIVE_THREADS,
        LARGEST_BLOCK,
        {
            "stages": depth // DEEP,
            "pixels": image or pixels,
            "added": problem.added,
            **_filter_group(weight),
            "dy_columns": dy_columns,
            "channels": d.group // max(image, 1),
            "count": count,
            "images": images,
            "each": each,
            "pitch": d.image if image else d.stride,
            "shares": shares,
            "by_pixels": max(image, 1),
        },
        "small images, transposed: several per tile" if image else "a deep product, or a sum of one tile per block",
        (more, "target"),
        (filter_map, *boxes),
        extra_grid=(line // DEEP, images) if image else (),
        workspace_bytes=2 * groups * pixels * depth * bool(image),
    )


def _is_last(problem: GemmProblem) -> bool:
    """Whether channels are last: rows are pixels, and d is a single image."""
    return problem.a.k_major and not problem.b.post and not problem.d.post


def _width(problem: GemmProblem) -> int:
    """Elements per access to pixels; 0 if the templates with a resident filter do not support the alignment."""
    if problem.a.k_major and not _is_last(problem):
        return 0
    widths = WIDTHS[problem.a.k_major]
    return next((width for width in widths if problem.allows((VECTOR, width, width))), 0)


def _resident_bytes(depth: int) -> int:
    """Shared memory of `ping_pong` and `b_stationary_shared`: barriers, the filter, 12 slabs of stages and results."""
    return 2048 + (KEPT * depth // DEEP + 12) * SLAB_BYTES


def _fits_ping_pong(problem: GemmProblem, gpu: Gpu) -> bool:
    """Whether `KEPT` slabs of the filter can be resident and pay, if vectors are possible."""
    channels, pixels, depth = _sides(problem)
    if depth % DEEP or depth > LONGEST or channels % (KEPT * DEEP) or _resident_bytes(depth) > LARGEST_BLOCK:
        return False
    if depth >= PING_PONG_DEPTH:
        return True
    if not problem.a.k_major or problem.added or depth < LAST_DEPTH:
        return False
    tiles = -(-pixels // DEEP)
    return tiles >= FEWEST_TILES * _blocks_each(tiles, channels // (DEEP * KEPT), problem, gpu)


def _ping_pong(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """One warpgroup multiplies while the other stores; with channels last and no addend, all loads are by TMA."""
    (channels, pixels, depth), width = _sides(problem), _width(problem)
    if not width or not _fits_ping_pong(problem, gpu):
        return None
    a, b, d, last = problem.a, problem.b, problem.d, problem.a.k_major
    shares, tiles = channels // (DEEP * KEPT), -(-pixels // DEEP)
    step = _blocks_each(tiles, shares, problem, gpu)
    grid, shared = (shares * step, problem.groups), _resident_bytes(depth)
    numbers = {"pixels": pixels, "depth": depth, "tiles": tiles, "step": step, "resident": shares}
    if last and not problem.added:
        more = {**_filter_group(b), "dy_columns": a.group, "channels": d.group}
        return GemmConfig(
            expression("b_stationary_shared", problem.dtype),
            (DEEP, DEEP * KEPT),
            LAST_STAGES,
            grid,
            LAST_THREADS,
            shared,
            {**numbers, **more, "stages": depth // DEEP, "pitch": d.stride},
            "256 channels of the filter stay in shared memory, and stores overlap products",
            ("target",),
            (("b", b.stride, DEEP, 0), ("a", a.stride, DEEP, 0)),
        )
    elements = problem.groups * channels * pixels
    ahead = problem.added and 2 * elements <= MOST_AHEAD and elements % VECTOR == 0
    return GemmConfig(
        expression("ping_pong", problem.dtype, width, last),
        (DEEP, DEEP * KEPT) if last else (DEEP * KEPT, DEEP),
        PING_PONG_STAGES,
        grid,
        PING_PONG_THREADS,
        shared,
        {**numbers, "ahead": 2 * elements * (ahead and problem.alignment.addend >= ALIGNED)},
        "256 channels of the filter stay in shared memory, and stores overlap products",
        FILTER_FIRST[last],
    )


def _persistent(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """The filter stays in shared memory; d's columns are stationary if channels are last, else its rows."""
    (channels, pixels, depth), width, last = _sides(problem), _width(problem), problem.a.k_major
    if not width or channels % DEEP or depth % DEEP or depth > LONGEST:
        return None
    tile = _persistent_tile(channels, depth, last=last)
    panels, across = (tile[1], tile[0]) if last else tile
    shares, tiles = channels // (DEEP * panels), -(-pixels // (DEEP * across))
    slots = _slots(tile, depth, last=last) if problem.added else 1
    shared = _persistent_bytes(tile, depth, slots, last=last)
    blocks = min(BLOCKS[tile], MULTIPROCESSOR // (shared + RESERVED)) * gpu.multiprocessors
    step = min(tiles, max(blocks // (shares * problem.groups), 1))
    return GemmConfig(
        expression("persistent", problem.dtype, *tile, width, last),
        (DEEP * tile[0], DEEP * tile[1]),
        PERSISTENT_STAGES,
        (shares * step, problem.groups),
        128 * tile[0] + (32 if tile[0] == 1 else 64),
        shared,
        {"streamed": pixels, "depth": depth, "tiles": tiles, "step": step, "slots": slots, "resident": shares},
        "a short depth: the filter stays in shared memory of persistent blocks",
        FILTER_FIRST[last],
    )


def _persistent_tile(channels: int, depth: int, *, last: bool) -> tuple[int, int]:
    """64-row and 64-column slabs of a block's tile, limited by the stationary factor's size."""
    wide = 2 if not last or channels % (2 * DEEP) == 0 else 1
    tall = wide == 2 and (last or channels % (4 * DEEP) == 0) and depth >= TALL_DEPTH
    if tall and _persistent_bytes((4, 2), depth, 1, last=last) <= LARGEST_BLOCK:
        return 4, 2
    return 1 if not last and channels % (2 * DEEP) else 2, wide


def _slots(tile: tuple[int, int], depth: int, *, last: bool) -> int:
    """Slabs of the addend that are prefetched: those of a whole tile, if shared memory allows."""
    return tile[1] if _persistent_bytes(tile, depth, tile[1], last=last) <= LARGEST_BLOCK else 1


def _persistent_bytes(tile: tuple[int, int], depth: int, slots: int, *, last: bool) -> int:
    """Shared memory of a block: barriers, the filter, stages, and `slots` slabs of results or addends per warp."""
    panels, across = (tile[1], tile[0]) if last else tile
    kept, ring = panels * depth * DEEP * 2, PERSISTENT_STAGES * across * SLAB_BYTES
    return 1024 + kept + ring + 4 * tile[0] * slots * STAGING


def _persistent_wgmma(problem: GemmProblem, gpu: Gpu) -> GemmConfig | None:
    """Tiles of any depth, if there are enough of them: else blocks start too late."""
    (rows, columns, depth), groups = problem.size, problem.groups
    if not problem.allows((VECTOR,) * 3) or not (problem.added or problem.tiles >= gpu.multiprocessors):
        return None
    panels = 1 if rows <= DEEP else 2
    stages, row_tiles = WGMMA_STAGES[panels], -(-rows // (DEEP * panels))
    count = row_tiles * -(-columns // WGMMA_COLUMNS)
    return GemmConfig(
        expression("persistent_wgmma", problem.dtype, problem.a.k_major, panels),
        (DEEP * panels, WGMMA_COLUMNS),
        stages,
        (min(count, 4 // panels * gpu.multiprocessors), groups),
        128 * panels,
        stages * (panels + 2) * SLAB_BYTES + 1024,
        {"rows": rows, "columns": columns, "depth": depth, "count": count, "row_tiles": row_tiles},
        "large enough for wgmma, of a depth that no resident filter supports",
    )


CHOICES = (_transposed, _a_stationary_registers, _cooperative, _ping_pong, _persistent, _persistent_wgmma)
"""Templates for 16-bit types on Hopper, the fastest first."""
