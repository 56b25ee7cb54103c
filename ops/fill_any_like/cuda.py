"""fill_any_like on CUDA: 128-bit stores, one launch; kernels by element width, as elements are copied as bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_name
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import CONSTANTS, EVERY_BLOCK, THREADS, evict_last_bytes
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.fill_any_like.op import DTYPES, as_element

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
SOURCE = CudaSource(
    __file__,
    "kernels.cu",
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


@kernel("fill_any_like", "optimized", "cuda", DTYPES, prepare=True, strided=True)
def fill_any_like(*, x: Any, value: float, dtype: str | None, out: dict[str, Any]) -> Bound:
    """One write."""
    result = out["out"]
    if result.size == 0:
        return lambda: None
    itemsize = result.dtype.itemsize
    element = np.full(1, as_element(value, dtype or dtype_name(x.dtype)), result.dtype).view(f"u{itemsize}")
    if result.size <= FEW:
        few = SOURCE.function(f"fill_few<{WORDS[itemsize]}>")
        return lambda: few((1,), (result.size,), (result, element[0]))
    layout = np.dtype([("word", np.uint32, (4,))])
    pattern = np.frombuffer(np.repeat(element, PATTERN_BYTES // itemsize).tobytes(), layout).copy()
    width = PATTERN_BYTES // itemsize
    head = -result.data.ptr % PATTERN_BYTES // itemsize
    vectors = (result.size - head) // width
    threads = result.size - vectors * (width - 1)
    large, kept = result.nbytes >= LARGE_BYTES, evict_last_bytes()
    function = SOURCE.function(f"fill<{WORDS[itemsize]}, {'LARGE' if large else 'ANY'}>")
    grid, block = (-(-threads // THREADS),), (THREADS,)
    sizes = np.int64(vectors), np.int64(threads), np.uint32(result.nbytes // kept if kept else EVERY_BLOCK)
    arguments = (result, element[0], pattern, np.int32(head), *sizes)
    return lambda: function(grid, block, arguments)
