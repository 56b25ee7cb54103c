"""normalization on CUDA: x is read once where it fits on the chip, and is in part read again elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ops._core.backend import cupy
from ops._core.cuda import (
    HOPPER,
    Source,
    architecture,
    divisor,
    flag,
    multiprocessors,
    pointers,
    shared_memory_bytes,
    widest_pack,
)
from ops._core.dtype import FLOATS, dtype_info
from ops._core.errors import BackendError
from ops._core.kernel import Bound
from ops._core.op import Shapes
from ops._core.registry import kernel
from ops._core.tuning import Parameter, declare
from ops.normalization.op import NormalizationParams

THREADS = 256
GROUP = 8
LARGEST_SLICE_BYTES = 112 * 1024
STATIC_BYTES = 11 * 1024
"""Shared memory of a block beside what it keeps of x, rounded up."""
PACK_BYTES = 16
WORD_BYTES = 4
LARGEST_SIZE = 1 << 31
"""Elements, within which places are 32-bit numbers."""
CLUSTERS = (1, 2, 4, 8)
TICKET_BYTES = 4
MOMENTS = 3
LETTER = 4
"""Statistics in the room that a block's two of a channel take in the mail, each half of them flags."""
COLUMN_THREADS = 512
"""Most of a block that normalizes columns."""
COLUMN_LANES = 8
"""Threads side by side where channels come last: with packs of 16 bytes they read one line."""
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
MOST_PARTIALS = 1 << 15
"""Statistics that blocks send each other, where a channel is shared: so much room there is in the workspace."""
BLOCK_THREADS = (224, 448, 896)
"""Most threads of a block where four, two or one of them hold their values in a multiprocessor's registers."""
MANY = 3
"""Blocks for each multiprocessor from which on four at a time are better than two."""
WARP = 32
ALONE_THREADS = {7: 256, 4: 512}
"""Most threads of a block that takes a channel alone, by packs a thread."""
READERS, WRITTEN, SHARING_THREADS = 256, 8, 768
"""Of a block that has a share of many channels: threads that sum up, packs of each that writes, all threads at most."""
MOST_STAGES = 10
MOST_SHARING = 160
"""Blocks that may share a channel."""
SHARING_STATIC_BYTES = 1024
AMPERE = 80
"""The first compute capability with asynchronous copies."""


def _declare(name: str, default: int, candidates: tuple[int, ...], why: str) -> Parameter:
    ops = ("normalization", "residual_block", "resnet50_adds")
    return declare(f"normalization.{name}", default, candidates, backend="cuda", ops=ops, why=why)


