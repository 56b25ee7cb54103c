"""normalization on CUDA, channels first, in training: x is read once if it fits on chip."""

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
    CudaSource,
    architecture,
    divisor,
    flag,
    multiprocessors,
    shared_memory_bytes,
    widest_vector,
)
from opgauge.ops.normalization.call import (
    LARGEST_SIZE,
    LETTER,
    STATIC_BYTES,
    THREADS,
    VECTOR_BYTES,
    WARP,
    WIDTHS,
    Call,
    View,
    allow,
    declare,
)

GROUP = 8
"""Maximum channels of a cluster; a limit of 1 is as fast on an H200."""
LARGEST_SLICE_BYTES = 112 * 1024
WORD_BYTES = 4
CLUSTERS = (1, 2, 4, 8)
BLOCK_THREADS = (224, 448, 896)
"""Maximum threads of a block for four, two or one resident blocks with register-resident values."""
MANY = 3
"""Blocks per multiprocessor from which four resident blocks are better than two."""
ALONE_THREADS = {7: 256, 4: 512}
"""Maximum threads of a block that normalizes a channel alone, by vectors per thread."""
READERS, WRITTEN, SHARING_THREADS = 256, 8, 768
"""Blocks that share many channels: reading threads, vectors per writing thread, maximum threads."""
MOST_STAGES = 10
MOST_SHARING = 160
"""Maximum blocks per channel."""
SHARING_STATIC_BYTES = 1024
AMPERE = 80
"""First compute capability with asynchronous copies."""


_QUARTER_SLICE_BYTES = declare(
    "quarter_slice_bytes",
    28 * 1024,
    tuple(size * 1024 for size in (0, 14, 28)),
    "bytes of x per block for large clusters: four resident blocks per multiprocessor, channels first",
)
SLICE_BYTES = 49 * 1024
"""Bytes of x per block: two blocks per multiprocessor hide latency, one needs smaller clusters; 74 KiB is as fast on an
H200."""
_LARGEST_CLUSTER = declare(
    "largest_cluster",
    8,
    (1, 2, 4, 8),
    "blocks of a cluster per channel: one pass over memory against waiting for each other",
)
SHARING_BYTES = 40 * 1024
"""Bytes of a shared channel per block: more mean fewer exchanges, fewer mean more loads in flight; 52 KiB is as fast on
an H200."""
CLUSTERS_EACH = 4
"""Clusters per multiprocessor below which channels are not grouped: bandwidth would idle. 2 is as fast on an H200."""
_FEW_VECTORS = 4


def _most_vectors(layout: str) -> int:
    """Vectors per thread, limited by registers; 7 divides the images of many networks."""
    return _FEW_VECTORS if layout == "GROUPED" else 7


def _alone_vectors(vector_bytes: int, *, adds: bool) -> tuple[int, ...]:
    """Vectors per thread of a block that normalizes a channel alone: many small blocks hide latency.

    With few blocks, or at the maximum of vectors, threads take fewer each: the last of these.
    """
    return (4,) if adds and vector_bytes > WORD_BYTES else (7, 4)


