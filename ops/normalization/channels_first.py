"""normalization on CUDA, channels first, in training: x is read once if it fits on chip."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.backend import cupy
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.errors import BackendError
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.multiprocessor import WARP
from opgauge.ops._cuda.source import HOPPER, CudaSource, architecture, flag, multiprocessors, shared_memory_bytes
from opgauge.ops._cuda.struct import divisor
from opgauge.ops._cuda.vectors import widest_vector
from opgauge.ops.normalization.call import (
    LARGEST_SIZE,
    LETTER,
    STATIC_BYTES,
    STATISTICS,
    THREADS,
    VECTOR_BYTES,
    WIDTHS,
    Call,
    allow,
)
from opgauge.ops.normalization.channels_first_plan import (
    ALONE_THREADS,
    CLUSTERS,
    FEW_VECTORS,
    MOST_SHARING,
    MOST_STAGES,
    READERS,
    SHARING_THREADS,
    SINGLE_THREADS,
    WRITTEN,
    GroupLayout,
    alone_vectors,
    block_of,
    most_vectors,
    plan_alone,
    plan_groups,
    plan_once,
)

AMPERE = 80
"""First compute capability with asynchronous copies."""


def _first() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Expressions for channels first: of single blocks, and of clusters."""
    found, clustered = [], []
    for dtype, widest in WIDTHS.items():
        ctype = dtype_info(dtype).ctype
        found += [
            f"normalize_alone<{ctype}, {width}, {vectors}, {adds}>"
            for width in (1, 2, 4, 8)
            for adds in ("false", "true")
            for vectors in alone_vectors(width * dtype_info(dtype).itemsize, adds=adds == "true")
            if width <= widest
        ]
        found.append(f"normalize_shared<{ctype}, {widest}>")
        for layout in ("SINGLE", "GROUPED"):
            vectors = most_vectors(layout)
            once = [f"normalize_once<{ctype}, {widest}, {vectors}, {cluster}, {layout}>" for cluster in CLUSTERS]
            found += once[:1]
            clustered += once[1:]
        clustered += [
            f"normalize_once<{ctype}, 1, {most_vectors('SINGLE')}, {cluster}, SINGLE>" for cluster in CLUSTERS[1:]
        ]
        for layout, vectors in (("SINGLE", FEW_VECTORS), ("SINGLE", 7), ("GROUPED", FEW_VECTORS)):
            found.append(f"normalize_once<{ctype}, 1, {vectors}, 1, {layout}>")
        found.append(f"normalize_once<{ctype}, {widest}, {FEW_VECTORS}, 1, SINGLE>")
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
        **{f"ALONE_THREADS_{each}": threads for each, threads in ALONE_THREADS.items()},
        "ALONE_THREADS_SINGLE": SINGLE_THREADS,
    },
    structs=STATISTICS,
)
"""Declared instances of channels_first.cu."""


def flagged_bytes(wide: int) -> int:
    """Bytes of flagged partials of blocks that share channels, statistics having `wide` bytes each."""
    return LETTER * wide * 2 * MOST_STAGES * MOST_SHARING


def bind(call: Call) -> Bound | None:
    """One launch, or None if x is too large or not aligned to vectors."""
    return _alone(call) or _once(call) or _shared(call)


def _alone(call: Call) -> Bound | None:
    view, width = call.view, call.vector
    found = plan_alone(view, width * call.itemsize, width, adds=call.adds)
    if found is None or call.x.size >= LARGEST_SIZE:
        return None
    vectors, threads, together = found
    sizes = map(np.int32, (view.images * view.post // width, view.channels, view.post, threads))
    shift = threads.bit_length() - 1 if together > 1 else 31
    walk = (divisor(view.post // width), np.int32(shift | (together.bit_length() - 1) << 5))
    arguments = (call.x, call.gamma, call.beta, *sizes, *walk, call.y, *call.numbers, call.addend, call.statistics)
    grid, block = (-(-view.channels // together),), (max(WARP, threads * together),)
    expression = f"normalize_alone<{call.ctype}, {width}, {vectors}, {flag(call.adds)}>"
    return bind_launch(SOURCE, expression, grid, block, arguments)


def _once(call: Call) -> Bound | None:
    view, itemsize = call.view, call.itemsize
    width = call.widest_or_one(widest_vector(itemsize, *call.tensors))
    found, several = plan_once(view, width, itemsize), width > 1
    if found is None and several and view.channels >= multiprocessors():
        groups = _groups(call)
        if groups is not None:
            return groups
    if found is None and several:  # single elements of few channels are faster than vectors of several
        width = 1
        found = plan_once(view, width, itemsize)
    if found is None or (found[1] > 1 and architecture() < HOPPER) or call.x.size >= LARGEST_SIZE:
        return _groups(call) if several and width == 1 else None
    group, cluster = found
    how = block_of(view, width, itemsize, group, cluster)
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


def _groups(call: Call) -> Bound | None:
    view, width = call.view, call.widest
    found = plan_groups(view, width, call.itemsize)
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
