"""add_n on CUDA: 128-bit accesses, one launch."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import CONSTANTS, bind_flat, flat_names, flat_width
from opgauge.ops._cuda.source import CudaSource

CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
SOURCE = CudaSource(__file__, "kernels.cu", flat_names("add_n", CTYPES), constants=CONSTANTS)
"""C++ types by dtype, and the declared instances of kernels.cu."""


@kernel("add_n", "optimized", "cuda", FLOATS, prepare=True)
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """One read of each term, one write."""
    result = out["out"]
    if result.size == 0:
        return lambda: None
    width = flat_width(result, in_0, in_1)
    return bind_flat(SOURCE, "add_n", CTYPES[in_0.dtype.name], result, width, (in_0, in_1, result))
