"""Kernels that read, add, copy and fill device memory, each in several ways: the fastest is a device's ceiling.

The driver's copy is no ceiling: on an H100, kernels that store a part of their output with L2 evict_last, whose lines
do not wait for write-back, took a seventh less time for 32 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.ops._core.backend import cupy

Launch = Callable[[], object]
"""A call that launches one kernel on the current stream."""
SOURCE = Path(__file__).parent / "traffic.cu"
"""CUDA source of the kernels."""
WORD_BYTES, THREADS = 16, 256
"""Bytes per access, and threads per block."""
ACCESSES = (1, 4, 8)
"""Accesses per thread in grids that grow with the size."""
RESIDENT_BLOCKS = 8
"""Blocks per multiprocessor in a grid that does not."""
LOADS = tuple(np.int32(loads) for loads in range(3))
"""`Loads` of the kernels: with the default policy, evicted first, and with evict_last."""
KEPT_SHARES = (0.0, 0.3, float("inf"))
"""Bytes stored with evict_last, as shares of L2: none, what it holds for kernels of this project, and all."""


class Traffic:
    """The kernels on one device, with 16-byte accesses; memory is a `cupy.cuda.MemoryPointer` at a multiple of 16."""

    def __init__(self, index: int) -> None:
        xp = cupy()
        device = xp.cuda.Device(index)
        module = xp.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("-std=c++17",))
        names = ("read_all", "add_all", "copy_all", "fill_all")
        self._read, self._add, self._copy, self._fill = map(module.get_function, names)
        self._seen_bits = xp.zeros(1, np.uint32)
        self._multiprocessors = int(device.attributes["MultiProcessorCount"])
        cache_words = int(device.attributes["L2CacheSize"]) / WORD_BYTES
        self._kept = [np.uint64(min(share * cache_words, 2**62)) for share in KEPT_SHARES]

    def reads(self, source: Any, nbytes: int) -> Iterator[Launch]:
        """Launches that read the first `nbytes`."""
        words = nbytes // WORD_BYTES
        for blocks, loads in product(self._grids(words), LOADS):
            yield partial(self._read, (blocks,), (THREADS,), (source.ptr, np.uint64(words), loads, self._seen_bits))

    def adds(self, source: Any, target: Any, nbytes: int) -> Iterator[Launch]:
        """Launches that read two thirds of `nbytes`, and write a third."""
        words = nbytes // (3 * WORD_BYTES)
        for blocks, loads, kept in product(self._grids(words), LOADS, self._kept):
            second = source + words * WORD_BYTES
            arguments = (source.ptr, second.ptr, target.ptr, np.uint64(words), loads, kept)
            yield partial(self._add, (blocks,), (THREADS,), arguments)

    def copies(self, source: Any, target: Any, nbytes: int) -> Iterator[Launch]:
        """Launches that copy `nbytes`, and the driver's copy."""
        words = nbytes // WORD_BYTES
        for blocks, loads, kept in product(self._grids(words), LOADS, self._kept):
            arguments = (source.ptr, target.ptr, np.uint64(words), loads, kept)
            yield partial(self._copy, (blocks,), (THREADS,), arguments)
        yield partial(target.copy_from_device_async, source, nbytes)

    def fills(self, target: Any, nbytes: int) -> Iterator[Launch]:
        """Launches that fill `nbytes`, and the driver's fill."""
        words = nbytes // WORD_BYTES
        for blocks, kept in product(self._grids(words), self._kept):
            yield partial(self._fill, (blocks,), (THREADS,), (target.ptr, np.uint64(words), kept))
        yield partial(target.memset_async, 1, nbytes)

    def _grids(self, words: int) -> list[int]:
        grids = {-(-words // (THREADS * accesses)) for accesses in ACCESSES}
        return sorted(grids | {min(max(grids), RESIDENT_BLOCKS * self._multiprocessors)})
