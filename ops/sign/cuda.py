"""sign on CUDA: 128-bit accesses, one launch."""

from __future__ import annotations

from typing import Any

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import CONSTANTS, bind_flat, flat_names, flat_width
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.sign.op import DTYPES

CTYPES = {name: dtype_info(name).ctype for name in DTYPES}
SOURCE = CudaSource(__file__, "kernels.cu", flat_names("sign", CTYPES), constants=CONSTANTS)
"""C++ types by dtype, and the declared instances of kernels.cu."""


@kernel("sign", "optimized", "cuda", DTYPES, prepare=True)
def sign(*, x: Any, out: dict[str, Any]) -> Bound:
    """One read, one write."""
    result = out["out"]
    if x.size == 0:
        return lambda: None
    width = flat_width(result, x)
    return bind_flat(SOURCE, "sign", CTYPES[x.dtype.name], result, width, (x, result))
