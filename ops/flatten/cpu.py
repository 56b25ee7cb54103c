"""flatten on the CPU: a view if requested, else a copy, by several threads if it is large."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._cpu import streaming
from opgauge.ops._cpu.threads import count
from opgauge.ops.flatten.baseline import view_of
from opgauge.ops.flatten.op import DTYPES, FlattenParams, flat_shape


@kernel("flatten", "optimized", "cpu", DTYPES, prepare=True, strided=True)
def flatten(*, x: Any, start_axis: int, stop_axis: int, copy: bool, out: dict[str, Any]) -> Bound:
    """Copy once, or return a view."""
    shape = flat_shape(x.shape, FlattenParams(start_axis, stop_axis, copy))
    if not copy:
        return lambda: (view_of(x, shape),)
    result = out["out"]
    threads = count(2 * x.nbytes)
    if not x.flags.c_contiguous:
        return partial(np.copyto, result.reshape(x.shape), x)
    from opgauge.ops.flatten import jit

    word = f"u{min(x.dtype.itemsize, 8)}"
    source, target = x.reshape(-1).view(word), result.reshape(-1).view(word)
    if streaming.pays(source, target):
        return partial(jit.copy_streaming.on(threads), source, target, threads)
    return partial(jit.copy.on(threads), source, target)