def _first() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Expressions for channels first: of single blocks, and of clusters."""
    found, clustered = [], []
    for dtype, widest in WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        found += [
            f"normalize_alone<{ctype}, {width}, {vectors}, {adds}>"
            for width in (1, 2, 4, 8)
            for adds in ("false", "true")
            for vectors in _alone_vectors(width * dtype_info(dtype).itemsize, adds=adds == "true")
            if width <= widest
        ]
        found.append(f"normalize_shared<{ctype}, {widest}>")
        for layout in ("SINGLE", "GROUPED"):
            vectors = _most_vectors(layout)
            once = [f"normalize_once<{ctype}, {widest}, {vectors}, {cluster}, {layout}>" for cluster in CLUSTERS]
            found += once[:1]
            clustered += once[1:]
        for layout, vectors in (("SINGLE", _FEW_VECTORS), ("SINGLE", 7), ("GROUPED", _FEW_VECTORS)):
            found.append(f"normalize_once<{ctype}, 1, {vectors}, 1, {layout}>")
        found.append(f"normalize_once<{ctype}, {widest}, {_FEW_VECTORS}, 1, SINGLE>")
        groups = [f"normalize_groups<{ctype}, {widest}, {cluster}>" for cluster in CLUSTERS]
        found += groups[:1]
        clustered += groups[1:]
    return tuple(found), tuple(clustered)


_ALONE, _CLUSTERED = _first()
SOURCE = CudaSource(
    __file__,
    "channels_first.cu",
    _ALONE,
    clustered=_CLUSTERED,
    constants={
        "READERS": READERS,
        "WRITTEN": WRITTEN,
        "SHARING_THREADS": SHARING_THREADS,
        "MOST_STAGES": MOST_STAGES,
        "PARTIALS_EACH": MOST_SHARING // WARP,
    },
)
"""Declared instances of channels_first.cu."""


def flagged_bytes(wide: int) -> int:
    """Bytes of flagged partials of blocks that share channels, statistics having `wide` bytes each."""
    return LETTER * wide * 2 * MOST_STAGES * MOST_SHARING


def bind(call: Call) -> Bound | None:
    """One launch, or None if x is too large or not aligned to vectors."""
    return _alone(call) or _once(call) or _shared(call)


@dataclass(frozen=True, slots=True)
class Block:
    """Division of a slice among a block's threads: `active` of them take `rounds` vectors each."""

    layout: str
    threads: int
    active: int
    rounds: int

    def vectors(self, cluster: int) -> int:
        """Vectors per thread for which the kernel is compiled."""
        few = self.layout == "SINGLE" and self.rounds <= _FEW_VECTORS and cluster == 1
        return _FEW_VECTORS if few else _most_vectors(self.layout)


