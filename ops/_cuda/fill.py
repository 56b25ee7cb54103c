"""Fill a tensor with one element: 128-bit stores, one launch; kernels by element width, as elements are bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.plans import announce
from opgauge.ops._cuda.pointwise import CONSTANTS, EVERY_BLOCK, THREADS, evict_last_bytes
from opgauge.ops._cuda.source import CudaSource

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
SOURCE = CudaSource(
    __file__,
    "fill.cu",
    tuple(
        f"{name}>"
        for word in WORDS.values()
        for name in (f"fill<{word}, ANY", f"fill<{word}, LARGE", f"fill_few<{word}")
    ),
    constants=CONSTANTS,
)
PATTERN_BYTES = 16
LARGE_BYTES = 64 << 20
"""Size in bytes from which stores are partly L2 evict_last; results that fit L2 take 2 % longer with it."""
FEW = 1024
"""Elements up to which a thread writes one element, in one block: such launches are bound by latency."""


def bind_fill(result: Any, value: Any) -> Bound:
    """Fill `result` with `value`; complex128 with 0 only. A memset takes 1.5 us in a graph, this 0.6."""
    if result.size == 0:
        return lambda: None
    element = np.full(1, value, result.dtype)
    if result.dtype.itemsize not in WORDS:
        result, element = result.reshape(-1).view(np.float64), element.real
    itemsize = result.dtype.itemsize
    word = element.view(f"u{itemsize}")
    if result.size <= FEW:
        announce(f"fill_few grid 1 block {result.size}: few elements")
        few = SOURCE.function(f"fill_few<{WORDS[itemsize]}>")
        return lambda: few((1,), (result.size,), (result, word[0]))
    layout = np.dtype([("word", np.uint32, (4,))])
    pattern = np.frombuffer(np.repeat(word, PATTERN_BYTES // itemsize).tobytes(), layout).copy()
    width = PATTERN_BYTES // itemsize
    head = -result.data.ptr % PATTERN_BYTES // itemsize
    vectors = (result.size - head) // width
    threads = result.size - vectors * (width - 1)
    large, kept = result.nbytes >= LARGE_BYTES, evict_last_bytes()
    function = SOURCE.function(f"fill<{WORDS[itemsize]}, {'LARGE' if large else 'ANY'}>")
    grid, block = (-(-threads // THREADS),), (THREADS,)
    announce(f"fill grid {grid[0]} block {THREADS}: 128-bit stores")
    sizes = np.int64(vectors), np.int64(threads), np.uint32(result.nbytes // kept if kept else EVERY_BLOCK)
    arguments = (result, word[0], pattern, np.int32(head), *sizes)
    return lambda: function(grid, block, arguments)
