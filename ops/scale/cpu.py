"""scale on the CPU by Numba."""

from __future__ import annotations

from functools import partial
from typing import Any

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count
from opgauge.ops.scale.op import DTYPES, as_integer


@kernel("scale", "optimized", "cpu", DTYPES, prepare=True)
def scale(*, x: Any, scale: Any, bias: float, bias_after_scale: bool, out: dict[str, Any]) -> Bound:
    """Multiply and add in one pass; a scale given as a tensor is read in each run."""
    from opgauge.ops._cpu.jit import accumulator, storage
    from opgauge.ops.scale import jit

    wide = accumulator(x)
    shift = wide.type(bias if x.dtype.name in FLOATS else as_integer(bias, wide))
    source, target = storage(x).reshape(-1), storage(out["out"]).reshape(-1)
    threads = count(2 * x.nbytes, 3 * x.size)
    function = (jit.scale_streaming if streaming.pays(source, target) else jit.scale_flat).on(threads)
    last = (shift, bias_after_scale, threads)
    if not isinstance(scale, float | int):
        return lambda: function(source, target, wide.type(scale.reshape(-1)[0]), *last)
    factor = wide.type(scale if x.dtype.name in FLOATS else as_integer(scale, wide))
    return partial(function, source, target, factor, *last)
