"""Overwriting a GPU's L2 cache, including lines that a kernel marked evict_last."""

from __future__ import annotations

from typing import Any

import numpy as np

FLUSH_FACTOR = 2
"""Size of the buffer as a multiple of the cache."""
LEAST_FLUSH = 64 << 20
"""Least bytes of the buffer."""
BLOCKS, THREADS = 1024, 256
"""Grid and block of the kernel that writes the buffer."""
WORD_BYTES, LINE_BYTES = 16, 128
"""Bytes of a store, and of a cache line."""


class Flush:
    """Writes a buffer of twice the cache, first with evict_last, then with the normal policy.

    torch.compile's kernels load data that they will read again with evict_last. A fifth of the cache then survives
    any number of normal writes, and the next call, or another implementation on the same inputs, would not be cold.
    """

    def __init__(self, cupy: Any, module: Any, stream: Any, cache_bytes: int) -> None:
        self._displace, self._release = module.get_function("displace"), module.get_function("release")
        self._stream = stream
        self._buffer = cupy.empty(max(FLUSH_FACTOR * cache_bytes, LEAST_FLUSH), cupy.uint8)
        self._words = np.uint32(self._buffer.nbytes // WORD_BYTES)
        self._lines = np.uint32(self._buffer.nbytes // LINE_BYTES)

    def __call__(self, value: int) -> None:
        """Enqueue the writes; the buffer then has the value `value` (0 to 255) in every byte."""
        self._displace((BLOCKS,), (THREADS,), (self._buffer, self._words))
        self._release((BLOCKS,), (THREADS,), (self._buffer, self._lines))
        self._buffer.data.memset_async(value, self._buffer.nbytes, self._stream)
