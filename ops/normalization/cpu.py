"""normalization on the CPU: channel by channel if there are enough, else statistics and then one pass for the rest.

16-bit floats are widened and narrowed in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from opgauge.ops._core.axes import largest_divisor
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
LINE, NARROW, LEAST_ROWS = 256, 32, 256
"""Channels last, a line of several rows: its channels, the most of one row, and the fewest rows."""
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
    repeats = _repeats(x.size // channels, channels) if post == 1 else 1
    shape = (-1, repeats * channels) if post == 1 else (prod(x.shape[:axis]), channels, post)
    wide, n = gamma.dtype, x.size // channels
    small = wide.type(epsilon)
    given, y = (storage(array.reshape(shape)) for array in (x, out["y"]))
    addend = storage(np.empty((0,) * len(shape), x.dtype) if add_to_output is None else add_to_output.reshape(shape))
    threads = count((3 if training else 2) * x.nbytes, (6 if x.dtype.itemsize == 2 else 4) * x.size)
    pass_over = (jit.apply_to_columns if post == 1 else jit.apply_to_rows).on(threads)
    apply = partial(_apply, pass_over, (given, addend, y), repeats, beta)
    if not training:
        return lambda: apply(moving_mean, gamma / np.sqrt(moving_variance + small))
    mean, inverse = out["mean"], out["inv_variance"]
    variance = np.empty(channels, wide)
    moments = (mean, variance) if repeats == 1 else np.empty((2, repeats * channels), wide)
    sums = np.empty((_CHUNKS.cap(n // repeats) if post == 1 else 1, repeats * channels))
    by_channel = partial(jit.train_rows.on(threads), given, gamma, beta, small, addend, y, mean, variance, inverse)

    def by_pass() -> None:
        if post == 1:
            jit.moments_of_columns.on(threads)(given, *moments, sums, channels)
            if repeats > 1:
                mean[...], variance[...] = (values[:channels] for values in moments)
        else:
            jit.moments_of_rows.on(threads)(given, mean, variance)
        np.divide(1, np.sqrt(variance + small), out=inverse)
        apply(mean, inverse * gamma)

    few = threads > 1 and channels // threads < _CHANNELS_PER_THREAD if post > 1 else True
    run = by_pass if few else by_channel
    if moving_mean is None:
        return run
    targets = out["new_moving_mean"], out["new_moving_variance"]

    def run_and_move() -> None:
        run()
        _move(targets, (moving_mean, moving_variance), (mean, variance * (n / max(n - 1, 1))), momentum)

    return run_and_move


def _apply(
    pass_over: Callable[..., None], arrays: tuple[Any, Any, Any], repeats: int, shift: Any, mean: Any, scale: Any
) -> None:
    """One pass: (x - mean) scale + shift, plus the addend, into y; per channel, which repeat along a row."""
    x, addend, y = arrays
    each = (np.tile(values, repeats) if repeats > 1 else values for values in (mean, scale, shift))
    pass_over(x, *each, addend, y)


def _move(targets: tuple[Any, Any], before: tuple[Any, Any], now: tuple[Any, Any], momentum: float) -> None:
    """Moving statistics: a share of those before, and the rest of those now."""
    for target, old, new in zip(targets, before, now, strict=True):
        target[...] = momentum * old + (1 - momentum) * new


def _repeats(rows: int, channels: int) -> int:
    """Rows of few channels that are taken as one, so that loops along it are vectors; they divide the rows."""
    return largest_divisor(rows, LINE // channels) if channels <= NARROW and rows >= LEAST_ROWS else 1
