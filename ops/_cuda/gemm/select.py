"""Choice of template, tile, stages and splits of a matrix product, without a GPU or arrays.

`select` returns a `GemmConfig`, which `launch` binds and `str` describes, with the reason.
"""

from __future__ import annotations

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.gemm.hopper import select_hopper
from opgauge.ops._cuda.gemm.problem import EXACT, SPLITS, TILE, GemmConfig, GemmProblem, expression
from opgauge.ops._cuda.source import Gpu

AMPERE = 80
DTYPES = ("float32", "float16", "bfloat16")
THREADS = 256
"""Threads per block of `gemm`, and of kernels that add up splits or transpose images."""
SMALL_TILE = 64
DEPTH, STAGES = 64, 3
"""Maximum depth per stage of `gemm`, and its stages in shared memory."""
_SPLIT_OPS = ("conv_data_grad", "deformable_conv", "deformable_conv_grad")
_WAVES = 2
"""Blocks per multiprocessor to reach by splits of a depth. On an H200 others change less than 1 %."""
_LEAST_SHARE = declare(
    "gemm.least_share",
    128,
    (128, 256, 512, 1024),
    backend="cuda",
    ops=_SPLIT_OPS,
    why="minimum depth per block: below it, the second launch costs more than the additional blocks save",
)
_SMALL_BELOW = declare(
    "gemm.small_below",
    1,
    (1, 2, 4, 8, 32),
    backend="cuda",
    ops=_SPLIT_OPS,
    why="blocks per multiprocessor below which 64 x 64 tiles, four times as many, balance the load better",
)


def supported(dtype: str, gpu: Gpu) -> bool:
    """Whether products of `dtype` are possible: some sm_8x lack the shared memory."""
    return dtype in DTYPES and gpu.architecture >= AMPERE and gpu.shared_memory_bytes >= _tile_bytes(TILE)


def workspace_bytes(problem: GemmProblem, gpu: Gpu) -> int:
    """Bytes of workspace for `problem`, if addresses are aligned; 0 if it is not supported."""
    return select(problem, gpu).workspace_bytes if supported(problem.dtype, gpu) else 0


def select(problem: GemmProblem, gpu: Gpu) -> GemmConfig:
    """Template and launch of `problem` on `gpu`, for which `supported` holds."""
    return select_hopper(problem, gpu) or _gemm(problem, gpu)


def small_widths(dtype: str, result: str) -> tuple[int, int, int]:
    """Access widths in elements for which small tiles are compiled."""
    return access_widths(dtype, result, (True, True))[0]


def _allows_small(problem: GemmProblem, *, partial: bool) -> bool:
    """Whether small tiles can compute `problem`; of 16 bits they store no partial sums."""
    plain = not problem.b.k_major and problem.parts == EXACT and (problem.dtype == "float32" or not partial)
    return plain and problem.allows(small_widths(problem.dtype, problem.result))


def _tile_bytes(tile: int) -> int:
    return STAGES * 2 * tile * (128 + 16)


def _splits(problem: GemmProblem, gpu: Gpu) -> tuple[int, int]:
    """Number of splits, limited by the device's resident blocks, and the depth of each."""
    depth, room = problem.size[2], _WAVES * gpu.multiprocessors // max(problem.tiles, 1)
    if problem.workspace != SPLITS:
        return 1, depth
    splits = 1
    if depth >= 2 * min(_LEAST_SHARE.candidates) and room > 1:  # else regardless of the parameter
        splits = max(1, min(problem.most_splits, room, depth // _LEAST_SHARE.value()))
    share = -(-depth // splits // DEPTH) * DEPTH
    return -(-depth // share), share


def access_widths(dtype: str, result: str, k_major: tuple[bool, bool]) -> list[tuple[int, int, int]]:
    """Elements of one access of `gemm` to a, b and the result, widest first."""
    full, out = 16 // dtype_info(dtype).itemsize, 16 // dtype_info(result).itemsize
    narrower = [width for width in (4, 2) if width < full]
    if k_major == (True, True):
        return [(full, full, out), *((width, width, out) for width in narrower), (1, 1, 1)]
    return [(full, full, out), *((full, width, width) for width in narrower), (full, 1, 1), (1, 1, 1)]


def _gemm(problem: GemmProblem, gpu: Gpu) -> GemmConfig:
    """Any product, by cp.async and mma; the depth may be split among blocks."""
    (rows, columns, depth), groups = problem.size, problem.groups
    splits, share = _splits(problem, gpu)
    partial, result = splits > 1, "float32" if splits > 1 else problem.result
    k_major = problem.a.k_major, problem.b.k_major
    blocks = splits * problem.tiles // gpu.multiprocessors + 1
    few = _allows_small(problem, partial=partial) and _SMALL_BELOW.covers(blocks)
    tile = SMALL_TILE if few else TILE
    possible = (each for each in access_widths(problem.dtype, result, k_major) if problem.allows(each, partial=partial))
    row_tiles, elements = -(-rows // tile), groups * rows * columns
    return GemmConfig(
        expression("gemm", problem.dtype, result, *k_major, *next(possible), problem.parts, tile),
        (tile, tile),
        STAGES,
        (row_tiles * -(-columns // tile), groups, splits),
        THREADS,
        _tile_bytes(tile),
        {"rows": rows, "columns": columns, "depth": depth, "share": share, "row_tiles": row_tiles},
        "few tiles: the depth is split among blocks"
        if partial
        else "small tiles fill the device"
        if few
        else "any product",
        splits=splits,
        extra_grid=(min(-(-elements // THREADS), 8 * gpu.multiprocessors),) if partial else (),
        workspace_bytes=4 * splits * elements * partial,
    )
