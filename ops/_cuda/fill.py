"""Fill a tensor with one element: 128-bit stores, one launch; kernels by element width, as elements are bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.plans import announce
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.pointwise import CONSTANTS, EVERY_BLOCK, FEW, THREADS, evict_last_bytes
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops._cuda.struct import Argument

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
SOURCE = CudaSource(
    __file__,
    "fill.cu",
    (
        "fill_exact<uint4>",
        *(f"fill_exact<{word}>" for word in WORDS.values()),
        *(f"fill<{word}, {extent}>" for word in WORDS.values() for extent in ("ANY", "LARGE")),
    ),
    constants=CONSTANTS,
)
PATTERN_BYTES = 16
LARGE_BYTES = 64 << 20
"""Size in bytes from which stores are partly L2 evict_last; results that fit L2 take 2 % longer with it."""
MOST_THREADS = (256, 512, 1024)
"""Maximum threads of a block of `fill_exact`, in order of preference; at least half as many."""


def bind_fill(result: Any, value: Any) -> Bound:
    """Fill `result` with `value`; complex128 with 0 only. A memset takes 1.5 us in a graph, this 0.6."""
    if result.size == 0:
        return lambda: None
    element = np.full(1, value, result.dtype)
    if result.dtype.itemsize not in WORDS:
        result, element = result.reshape(-1).view(np.float64), element.real
    itemsize = result.dtype.itemsize
    word = element.view(f"u{itemsize}")
    width = PATTERN_BYTES // itemsize
    pattern = (
        np.frombuffer(np.repeat(word, width).tobytes(), np.dtype([("word", np.uint32, (4,))])).copy().view(Argument)
    )
    head = -result.data.ptr % PATTERN_BYTES // itemsize
    vectors = (result.size - head) // width
    threads = result.size - vectors * (width - 1)
    large, kept = result.nbytes >= LARGE_BYTES, evict_last_bytes()
    few = result.size <= FEW
    if few or (threads == vectors and not large):
        exact = full_blocks(result.size if few else vectors)
        if exact is not None:
            grid, block = exact
            announce(f"fill_exact grid {grid[0]} block {block[0]}: no thread to spare")
            kind, content = (WORDS[itemsize], word[0]) if few else ("uint4", pattern)
            return bind_launch(SOURCE, f"fill_exact<{kind}>", grid, block, (result, np.int32(block[0]), content))
    grid, block = (-(-threads // THREADS),), (THREADS,)
    announce(f"fill grid {grid[0]} block {THREADS}: 128-bit stores")
    every = np.uint32(result.nbytes // kept if kept else EVERY_BLOCK)
    arguments = (result, np.int64(vectors), np.int64(threads), np.int32(head), every, pattern)
    return bind_launch(SOURCE, f"fill<{WORDS[itemsize]}, {'LARGE' if large else 'ANY'}>", grid, block, arguments)


def full_blocks(size: int) -> tuple[tuple[int], tuple[int]] | None:
    """Grid and block of `size` threads, in whole warps if there are many; None if there are none."""
    for most in MOST_THREADS:
        for block in range(min(most, size), min(most // 2, size) - 1, -1):
            if size % block == 0 and (size <= FEW or block % 32 == 0):
                return (size // block,), (block,)
    return None
