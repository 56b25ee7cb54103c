"""scale on the CPU by Numba: one pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops.scale.op import DTYPES, as_integer

SMALL = 1 << 15
"""Elements below which one thread is faster than several."""


@kernel("scale", "optimized", "cpu", tuple(name for name in DTYPES if name != "int16"), prepare=True)
def scale(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> Bound:
    """Multiply and add at once; a scale given as a tensor is read in each run."""
    from numba import get_num_threads
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.scale import jit

    wide = accumulator(x)
    shift = wide.type(bias if x.dtype.name in FLOATS else as_integer(bias, wide))
    source, target = storage(x).reshape(-1), storage(out["out"]).reshape(-1)
    function: Any = jit.scale_few if x.size < SMALL else jit.scale_many
    last: tuple[Any, ...] = (shift, bias_after_scale)
    if streaming.pays(source, target):
        function, last = jit.scale_streaming, (*last, get_num_threads())
    if not isinstance(scale, float | int):
        return lambda: function(source, target, wide.type(scale.reshape(-1)[0]), *last)
    factor = wide.type(scale if x.dtype.name in FLOATS else as_integer(scale, wide))
    return partial(function, source, target, factor, *last)


@kernel("scale", "optimized", "cpu", ("int16",))
def scale_int16(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> None:
    """By NumPy, in place: Numba's kernels take 16-bit integers for bfloat16."""
    factor = as_integer(scale, x.dtype) if isinstance(scale, float | int) else scale.reshape(-1)[0]
    result, shift = out["out"], x.dtype.type(as_integer(bias, x.dtype))
    if bias_after_scale:
        np.multiply(x, x.dtype.type(factor), out=result)
        np.add(result, shift, out=result)
    else:
        np.add(x, shift, out=result)
        np.multiply(result, x.dtype.type(factor), out=result)
