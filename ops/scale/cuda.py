"""scale on CUDA: 128-bit accesses, one launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.dtype import INTS, accumulator_info, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cuda.pointwise import CONSTANTS, bind_flat, flat_names, flat_width
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.scale.op import DTYPES, as_integer

UNSIGNED = {"int8": "unsigned char", "int16": "unsigned short", "int32": "unsigned int", "int64": "unsigned long long"}
CTYPES = {name: UNSIGNED.get(name, dtype_info(name).ctype) for name in DTYPES}
SOURCE = CudaSource(__file__, "kernels.cu", flat_names("scale", CTYPES), constants=CONSTANTS)
"""C++ types of signed integers, whose sums wrap, of all dtypes, and the declared instances of kernels.cu."""


@kernel("scale", "optimized", "cuda", DTYPES, prepare=True)
def scale(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> Bound:
    """One read, one write; a scale given as a tensor is read on the device."""
    result = out["out"]
    if x.size == 0:
        return lambda: None
    dtype = x.dtype.name
    held = accumulator_info(dtype).numpy

    def number(value: float) -> Any:
        return held.type(as_integer(value, held) if dtype in INTS else value)

    tensor = None if isinstance(scale, float | int) else scale
    numbers = (number(0 if tensor is not None else scale), number(bias), np.bool_(bias_after_scale))
    width = flat_width(result, x)
    return bind_flat(SOURCE, "scale", CTYPES[dtype], result, width, (x, result, tensor, *numbers))
