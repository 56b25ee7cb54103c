"""add_n on CUDA: 128-bit accesses, one launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops._core.cuda import Source, whole_pack
from ops._core.dtype import FLOATS, dtype_info
from ops._core.kernel import Bound
from ops._core.pointwise import flat, is_whole
from ops._core.registry import kernel

WIDTHS = {name: 16 // dtype_info(name).itemsize for name in FLOATS}
SOURCE = Source(
    __file__,
    "kernels.cu",
    tuple(
        f"add_n<{dtype_info(name).ctype}, {width}, {whole}>"
        for name in FLOATS
        for width in (1, WIDTHS[name])
        for whole in ("false", "true")
    ),
)


@kernel("add_n", "optimized", "cuda", FLOATS, prepare=True)
def add_n(*, in_0: Any, in_1: Any, out: dict[str, Any]) -> Bound:
    """One read of each term, one write."""
    result = out["out"]
    if result.size == 0:
        return lambda: None
    width = whole_pack(in_0, in_1, result)
    grid, block = flat(result.size, width)
    function = SOURCE.function(f"add_n<{dtype_info(in_0.dtype.name).ctype}, {width}, {is_whole(result.size, width)}>")
    arguments = (in_0, in_1, result, np.int64(result.size // width), np.int64(result.size))
    return lambda: function(grid, block, arguments)
