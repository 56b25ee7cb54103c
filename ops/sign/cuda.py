"""sign on CUDA: 128-bit accesses, one launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.cuda import Source, whole_pack
from ops._core.dtype import dtype_info
from ops._core.kernel import Bound
from ops._core.pointwise import flat, is_whole
from ops._core.registry import kernel
from ops.sign.op import DTYPES

WIDTHS = {name: 16 // dtype_info(name).itemsize for name in DTYPES}
SOURCE = Source(
    __file__,
    "kernels.cu",
    tuple(
        f"sign<{dtype_info(name).ctype}, {width}, {whole}>"
        for name in DTYPES
        for width in sorted({1, WIDTHS[name]})
        for whole in ("false", "true")
    ),
)


@kernel("sign", "optimized", "cuda", DTYPES, prepare=True)
def sign(*, x: Any, out: dict[str, Any]) -> Bound:
    """One read, one write."""
    result = out["out"]
    if x.size == 0:
        return lambda: None
    width = whole_pack(x, result)
    grid, block = flat(x.size, width)
    whole = is_whole(x.size, width)
    function = SOURCE.function(f"sign<{dtype_info(x.dtype.name).ctype}, {width}, {whole}>")
    arguments = (x, result, np.int64(x.size // width), np.int64(x.size))
    return lambda: function(grid, block, arguments)
