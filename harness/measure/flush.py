"""Overwrite a GPU's L2 cache, also what a kernel asked to be kept there."""

from __future__ import annotations

from typing import Any

import numpy as np

FLUSH_FACTOR = 2
LEAST_FLUSH = 64 << 20
BLOCKS, THREADS = 1024, 256
WORD_BYTES, LINE_BYTES = 16, 128


class Flush:
    """Writes a buffer of twice the cache, first as what is evicted last, then as anything else.

    torch.compile's kernels load what they will need again by `evict_last`. A fifth of the cache then outlives any
    amount of plain writes, and their next call, or another implementation's on the same inputs, is not cold.
    """

    def __init__(self, cupy: Any, module: Any, stream: Any, cache_bytes: int) -> None:
        self._displace, self._release = module.get_function("displace"), module.get_function("release")
        self._stream = stream
        self._buffer = cupy.empty(max(FLUSH_FACTOR * cache_bytes, LEAST_FLUSH), cupy.uint8)
        self._words = np.uint32(self._buffer.nbytes // WORD_BYTES)
        self._lines = np.uint32(self._buffer.nbytes // LINE_BYTES)

    def __call__(self, value: int) -> None:
        """Enqueue it; the buffer is full of `value` (0 to 255) then."""
        self._displace((BLOCKS,), (THREADS,), (self._buffer, self._words))
        self._release((BLOCKS,), (THREADS,), (self._buffer, self._lines))
        self._buffer.data.memset_async(value, self._buffer.nbytes, self._stream)
