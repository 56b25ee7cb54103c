"""normalization on CUDA: one pass where a channel fits into a cluster's shared memory, two elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ops._core.cuda import Source, architecture, divisor, multiprocessors, pointers, shared_memory_bytes, widest_pack
from ops._core.dtype import FLOATS, dtype_info
from ops._core.kernel import Bound
from ops._core.op import Shapes
from ops._core.registry import kernel
from ops._core.tuning import Parameter, declare
from ops.normalization.op import NormalizationParams

THREADS = 256
GROUP = 8
LARGEST_SLICE_BYTES = 112 * 1024
STATIC_BYTES = 1024
"""Shared memory of a block beside its slice, rounded up."""
HOPPER = 90
CLUSTERS = (1, 2, 4, 8)
TICKET_BYTES = 4
MOMENTS = 3
COLUMN_LANES = 8
"""Threads side by side in a reduction of columns: with packs of 16 bytes they read one line."""


def _declare(name: str, default: int, candidates: tuple[int, ...], why: str) -> Parameter:
    ops = ("normalization", "residual_block", "resnet50_adds")
    return declare(f"normalization.{name}", default, candidates, backend="cuda", ops=ops, why=why)


_SLICE_BYTES = _declare(
    "slice_bytes",
    56 * 1024,
    tuple(size * 1024 for size in (28, 37, 56, 74, 112)),
    "shared memory of a block: four a multiprocessor load while others store, fewer need smaller clusters",
)
_LARGEST_CLUSTER = _declare(
    "largest_cluster",
    8,
    (1, 2, 4, 8),
    "blocks of a cluster that hold a channel: one pass over memory against waiting for each other",
)
_MOST_CHANNELS = _declare(
    "most_channels", GROUP, (1, 2, 4, 8), "small channels that one cluster takes: longer runs against fewer clusters"
)
_CLUSTERS = _declare(
    "clusters_per_multiprocessor", 4, (2, 4, 8), "clusters below which channels are not put together: idle bandwidth"
)
_REDUCE_BLOCKS = _declare(
    "reduce_blocks_per_multiprocessor",
    8,
    (4, 8, 16, 32),
    "blocks that share the statistics where one pass is not possible: bandwidth against partial moments",
)
_APPLY_BLOCKS = _declare(
    "apply_blocks_per_multiprocessor",
    8,
    (2, 4, 8, 16, 32),
    "blocks of the second pass: the end of a wave against the cost of a block",
)
_WIDTHS = {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}


def _expressions() -> tuple[str, ...]:
    found = []
    for dtype, widest in _WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        for width in (1, widest):
            found += [f"{name}<{ctype}, {width}>" for name in ("reduce_rows", "reduce_columns")]
            found += [f"{name}<{ctype}, {width}>" for name in ("apply_rows", "apply_columns")]
        found += [f"normalize_once<{ctype}, {widest}, {cluster}>" for cluster in CLUSTERS]
        found.append(f"normalize_once<{ctype}, 1, 1>")
    return tuple(found)


SOURCE = Source(__file__, "kernels.cu", _expressions())


@dataclass(frozen=True, slots=True)
class View:
    """x as (images, C, post)."""

    images: int
    channels: int
    post: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axis: int) -> View:
        """The view of `shape` with channel axis `axis`."""
        return cls(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))

    @property
    def splits(self) -> int:
        """Blocks that share the reduction of one channel, or of one block of columns."""
        return max(1, min(64, self.images))


def _workspace(shapes: Shapes, params: NormalizationParams) -> int:
    """Tickets, then partial moments."""
    view = View.of(shapes.inputs["x"].shape, params.axis)
    wide = dtype_info(shapes.inputs["gamma"].dtype).itemsize
    return _tickets_bytes(view) + MOMENTS * wide * view.channels * view.splits


def _tickets_bytes(view: View) -> int:
    return -(-TICKET_BYTES * view.channels // 256) * 256


def _plan_once(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
    """Channels and blocks of one cluster, or None where one pass is not possible."""
    channel_bytes = view.images * view.post * itemsize
    group = 1
    while group * view.post % width and group < GROUP:
        group *= 2
    if group * view.post % width or view.channels % group or view.post == 1:
        return None
    enough, most, slice_bytes = _CLUSTERS.value() * multiprocessors(), _MOST_CHANNELS.value(), _SLICE_BYTES.value()
    while (
        2 * group <= most
        and view.channels % (2 * group) == 0
        and view.channels // (2 * group) >= enough
        and 2 * group * channel_bytes <= slice_bytes // 2
    ):
        group *= 2
    room = shared_memory_bytes() - STATIC_BYTES
    for limit in (min(slice_bytes, room), min(LARGEST_SLICE_BYTES, room)):
        for cluster in CLUSTERS:
            images = -(-view.images // cluster)
            if cluster <= min(view.images, _LARGEST_CLUSTER.value()) and images * group * view.post * itemsize <= limit:
                return group, cluster
    return None


@kernel("normalization", "optimized", "cuda", FLOATS, prepare=True, workspace=_workspace)
def normalization(
    *,
    x: Any,
    gamma: Any,
    beta: Any,
    axis: int,
    epsilon: float,
    training: bool,
    momentum: float,
    out: dict[str, Any],
    workspace: Any,
    moving_mean: Any = None,
    moving_variance: Any = None,
    add_to_output: Any = None,
) -> Bound:
    """One launch in inference and where a channel fits into a cluster; statistics, then a second launch, elsewhere."""
    view = View.of(x.shape, axis)
    if x.size == 0:
        return lambda: None
    wide = gamma.dtype.type
    y = out["y"]
    if not training:
        return _apply(view, x, add_to_output, y, gamma, beta, moving_mean, moving_variance, wide(epsilon), True)
    statistics = pointers(
        moving_mean,
        moving_variance,
        out["mean"],
        out["inv_variance"],
        out.get("new_moving_mean"),
        out.get("new_moving_variance"),
    )
    numbers = (wide(epsilon), wide(momentum))
    once = _once(view, x, add_to_output, y, gamma, beta, statistics, numbers)
    if once is not None:
        return once
    reduce = _reduce(view, x, statistics, workspace, numbers)
    apply = _apply(view, x, add_to_output, y, gamma, beta, out["mean"], out["inv_variance"], wide(epsilon), False)

    def run() -> None:
        reduce()
        apply()

    return run


def _ctype(x: Any) -> str:
    return dtype_info(x.dtype.name).ctype


def _once(
    view: View, x: Any, addend: Any, y: Any, gamma: Any, beta: Any, statistics: Any, numbers: tuple[Any, Any]
) -> Bound | None:
    itemsize = x.dtype.itemsize
    widest = _WIDTHS[x.dtype.name]
    width = widest if widest_pack(itemsize, x, addend, y) == widest else 1
    found = _plan_once(view, width, itemsize)
    if found is None and width > 1:
        width = 1
        found = _plan_once(view, width, itemsize)
    if found is None:
        return None
    group, cluster = found
    if cluster > 1 and (width == 1 or architecture() < HOPPER):
        return None
    function = SOURCE.function(f"normalize_once<{_ctype(x)}, {width}, {cluster}>")
    shared = -(-view.images // cluster) * group * view.post * itemsize
    # one function serves many shapes: what another launch needs must not be taken back
    function.max_dynamic_shared_size_bytes = max(shared, function.max_dynamic_shared_size_bytes)
    grid, block = (view.channels // group * cluster,), (THREADS,)
    arguments = (
        x,
        addend,
        y,
        gamma,
        beta,
        statistics,
        np.int32(view.images),
        np.int32(view.channels),
        np.int32(view.post),
        np.int32(group),
        divisor(group * view.post // width),
        divisor(view.post),
        *numbers,
    )
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _lanes(view: View, width: int) -> tuple[int, int]:
    """Threads along C and along rows of a block that walks (rows, C)."""
    packs = -(-view.channels // width)
    lanes = 1
    while lanes < 32 and lanes < packs:
        lanes *= 2
    return lanes, THREADS // lanes


def _width(view: View, x: Any, *arrays: Any) -> int:
    widest = _WIDTHS[x.dtype.name]
    length = view.channels if view.post == 1 else view.post
    return widest if widest_pack(x.dtype.itemsize, length, x, *arrays) == widest else 1


def _reduce(view: View, x: Any, statistics: Any, workspace: Any, numbers: tuple[Any, Any]) -> Bound:
    width = _width(view, x)
    tickets, partials = workspace, workspace[_tickets_bytes(view) :]
    common = (x, statistics, partials, tickets, np.int32(view.images))
    if view.post == 1:
        lanes, rows = COLUMN_LANES, THREADS // COLUMN_LANES
        blocks = -(-view.channels // (lanes * width))
        room = _REDUCE_BLOCKS.value() * multiprocessors() // (2 * blocks)
        splits = max(1, min(view.splits, room, -(-view.images // rows)))
        function = SOURCE.function(f"reduce_columns<{_ctype(x)}, {width}>")
        grid, block = (blocks, splits), (lanes, rows)
        arguments: tuple[Any, ...] = (*common, np.int32(view.channels), *numbers)
    else:
        splits = max(1, min(view.splits, -(-_REDUCE_BLOCKS.value() * multiprocessors() // view.channels)))
        function = SOURCE.function(f"reduce_rows<{_ctype(x)}, {width}>")
        grid, block = (view.channels, splits), (THREADS, 1)
        arguments = (*common, np.int32(view.channels), np.int32(view.post), *numbers)
    return lambda: function(grid, block, arguments)


def _apply(
    view: View,
    x: Any,
    addend: Any,
    y: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    spread: Any,
    epsilon: Any,
    is_variance: bool,  # noqa: FBT001
) -> Bound:
    width = _width(view, x, addend, y)
    common = (x, addend, y, gamma, beta, mean, spread, np.bool_(is_variance), epsilon)
    if view.post == 1:
        lanes, rows = _lanes(view, width)
        across = -(-view.channels // (lanes * width))
        down = max(1, min(_APPLY_BLOCKS.value() * multiprocessors() // across, -(-view.images // rows)))
        function = SOURCE.function(f"apply_columns<{_ctype(x)}, {width}>")
        grid, block = (across, down), (lanes, rows)
        arguments: tuple[Any, ...] = (*common, np.int32(view.images), np.int32(view.channels))
    else:
        packs = x.size // width
        function = SOURCE.function(f"apply_rows<{_ctype(x)}, {width}>")
        grid, block = (max(1, _APPLY_BLOCKS.cap(-(-packs // THREADS), 4 * multiprocessors())), 1), (THREADS, 1)
        arguments = (*common, np.uint32(packs), divisor(view.post // width), divisor(view.channels))
    return lambda: function(grid, block, arguments)
