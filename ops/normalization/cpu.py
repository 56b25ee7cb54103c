"""normalization on the CPU: two passes for the statistics, one for all else. 16-bit floats go through float32."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ops._core.dtype import FLOATS
from ops._core.kernel import Bound
from ops._core.registry import kernel

CHUNKS = 64


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
    from ops.normalization import jit

    channels, post = x.shape[axis], prod(x.shape[axis + 1 :])
    shape = (-1, channels) if post == 1 else (prod(x.shape[:axis]), channels, post)
    wide = gamma.dtype
    n = max(x.size // max(channels, 1), 1)
    mean, variance = np.empty(channels, wide), np.empty(channels, wide)
    partial = np.empty((min(CHUNKS, n), channels), wide)
    nothing = np.empty((0,) * len(shape), wide)
    narrow = x.dtype != wide
    y = np.empty(x.shape, wide).reshape(shape) if narrow else out["y"].reshape(shape)

    def statistics(values: Any) -> None:
        if post == 1:
            jit.moments_of_columns(values, mean, variance, partial)
        else:
            jit.moments_of_rows(values, mean, variance)

    def run() -> None:
        if x.size == 0:
            return
        values = x.astype(wide, copy=False).reshape(shape)
        addend = nothing if add_to_output is None else add_to_output.astype(wide, copy=False).reshape(shape)
        if training:
            statistics(values)
        middle, spread = (mean, variance) if training else (moving_mean, moving_variance)
        inverse = 1 / np.sqrt(spread + wide.type(epsilon))
        if training:
            out["mean"][...] = mean
            out["inv_variance"][...] = inverse
            if moving_mean is not None:
                out["new_moving_mean"][...] = momentum * moving_mean + (1 - momentum) * mean
                unbiased = variance * (n / max(n - 1, 1))
                out["new_moving_variance"][...] = momentum * moving_variance + (1 - momentum) * unbiased
        apply = jit.apply_to_columns if post == 1 else jit.apply_to_rows
        apply(values, middle, inverse * gamma, beta, addend, y)
        if narrow:
            out["y"][...] = y.reshape(x.shape)

    return run
