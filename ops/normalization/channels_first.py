"""normalization on CUDA, channels first, by its own statistics: x is read once, where it fits on the chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from opgauge.ops._core.backend import cupy
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.errors import BackendError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.source import (
    HOPPER,
    Source,
    architecture,
    divisor,
    flag,
    multiprocessors,
    shared_memory_bytes,
    widest_pack,
)
from opgauge.ops.normalization.call import (
    LARGEST_SIZE,
    LETTER,
    PACK_BYTES,
    STATIC_BYTES,
    THREADS,
    WARP,
    WIDTHS,
    Call,
    View,
    allow,
    declare,
)

GROUP = 8
LARGEST_SLICE_BYTES = 112 * 1024
WORD_BYTES = 4
CLUSTERS = (1, 2, 4, 8)
BLOCK_THREADS = (224, 448, 896)
"""Most threads of a block where four, two or one of them hold their values in a multiprocessor's registers."""
MANY = 3
"""Blocks for each multiprocessor from which on four at a time are better than two."""
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


_QUARTER_SLICE_BYTES = declare(
    "quarter_slice_bytes",
    28 * 1024,
    tuple(size * 1024 for size in (0, 14, 28)),
    "what a block holds where clusters are large enough for it: four blocks a multiprocessor, channels first",
)
_SLICE_BYTES = declare(
    "slice_bytes",
    49 * 1024,
    tuple(size * 1024 for size in (28, 37, 49, 74, 112)),
    "what a block holds at a time: two blocks a multiprocessor hide each other's waiting, one needs smaller clusters",
)
_LARGEST_CLUSTER = declare(
    "largest_cluster",
    8,
    (1, 2, 4, 8),
    "blocks of a cluster that hold a channel: one pass over memory against waiting for each other",
)
_MOST_CHANNELS = declare(
    "most_channels", GROUP, (1, 2, 4, 8), "small channels that one cluster takes: longer runs against fewer clusters"
)
_SHARING_BYTES = declare(
    "sharing_bytes",
    40 * 1024,
    tuple(size * 1024 for size in (13, 26, 40, 52)),
    "what a block takes at most of a channel that many share: telling each other less often against more on its way",
)
_CLUSTERS = declare(
    "clusters_per_multiprocessor", 4, (2, 4, 8), "clusters below which channels are not put together: idle bandwidth"
)
_FEW_PACKS = 4


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
    for dtype, widest in WIDTHS.items():
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


_ALONE, _CLUSTERED = _first()
SOURCE = Source(__file__, "channels_first.cu", _ALONE, clustered=_CLUSTERED)


def mail_bytes(wide: int) -> int:
    """Room for what blocks that share channels tell each other, statistics being `wide` bytes each."""
    return LETTER * wide * 2 * MOST_STAGES * MOST_SHARING


def bind(call: Call) -> Bound | None:
    """One launch, or None where x is too large or does not begin at whole packs."""
    return _alone(call) or _once(call) or _shared(call)


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