_QUARTER_SLICE_BYTES = _declare(
    "quarter_slice_bytes",
    28 * 1024,
    tuple(size * 1024 for size in (0, 14, 28)),
    "what a block holds where clusters are large enough for it: four blocks a multiprocessor, channels first",
)
_SLICE_BYTES = _declare(
    "slice_bytes",
    49 * 1024,
    tuple(size * 1024 for size in (28, 37, 49, 74, 112)),
    "what a block holds at a time: two blocks a multiprocessor hide each other's waiting, one needs smaller clusters",
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
_SHARING_BYTES = _declare(
    "sharing_bytes",
    40 * 1024,
    tuple(size * 1024 for size in (13, 26, 40, 52)),
    "what a block takes at most of a channel that many share: telling each other less often against more on its way",
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
    "blocks of inference, channels last: the end of a wave against the cost of a block",
)
_WIDTHS = {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}


_FEW_PACKS = 4


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


def _most_packs(layout: str) -> int:
    """Packs that a thread holds, as many as its registers take; 7 divides the images of many networks."""
    return _FEW_PACKS if layout == "GROUPED" else 7


def _alone_packs(pack_bytes: int, *, adds: bool) -> tuple[int, ...]:
    """Packs a thread of a block that takes a channel alone: many small blocks hide each other's waiting.

    Few blocks, and threads that hold more, take fewer each, as the last of these.
    """
    return (4,) if adds and pack_bytes > WORD_BYTES else (7, 4)


def _first() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Channels first: expressions of a block alone, and of clusters."""
    found, clustered = [], []
    for dtype, widest in _WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        found += [
            f"normalize_alone<{ctype}, {width}, {packs}, {adds}>"
            for width in (1, 2, 4, 8)
            for adds in ("false", "true")
            for packs in _alone_packs(width * dtype_info(dtype).itemsize, adds=adds == "true")
            if width <= widest
        ]
        found.append(f"normalize_shared<{ctype}, {widest}>")
        for layout in ("SINGLE", "GROUPED"):
            packs = _most_packs(layout)
            once = [f"normalize_once<{ctype}, {widest}, {packs}, {cluster}, {layout}>" for cluster in CLUSTERS]
            found += once[:1]
            clustered += once[1:]
        for layout, packs in (("SINGLE", _FEW_PACKS), ("SINGLE", 7), ("GROUPED", _FEW_PACKS)):
            found.append(f"normalize_once<{ctype}, 1, {packs}, 1, {layout}>")
        found.append(f"normalize_once<{ctype}, {widest}, {_FEW_PACKS}, 1, SINGLE>")
        groups = [f"normalize_groups<{ctype}, {widest}, {cluster}>" for cluster in CLUSTERS]
        found += groups[:1]
        clustered += groups[1:]
    return tuple(found), tuple(clustered)


def _last() -> tuple[str, ...]:
    """Channels last."""
    found = []
    for dtype, widest in _WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        found += [f"normalize_columns<{ctype}, {width}>" for width in (1, widest)]
        for width in sorted({1, _short_width(dtype_info(dtype).itemsize)}):
            shorts = (Short(width, *how) for how in FEW_CHANNELS + MANY_CHANNELS)
            found += [short.expression(ctype) for short in shorts]
    return tuple(found)


_ALONE, _CLUSTERED = _first()
_PASSES = tuple(
    f"{name}<{dtype_info(dtype).ctype}, {width}>"
    for dtype, widest in _WIDTHS.items()
    for width in (1, widest)
    for name in ("reduce_rows", "apply_rows", "apply_columns")
)
CHANNELS_FIRST = Source(__file__, "channels_first.cu", _ALONE, clustered=_CLUSTERED)
CHANNELS_LAST = Source(__file__, "channels_last.cu", _last())
PASSES = Source(__file__, "passes.cu", _PASSES)


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
    def most_splits(self) -> int:
        """Blocks that may share a channel's reduction in a launch of its own."""
        return max(1, min(64, self.images * self.post, MOST_PARTIALS // self.channels))


def _workspace(shapes: Shapes, params: NormalizationParams) -> int:
    """Tickets, then partial moments."""
    view = View.of(shapes.inputs["x"].shape, params.axis)
    wide = dtype_info(shapes.inputs["gamma"].dtype).itemsize
    if view.post > 1:
        letters = LETTER * wide * 2 * MOST_STAGES * MOST_SHARING
        return _tickets_bytes(view) + max(MOMENTS * wide * view.channels * view.most_splits, letters)
    padded = view.channels + COLUMN_LANES * max(_WIDTHS.values())
    return _tickets_bytes(view) + LETTER * wide * padded * _most_splits(view)


def _tickets_bytes(view: View) -> int:
    return -(-TICKET_BYTES * view.channels // 256) * 256


@dataclass(frozen=True, slots=True)
class Block:
    """How the threads of a block share its slice: `active` of them hold `rounds` packs each."""

    layout: str
    threads: int
    active: int
    rounds: int

    def packs(self, cluster: int) -> int:
        """Packs a thread for which the kernel is compiled."""
        few = self.layout == "SINGLE" and self.rounds <= _FEW_PACKS and cluster == 1
        return _FEW_PACKS if few else _most_packs(self.layout)


def _block(view: View, width: int, itemsize: int, group: int, cluster: int) -> Block | None:
    """The threads for a slice of `group` channels, or None where their registers cannot hold it."""
    layout = "SINGLE" if group == 1 else "GROUPED"
    images, per_image = -(-view.images // cluster), group * view.post // width
    unit = 1 if layout == "SINGLE" else per_image
    whole = images * per_image // unit  # units, which one round never splits
    many = layout == "SINGLE" and view.channels * cluster >= MANY * multiprocessors()
    wide = itemsize > np.dtype(np.float32).itemsize
    for most in BLOCK_THREADS[0 if many else 1 : 2 if wide else 3]:
        if unit > most:
            continue
        rounds = -(-whole // (most // unit))
        if rounds <= _most_packs(layout):
            active = -(-whole // rounds) * unit
            threads = max(-(-active // WARP), group) * WARP
            return Block(layout, threads, active if layout == "GROUPED" else threads, rounds)
    return None


def _limits() -> tuple[int, int]:
    room = shared_memory_bytes() - STATIC_BYTES
    return min(_SLICE_BYTES.value(), room), min(LARGEST_SLICE_BYTES, room)


def _plan_once(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
    """Channels and blocks of one cluster, or None where one pass is not possible."""
    channel_bytes = view.images * view.post * itemsize
    group = 1
    while group * view.post % width and group < GROUP:
        group *= 2
    if group * view.post % width or view.channels % group or (group > 1 and view.post < width):
        return None
    enough, most, slice_bytes = _CLUSTERS.value() * multiprocessors(), _MOST_CHANNELS.value(), _SLICE_BYTES.value()
    while (
        2 * group <= most
        and view.channels % (2 * group) == 0
        and view.channels // (2 * group) >= enough
        and 2 * group * channel_bytes <= slice_bytes // 2
        and _block(view, width, itemsize, 2 * group, 1) is not None
    ):
        group *= 2
    for limit in (_QUARTER_SLICE_BYTES.value(), *_limits()):
        for cluster in CLUSTERS:
            if _holds(view, width, itemsize, group, cluster, limit):
                return group, cluster
    return None


def _holds(view: View, width: int, itemsize: int, group: int, cluster: int, limit: int) -> bool:
    """Whether a block of the cluster can have its slice, within `limit` bytes."""
    if cluster > min(view.images, _LARGEST_CLUSTER.value()):
        return False
    images = -(-view.images // cluster)
    fits = images * group * view.post * itemsize <= limit
    return fits and _block(view, width, itemsize, group, cluster) is not None


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
    """One launch; two in training where channels come first, and are too large or do not begin at whole packs."""
    view = View.of(x.shape, axis)
    if x.size == 0:
        return lambda: None
    wide = gamma.dtype.type
    y = out["y"]
    numbers = (wide(epsilon), wide(momentum))
    statistics = pointers(
        moving_mean,
        moving_variance,
        out.get("mean"),
        out.get("inv_variance"),
        out.get("new_moving_mean"),
        out.get("new_moving_variance"),
    )
    if training and view.post > 1:
        given = (view, x, add_to_output, y, gamma, beta, statistics)
        once = _alone(*given, numbers) or _once(*given, numbers) or _shared(*given, workspace, numbers)
        if once is not None:
            return once
    if view.post == 1 and training:
        return _columns(view, x, add_to_output, y, gamma, beta, statistics, workspace, numbers)
    if view.post == 1:
        return _apply_columns(view, x, add_to_output, y, gamma, beta, moving_mean, moving_variance, numbers[0])
    if not training:
        return _apply(view, x, add_to_output, y, gamma, beta, moving_mean, moving_variance, numbers[0], True)
    reduce = _reduce(view, x, statistics, workspace, numbers)
    apply = _apply(view, x, add_to_output, y, gamma, beta, out["mean"], out["inv_variance"], numbers[0], False)

    def run() -> None:
        reduce()
        apply()

    return run


def _ctype(x: Any) -> str:
    return dtype_info(x.dtype.name).ctype


def _plan_alone(view: View, pack_bytes: int, width: int, *, adds: bool) -> tuple[int, int] | None:
    """Packs a thread and threads of a block that takes a channel, or None where its registers cannot hold one."""
    packs = view.images * view.post // width
    many = view.channels >= MANY * multiprocessors()
    for each in _alone_packs(pack_bytes, adds=adds)[0 if many else -1 :]:
        threads = -(-packs // (each * WARP)) * WARP
        if threads <= ALONE_THREADS[each]:
            return each, threads
    return None


def _alone(
    view: View, x: Any, addend: Any, y: Any, gamma: Any, beta: Any, statistics: Any, numbers: tuple[Any, Any]
) -> Bound | None:
    width = widest_pack(x.dtype.itemsize, view.post, x, addend, y)
    found = _plan_alone(view, width * x.dtype.itemsize, width, adds=addend is not None)
    if found is None or x.size >= LARGEST_SIZE:
        return None
    packs, threads = found
    adds = flag(addend is not None)
    function = CHANNELS_FIRST.function(f"normalize_alone<{_ctype(x)}, {width}, {packs}, {adds}>")
    sizes = (np.int32(view.images * view.post // width), np.int32(view.channels), np.int32(view.post))
    arguments = (x, addend, y, gamma, beta, statistics, *sizes, divisor(view.post // width), *numbers)
    return lambda: function((view.channels,), (threads,), arguments)


def _once(
    view: View, x: Any, addend: Any, y: Any, gamma: Any, beta: Any, statistics: Any, numbers: tuple[Any, Any]
) -> Bound | None:
    itemsize = x.dtype.itemsize
    widest = _WIDTHS[x.dtype.name]
    width = widest if widest_pack(itemsize, x, addend, y) == widest else 1
    found = _plan_once(view, width, itemsize)
    if found is None and width > 1:
        groups = _groups(view, x, addend, y, gamma, beta, statistics, numbers)
        if groups is not None:
            return groups
        width = 1
        found = _plan_once(view, width, itemsize)
    if found is None:
        return None
    group, cluster = found
    if (cluster > 1 and (width == 1 or architecture() < HOPPER)) or x.size >= LARGEST_SIZE:
        return None
    how = _block(view, width, itemsize, group, cluster)
    if how is None:
        return None
    function = CHANNELS_FIRST.function(
        f"normalize_once<{_ctype(x)}, {width}, {how.packs(cluster)}, {cluster}, {how.layout}>"
    )
    slice_bytes = how.rounds * how.active * PACK_BYTES if width > 1 else 0
    sums_bytes = 2 * gamma.dtype.itemsize * how.active if how.layout == "GROUPED" else 0
    staged = addend is not None and 0 < 2 * slice_bytes <= shared_memory_bytes() - STATIC_BYTES - sums_bytes
    shared = staged * slice_bytes + sums_bytes
    clusters = view.channels // group
    ahead = width > 1 and clusters > _resident(function, cluster, how.threads, shared)
    if ahead:
        shared += slice_bytes
        clusters = min(clusters, _resident(function, cluster, how.threads, shared))
    _allow(function, shared)
    grid, block = (clusters * cluster,), (how.threads,)
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
        np.int32(how.active),
        np.int32(how.rounds),
        np.bool_(ahead),
        np.bool_(staged),
        *numbers,
    )
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _allow(function: Any, shared: int) -> None:
    """One function serves many shapes: what another launch needs must not be taken back."""
    function.max_dynamic_shared_size_bytes = max(shared, function.max_dynamic_shared_size_bytes)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Groups of `splits` blocks, `share` packs of every `across`-th channel each, in a ring of `stages`."""

    across: int
    splits: int
    share: int
    stages: int

    @classmethod
    def of(cls, view: View, width: int) -> Sharing | None:
        """As few groups as fill shares, or None where too little is on the chip at a time."""
        packs, blocks = view.images * view.post // width, min(multiprocessors(), MOST_SHARING)
        across = max(1, min(view.channels, blocks, _SHARING_BYTES.value() * blocks // (packs * PACK_BYTES)))
        share = -(-packs // (blocks // across))
        room = shared_memory_bytes() - SHARING_STATIC_BYTES
        items = -(-view.channels // across)
        how = cls(across, -(-packs // share), share, min(room // (share * PACK_BYTES), MOST_STAGES, items))
        return how if how.threads <= SHARING_THREADS and how.stages >= min(3, items) else None

    @property
    def threads(self) -> int:
        """Of a block: those that read, a warp, those that write."""
        return READERS + WARP - (-self.share // (WRITTEN * WARP)) * WARP


def _shared(
    view: View,
    x: Any,
    addend: Any,
    y: Any,
    gamma: Any,
    beta: Any,
    statistics: Any,
    workspace: Any,
    numbers: tuple[Any, Any],
) -> Bound | None:
    """Many blocks share a channel, and wait for each other: no more of them than there are multiprocessors."""
    width = _width(view, x, addend, y)
    if width < _WIDTHS[x.dtype.name] or x.size >= LARGEST_SIZE or architecture() < AMPERE:
        return None
    how = Sharing.of(view, width)
    if how is None:
        return None
    function = CHANNELS_FIRST.function(f"normalize_shared<{_ctype(x)}, {width}>")
    shared = how.stages * how.share * PACK_BYTES
    _allow(function, shared)
    tickets, mail = workspace, workspace[_tickets_bytes(view) :]
    sizes = map(np.int32, (view.images * view.post // width, view.channels, view.post))
    plan = map(np.int32, (how.splits, how.across, how.share, how.stages))
    places = divisor(view.post // width)
    arguments = (x, addend, y, gamma, beta, statistics, mail, tickets, *sizes, *plan, places, *numbers)
    grid, block = (how.across * how.splits,), (how.threads,)
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _plan_groups(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
    """As `_plan_once` where only shared memory must hold a slice."""
    group = 1
    while group * view.post % width and group < GROUP:
        group *= 2
    if group * view.post % width or view.channels % group or view.post == 1:
        return None
    for limit in _limits():
        for cluster in CLUSTERS if architecture() >= HOPPER else (1,):
            images = -(-view.images // cluster)
            few = cluster <= min(view.images, _LARGEST_CLUSTER.value())
            if few and images * group * view.post * itemsize <= limit:
                return group, cluster
    return None


def _groups(
    view: View, x: Any, addend: Any, y: Any, gamma: Any, beta: Any, statistics: Any, numbers: tuple[Any, Any]
) -> Bound | None:
    width = _WIDTHS[x.dtype.name]
    found = _plan_groups(view, width, x.dtype.itemsize)
    if found is None:
        return None
    group, cluster = found
    function = CHANNELS_FIRST.function(f"normalize_groups<{_ctype(x)}, {width}, {cluster}>")
    shared = -(-view.images // cluster) * group * view.post * x.dtype.itemsize
    _allow(function, shared)
    grid, block = (view.channels // group * cluster,), (THREADS,)
    sizes = (np.int32(view.images), np.int32(view.channels), np.int32(view.post), np.int32(group))
    divisors = (divisor(group * view.post // width), divisor(view.post))
    arguments = (x, addend, y, gamma, beta, statistics, *sizes, *divisors, *numbers)
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _resident(function: Any, cluster: int, threads: int, shared: int) -> int:
    """Clusters that the device runs at the same time. One more would wait until all others are done."""
    _allow(function, shared)
    if architecture() < HOPPER:
        handle = function.kernel.ptr
        blocks = cupy().cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(handle, threads, shared)
        return int(blocks) * multiprocessors()
    from cuda.bindings import driver

    size = driver.CUlaunchAttribute()
    size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = cluster, 1, 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster * multiprocessors(), 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    config.attrs, config.numAttrs = [size], 1
    status, clusters = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(function.kernel.ptr), config)
    if status != driver.CUresult.CUDA_SUCCESS:
        msg = f"occupancy of clusters of {cluster}: {status}"
        raise BackendError(msg)
    return int(clusters)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How blocks share (rows, C): `across` groups of `splits` of them, each with `share` rows, `tile` at a time."""

    width: int
    lanes: int
    across: int
    splits: int
    share: int
    tile: int

    @classmethod
    def of(cls, view: View, width: int) -> Tiles:
        """Groups whose blocks wait for each other only where the device holds all blocks at once."""
        lanes, across = _lanes(view, width)
        most_tile = COLUMN_THREADS // lanes
        splits = max(1, min(multiprocessors() // across, _most_splits(view), -(-view.images // most_tile)))
        share = -(-view.images // splits)
        tile, unit = -(-share // -(-share // most_tile)), max(WARP // lanes, width)
        return cls(width, lanes, across, -(-view.images // share), share, -(-tile // unit) * unit)

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


def _lanes(view: View, width: int) -> tuple[int, int]:
    """Packs of a row that a block takes, and how many such parts a row has."""
    packs, most = -(-view.channels // width), WARP if width == 1 else COLUMN_LANES
    lanes = min(most, 1 << (packs - 1).bit_length())
    return lanes, -(-packs // lanes)


def _most_splits(view: View) -> int:
    """Blocks of a group: as many partial statistics as the workspace has room for."""
    return max(1, min(MOST_SPLITS, MOST_PARTIALS // view.channels))


def _short(
    view: View, x: Any, addend: Any, y: Any, gamma: Any, beta: Any, statistics: Any, numbers: tuple[Any, Any]
) -> Bound | None:
    """Channels last, in training, of few rows."""
    itemsize = x.dtype.itemsize
    width = _short_width(itemsize)
    if widest_pack(itemsize, view.channels, x, addend, y) < width:
        width = 1
    how = Short.of(view, width)
    if how is None or x.size >= LARGEST_SIZE:
        return None
    function = CHANNELS_LAST.function(how.expression(_ctype(x)))
    sizes = (np.int32(view.images), np.int32(view.channels), np.int32(how.share(view.images)))
    arguments = (x, addend, y, gamma, beta, statistics, *sizes, *numbers)
    grid, block = (how.blocks(view.channels),), (WARP * how.warps(view.images),)
    return lambda: function(grid, block, arguments)


def _columns(
    view: View,
    x: Any,
    addend: Any,
    y: Any,
    gamma: Any,
    beta: Any,
    statistics: Any,
    workspace: Any,
    numbers: tuple[Any, Any],
) -> Bound:
    """Channels last, in training."""
    short = _short(view, x, addend, y, gamma, beta, statistics, numbers)
    if short is not None:
        return short
    width = _width(view, x, addend, y)
    tiles = Tiles.of(view, width)
    function = CHANNELS_LAST.function(f"normalize_columns<{_ctype(x)}, {width}>")
    round_bytes = tiles.threads * width * x.dtype.itemsize
    kept = min(tiles.rounds, (shared_memory_bytes() - STATIC_BYTES) // round_bytes)
    shared = kept * round_bytes
    _allow(function, shared)
    tickets, mail = workspace, workspace[_tickets_bytes(view) :]
    sizes = map(np.int32, (view.images, view.channels, tiles.lane_bits, tiles.team_bits))
    parts = (divisor(tiles.splits), np.int32(tiles.share), divisor(tiles.tile), np.int32(kept))
    arguments = (x, addend, y, gamma, beta, statistics, mail, tickets, *sizes, *parts, *numbers)
    grid, block = (tiles.across * tiles.splits,), (tiles.threads,)
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _apply_columns(
    view: View, x: Any, addend: Any, y: Any, gamma: Any, beta: Any, mean: Any, variance: Any, epsilon: Any
) -> Bound:
    """Channels last, in inference."""
    width = _width(view, x, addend, y)
    lanes, across = _lanes(view, width)
    many = _APPLY_BLOCKS.value() * multiprocessors() // (2 * across)
    down = max(1, min(many, -(-view.images * lanes // THREADS)))
    function = PASSES.function(f"apply_columns<{_ctype(x)}, {width}>")
    sizes = (np.int32(view.images), np.int32(view.channels), np.int32(lanes))
    arguments = (x, addend, y, gamma, beta, mean, variance, *sizes, epsilon)
    return lambda: function((across, down), (THREADS,), arguments)


def _width(view: View, x: Any, *arrays: Any) -> int:
    widest = _WIDTHS[x.dtype.name]
    length = view.channels if view.post == 1 else view.post
    return widest if widest_pack(x.dtype.itemsize, length, x, *arrays) == widest else 1


def _reduce(view: View, x: Any, statistics: Any, workspace: Any, numbers: tuple[Any, Any]) -> Bound:
    width = _width(view, x)
    tickets, partials = workspace, workspace[_tickets_bytes(view) :]
    packs = view.images * view.post // width
    wanted = min(view.most_splits, -(-_REDUCE_BLOCKS.value() * multiprocessors() // view.channels))
    share = -(-packs // wanted)
    function = PASSES.function(f"reduce_rows<{_ctype(x)}, {width}>")
    sizes = (
        np.int32(packs),
        np.int32(view.channels),
        np.int32(view.post),
        np.int32(share),
        divisor(view.post // width),
    )
    arguments = (x, statistics, partials, tickets, *sizes, *numbers)
    return lambda: function((view.channels, -(-packs // share)), (THREADS,), arguments)


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
    packs = x.size // width
    function = PASSES.function(f"apply_rows<{_ctype(x)}, {width}>")
    divisors = (divisor(view.post // width), divisor(view.channels))
    arguments = (x, addend, y, gamma, beta, mean, spread, np.bool_(is_variance), epsilon, np.uint32(packs), *divisors)
    return lambda: function((-(-packs // THREADS),), (THREADS,), arguments)
