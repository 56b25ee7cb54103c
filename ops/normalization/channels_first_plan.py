"""Plans of the kernels that normalize channels first in training: blocks, clusters and shares that fit on chip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.source import (
    HOPPER,
    architecture,
    multiprocessors,
    shared_memory_bytes,
)
from opgauge.ops.normalization.call import (
    STATIC_BYTES,
    VECTOR_BYTES,
    WIDEST,
    View,
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
ALONE_THREADS = {7: 256, 4: 512, 1: 512}
"""Maximum threads of a block that normalizes a channel alone, by vectors per thread."""
SINGLE_THREADS = 1024
"""The same for several single elements per thread: an H200 took 2.2 us, not 2.8, for 2 channels of 3069 elements, and
3.2 us, not 8.2, for 40 of 6004; of doubles 4.0 us, not 8.2, for 16 of 6002."""
SHORT, SHORT_CHANNELS = 512, 8
"""Vectors of a channel up to which threads take four, not seven, below that many channels per multiprocessor: up to
14 % faster on an H200, but 784 vectors of 8 elements take 20 % longer."""
TOGETHER_THREADS = (128, 64, 32)
"""Threads of a block that normalizes several channels, of up to a warp of vectors each, if there are many channels: an
H200 took 1.7 us, not 2.4, for 2048 channels of 32 vectors."""
READERS, WRITTEN, SHARING_THREADS = 256, 8, 768
"""Blocks that share many channels: reading threads, vectors per writing thread, maximum threads."""
MOST_STAGES = 10
MOST_SHARING = 160
"""Maximum blocks per channel."""
SHARING_STATIC_BYTES = 1024
"""Static shared memory left to a block of a shared channel."""
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
FEW_VECTORS = 4
"""Vectors per thread of grouped channels, and of single ones that need no more rounds."""


def most_vectors(layout: str) -> int:
    """Vectors per thread, limited by registers; 7 divides the images of many networks."""
    return FEW_VECTORS if layout == "GROUPED" else 7


def alone_vectors(vector_bytes: int, *, adds: bool) -> tuple[int, ...]:
    """Vectors per thread of a block that normalizes a channel alone: many small blocks hide latency.

    With few blocks, threads take fewer each. One, in short code, where a warp holds a channel; of eight elements also
    where several do, with few blocks.
    """
    return (4, 1) if adds and vector_bytes > WORD_BYTES else (7, 4, 1)


def alone_threads(each: int, width: int) -> int:
    """Maximum threads of a block that normalizes a channel alone, each with up to `each` vectors of `width`."""
    return SINGLE_THREADS if width == 1 < each else ALONE_THREADS[each]


@dataclass(frozen=True, slots=True)
class Block:
    """Division of a slice among a block's threads: `active` of them take `rounds` vectors each."""

    layout: str
    threads: int
    active: int
    rounds: int

    def vectors(self, cluster: int) -> int:
        """Vectors per thread for which the kernel is compiled."""
        few = self.layout == "SINGLE" and self.rounds <= FEW_VECTORS and cluster == 1
        return FEW_VECTORS if few else most_vectors(self.layout)


def block_of(view: View, width: int, itemsize: int, group: int, cluster: int) -> Block | None:
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
        if rounds <= most_vectors(layout):
            active = -(-whole // rounds) * unit
            threads = max(-(-active // WARP), group) * WARP
            return Block(layout, threads, active if layout == "GROUPED" else threads, rounds)
    return None


def _limits() -> tuple[int, int]:
    room = shared_memory_bytes() - STATIC_BYTES
    return min(SLICE_BYTES, room), min(LARGEST_SLICE_BYTES, room)


def plan_once(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
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
        and block_of(view, width, itemsize, 2 * group, 1) is not None
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
    return fits and block_of(view, width, itemsize, group, cluster) is not None


def plan_alone(view: View, vector_bytes: int, width: int, *, adds: bool) -> tuple[int, int, int] | None:
    """Vectors per thread, threads per channel, channels per block; None if a block's registers do not suffice.

    A block has whole warps, whose further threads do nothing: sums are over a power of two up to a warp.
    """
    vectors = view.images * view.post // width
    many = view.channels >= MANY * multiprocessors()
    *several, one = alone_vectors(vector_bytes, adds=adds)
    if vectors <= WARP:
        threads = 1 << (vectors - 1).bit_length()
        for together in (block // threads for block in TOGETHER_THREADS):
            if view.channels >= together * multiprocessors() // 4:
                return one, threads, together
    short = vectors <= SHORT and view.channels < SHORT_CHANNELS * multiprocessors()
    candidates = several if many and not short else several[::-1]
    if vectors <= WARP or (width == WIDEST and not many):
        candidates.insert(0, one)
    for each in candidates:
        threads = -(-vectors // (each * WARP)) * WARP
        if threads <= alone_threads(each, width):
            fewest = min(few for few in (*several, one) if few * threads >= vectors)
            return fewest, threads if vectors > WARP else 1 << (vectors - 1).bit_length(), 1
    return None


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


def plan_groups(view: View, width: int, itemsize: int) -> tuple[int, int] | None:
    """Like `plan_once`, with the slice in shared memory."""
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