def _plan_alone(view: View, pack_bytes: int, width: int, *, adds: bool) -> tuple[int, int] | None:
    """Packs a thread and threads of a block that takes a channel, or None where its registers cannot hold one."""
    packs = view.images * view.post // width
    many = view.channels >= MANY * multiprocessors()
    for each in _alone_packs(pack_bytes, adds=adds)[0 if many else -1 :]:
        threads = -(-packs // (each * WARP)) * WARP
        if threads <= ALONE_THREADS[each]:
            return each, threads
    return None


def _alone(call: Call) -> Bound | None:
    view, width = call.view, call.pack
    found = _plan_alone(view, width * call.itemsize, width, adds=call.adds)
    if found is None or call.x.size >= LARGEST_SIZE:
        return None
    packs, threads = found
    function = SOURCE.function(f"normalize_alone<{call.ctype}, {width}, {packs}, {flag(call.adds)}>")
    sizes = (np.int32(view.images * view.post // width), np.int32(view.channels), np.int32(view.post))
    arguments = (*call.arrays, call.statistics, *sizes, divisor(view.post // width), *call.numbers)
    return lambda: function((view.channels,), (threads,), arguments)


def _once(call: Call) -> Bound | None:
    view, itemsize = call.view, call.itemsize
    width = call.widest_or_one(widest_pack(itemsize, *call.tensors))
    found = _plan_once(view, width, itemsize)
    if found is None and width > 1:
        groups = _groups(call)
        if groups is not None:
            return groups
        width = 1
        found = _plan_once(view, width, itemsize)
    if found is None:
        return None
    group, cluster = found
    if (cluster > 1 and (width == 1 or architecture() < HOPPER)) or call.x.size >= LARGEST_SIZE:
        return None
    how = _block(view, width, itemsize, group, cluster)
    if how is None:
        return None
    function = SOURCE.function(f"normalize_once<{call.ctype}, {width}, {how.packs(cluster)}, {cluster}, {how.layout}>")
    slice_bytes = how.rounds * how.active * PACK_BYTES if width > 1 else 0
    sums_bytes = 2 * call.gamma.dtype.itemsize * how.active if how.layout == "GROUPED" else 0
    staged = call.adds and 0 < 2 * slice_bytes <= shared_memory_bytes() - STATIC_BYTES - sums_bytes
    shared = staged * slice_bytes + sums_bytes
    clusters = view.channels // group
    ahead = width > 1 and clusters > _resident(function, cluster, how.threads, shared)
    if ahead:
        shared += slice_bytes
        clusters = min(clusters, _resident(function, cluster, how.threads, shared))
    allow(function, shared)
    grid, block = (clusters * cluster,), (how.threads,)
    sizes = map(np.int32, (view.images, view.channels, view.post, group))
    divisors = (divisor(group * view.post // width), divisor(view.post))
    plan = (np.int32(how.active), np.int32(how.rounds), np.bool_(ahead), np.bool_(staged))
    arguments = (*call.arrays, call.statistics, *sizes, *divisors, *plan, *call.numbers)
    return lambda: function(grid, block, arguments, shared_mem=shared)


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


def _shared(call: Call) -> Bound | None:
    """Many blocks share a channel, and wait for each other: no more of them than there are multiprocessors."""
    view, width = call.view, call.width
    if width < call.widest or call.x.size >= LARGEST_SIZE or architecture() < AMPERE:
        return None
    how = Sharing.of(view, width)
    if how is None:
        return None
    function = SOURCE.function(f"normalize_shared<{call.ctype}, {width}>")
    shared = how.stages * how.share * PACK_BYTES
    allow(function, shared)
    sizes = map(np.int32, (view.images * view.post // width, view.channels, view.post))
    plan = map(np.int32, (how.splits, how.across, how.share, how.stages))
    places = divisor(view.post // width)
    arguments = (*call.arrays, call.statistics, call.mail, call.tickets, *sizes, *plan, places, *call.numbers)
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


def _groups(call: Call) -> Bound | None:
    view, width = call.view, call.widest
    found = _plan_groups(view, width, call.itemsize)
    if found is None:
        return None
    group, cluster = found
    function = SOURCE.function(f"normalize_groups<{call.ctype}, {width}, {cluster}>")
    shared = -(-view.images // cluster) * group * view.post * call.itemsize
    allow(function, shared)
    grid, block = (view.channels // group * cluster,), (THREADS,)
    sizes = map(np.int32, (view.images, view.channels, view.post, group))
    divisors = (divisor(group * view.post // width), divisor(view.post))
    arguments = (*call.arrays, call.statistics, *sizes, *divisors, *call.numbers)
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _resident(function: Any, cluster: int, threads: int, shared: int) -> int:
    """Clusters that the device runs at the same time. One more would wait until all others are done."""
    allow(function, shared)
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