def _block(view: View, width: int, itemsize: int, group: int, cluster: int) -> Block | None:
    """The threads for a slice of `group` channels, or None if their registers do not suffice."""
    layout = "SINGLE" if group == 1 else "GROUPED"
    images, per_image = -(-view.images // cluster), group * view.post // width
    unit = 1 if layout == "SINGLE" else per_image
    whole = images * per_image // unit  # units, which no round splits
    many = layout == "SINGLE" and view.channels * cluster >= MANY * multiprocessors()
    wide = itemsize > np.dtype(np.float32).itemsize
    for most in BLOCK_THREADS[0 if many else 1 : 2 if wide else 3]:
        if unit > most:
            continue
        rounds = -(-whole // (most // unit))
        if rounds <= _most_vectors(layout):
            active = -(-whole // rounds) * unit
            threads = max(-(-active // WARP), group) * WARP
            return Block(layout, threads, active if layout == "GROUPED" else threads, rounds)
    return None


def _limits() -> tuple[int, int]:
    room = shared_memory_bytes() - STATIC_BYTES
    return min(SLICE_BYTES, room), min(LARGEST_SLICE_BYTES, room)


def _plan_once(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
    """Channels and blocks of one cluster, or None if one pass is not possible."""
    channel_bytes = view.images * view.post * itemsize
    group = 1
    while group * view.post % width and group < GROUP:
        group *= 2
    if group * view.post % width or view.channels % group or (group > 1 and view.post < width):
        return None
    enough = CLUSTERS_EACH * multiprocessors()
    while (
        2 * group <= GROUP
        and view.channels % (2 * group) == 0
        and view.channels // (2 * group) >= enough
        and 2 * group * channel_bytes <= SLICE_BYTES // 2
        and _block(view, width, itemsize, 2 * group, 1) is not None
    ):
        group *= 2
    for limit in (_QUARTER_SLICE_BYTES.value(), *_limits()):
        for cluster in CLUSTERS:
            if _holds(view, width, itemsize, group, cluster, limit):
                return group, cluster
    return None


def _holds(view: View, width: int, itemsize: int, group: int, cluster: int, limit: int) -> bool:
    """Whether a block's slice fits within `limit` bytes."""
    if cluster > min(view.images, _LARGEST_CLUSTER.value()):
        return False
    images = -(-view.images // cluster)
    fits = images * group * view.post * itemsize <= limit
    return fits and _block(view, width, itemsize, group, cluster) is not None


def _plan_alone(view: View, vector_bytes: int, width: int, *, adds: bool) -> tuple[int, int] | None:
    """Vectors per thread and threads of a block per channel, or None if its registers do not suffice."""
    vectors = view.images * view.post // width
    many = view.channels >= MANY * multiprocessors()
    for each in _alone_vectors(vector_bytes, adds=adds)[0 if many else -1 :]:
        threads = -(-vectors // (each * WARP)) * WARP
        if threads <= ALONE_THREADS[each]:
            return each, threads
    return None


def _alone(call: Call) -> Bound | None:
    view, width = call.view, call.vector
    found = _plan_alone(view, width * call.itemsize, width, adds=call.adds)
    if found is None or call.x.size >= LARGEST_SIZE:
        return None
    vectors, threads = found
    function = SOURCE.function(f"normalize_alone<{call.ctype}, {width}, {vectors}, {flag(call.adds)}>")
    sizes = (np.int32(view.images * view.post // width), np.int32(view.channels), np.int32(view.post))
    arguments = (*call.arrays, call.statistics, *sizes, divisor(view.post // width), *call.numbers)
    return lambda: function((view.channels,), (threads,), arguments)


def _once(call: Call) -> Bound | None:
    view, itemsize = call.view, call.itemsize
    width = call.widest_or_one(widest_vector(itemsize, *call.tensors))
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
    function = SOURCE.function(
        f"normalize_once<{call.ctype}, {width}, {how.vectors(cluster)}, {cluster}, {how.layout}>"
    )
    slice_bytes = how.rounds * how.active * VECTOR_BYTES if width > 1 else 0
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
class GroupLayout:
    """Groups of `splits` blocks, each with `share` vectors of every `across`-th channel, in a ring of `stages`."""

    across: int
    splits: int
    share: int
    stages: int

    @classmethod
    def of(cls, view: View, width: int) -> GroupLayout | None:
        """The smallest number of groups whose shares fill the blocks; None if too little fits on chip."""
        vectors, blocks = view.images * view.post // width, min(multiprocessors(), MOST_SHARING)
        across = max(1, min(view.channels, blocks, SHARING_BYTES * blocks // (vectors * VECTOR_BYTES)))
        share = -(-vectors // (blocks // across))
        room = shared_memory_bytes() - SHARING_STATIC_BYTES
        items = -(-view.channels // across)
        how = cls(across, -(-vectors // share), share, min(room // (share * VECTOR_BYTES), MOST_STAGES, items))
        return how if how.threads <= SHARING_THREADS and how.stages >= min(3, items) else None

    @property
    def threads(self) -> int:
        """Threads of a block: readers, one warp, writers."""
        return READERS + WARP - (-self.share // (WRITTEN * WARP)) * WARP


def _shared(call: Call) -> Bound | None:
    """Many blocks share a channel and wait for each other: at most one per multiprocessor, all resident."""
    view, width = call.view, call.width
    if width < call.widest or call.x.size >= LARGEST_SIZE or architecture() < AMPERE:
        return None
    how = GroupLayout.of(view, width)
    if how is None:
        return None
    function = SOURCE.function(f"normalize_shared<{call.ctype}, {width}>")
    shared = how.stages * how.share * VECTOR_BYTES
    allow(function, shared)
    sizes = map(np.int32, (view.images * view.post // width, view.channels, view.post))
    plan = map(np.int32, (how.splits, how.across, how.share, how.stages))
    places = divisor(view.post // width)
    arguments = (*call.arrays, call.statistics, call.flagged, call.counters, *sizes, *plan, places, *call.numbers)
    grid, block = (how.across * how.splits,), (how.threads,)
    return lambda: function(grid, block, arguments, shared_mem=shared)


def _plan_groups(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
    """Like `_plan_once`, with the slice in shared memory."""
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
    """Clusters that are resident at the same time. One more would wait until all others have finished."""
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
