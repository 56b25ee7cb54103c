"""normalization on the CPU: channel by channel if there are enough, else statistics and then one pass for the rest.

16-bit floats are widened and narrowed in the same pass.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._core.tuning import declare
from opgauge.ops._cpu.threads import count

_CHUNKS = declare(
    "normalization.cpu_chunks",
    64,
    (8, 16, 32, 64, 128, 256),
    backend="cpu",
    ops=("normalization",),
    why="parts of the rows that are summed separately, channels last: even shares against adding up",
)
_CHANNELS_PER_THREAD = 4
"""Channels per thread from which each thread takes whole channels, which its cache holds; fewer divide unevenly."""


@kernel("normalization", "optimized", "cpu", FLOATS, prepare=True)
def normalization(
    *,
    x: Any,
    gamma: Any,
    beta: Any,
    axis: int,
    epsilon: float,
    training: bool,
    momentum: float,
    out: dict[str, Any],
    moving_mean: Any = None,
    moving_variance: Any = None,
    add_to_output: Any = None,
) -> Bound:
    """Statistics, then one fused pass."""
    if x.size == 0:
        return lambda: None
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.normalization import jit

    axis %= x.ndim
    channels, post = x.shape[axis], prod(x.shape[axis + 1 :])
    shape = (-1, channels) if post == 1 else (prod(x.shape[:axis]), channels, post)
    wide = gamma.dtype
    n, small = x.size // channels, wide.type(epsilon)
    given, y = (storage(array.reshape(shape)) for array in (x, out["y"]))
    addend = storage(np.empty((0,) * len(shape), x.dtype) if add_to_output is None else add_to_output.reshape(shape))
    threads = count((3 if training else 2) * x.nbytes, (6 if x.dtype.itemsize == 2 else 4) * x.size)
    apply = (jit.apply_to_columns if post == 1 else jit.apply_to_rows).on(threads)
    if not training:
        return lambda: apply(given, moving_mean, gamma / np.sqrt(moving_variance + small), beta, addend, y)
    mean, inverse = out["mean"], out["inv_variance"]
    variance = np.empty(channels, wide)
    partial = np.empty((_CHUNKS.cap(n) if post == 1 else 1, channels))

    def by_channel() -> None:
        jit.train_rows.on(threads)(given, gamma, beta, small, addend, y, mean, variance, inverse)

    def by_pass() -> None:
        if post == 1:
            jit.moments_of_columns.on(threads)(given, mean, variance, partial)
        else:
            jit.moments_of_rows.on(threads)(given, mean, variance)
        np.divide(1, np.sqrt(variance + small), out=inverse)
        apply(given, mean, inverse * gamma, beta, addend, y)

    few = threads > 1 and channels // threads < _CHANNELS_PER_THREAD if post > 1 else True
    run = by_pass if few else by_channel
    if moving_mean is None:
        return run

    def run_and_move() -> None:
        run()
        unbiased = variance * (n / max(n - 1, 1))
        out["new_moving_mean"][...] = momentum * moving_mean + (1 - momentum) * mean
        out["new_moving_variance"][...] = momentum * moving_variance + (1 - momentum) * unbiased

    return run_and_move
