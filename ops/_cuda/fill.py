"""Fill a tensor with one element: 128-bit stores, one launch; kernels by element width, as elements are bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.plans import announce
from opgauge.ops._cuda.pointwise import CONSTANTS, EVERY_BLOCK, FEW, SINGLE_THREADS, THREADS, evict_last_bytes
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
MOST_THREADS = 1024
"""Threads of a block of `fill_few`, at most."""


def bind_fill(result: Any, value: Any) -> Bound:
    """Fill `result` with `value`; complex128 with 0 only. A memset takes 1.5 us in a graph, this 0.6."""
    if result.size == 0:
        return lambda: None
    element = np.full(1, value, result.dtype)
    if result.dtype.itemsize not in WORDS:
        result, element = result.reshape(-1).view(np.float64), element.real
    itemsize = result.dtype.itemsize
    word = element.view(f"u{itemsize}")
    few = full_blocks(result.size)
    if few is not None:
        announce(f"fill_few grid {few[0][0]} block {few[1][0]}: few elements")
        function = SOURCE.function(f"fill_few<{WORDS[itemsize]}>")
        return lambda: function(*few, (result, np.int32(few[1][0]), word[0]))
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


def full_blocks(size: int) -> tuple[tuple[int], tuple[int]] | None:
    """Grid and block with a thread for each element and none to spare; None for many elements, or a large prime.

    Such launches are bound by latency: on an H200 4 to 8 % faster than vectors.
    """
    if size > FEW:
        return None
    for most in (SINGLE_THREADS, MOST_THREADS):
        least = -(-size // most)
        for grid in range(least, 2 * least + 1):
            if size % grid == 0:
                return (grid,), (size // grid,)
    return None
