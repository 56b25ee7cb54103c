"""normalization on the CPU: statistics and then one pass for the rest, or channel by channel.

16-bit floats are widened and narrowed in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
LINE, NARROW, LEAST_ROWS = 512, 128, 256
"""Columns, a line of several rows: its columns, the most of one row, and the fewest rows."""
SHORT = 16
"""Channels first: most elements of a channel that are columns, so that loops are long."""
SHORT_GIVEN, MANY_IMAGES = 4, 8
"""The same if the statistics are given, and a column's numbers serve many images."""
CHANNEL_NS, SEGMENT_NS, ELEMENT_NS = 28, 6, 0.65
"""Time of training by rows, per channel, per channel of each image, and per element."""
COLUMNS_NS, COLUMN_NS, TERM_NS = 4000, 10, 0.6
"""Time of training by columns: what it takes more in any case, per column, and per element."""
LONG_ROW, SMALL, LARGE = 1536, 2 << 20, 64 << 20
"""Bytes of a channel of an image, of an x that caches of cores hold, and of one that no cache holds.

Long rows of such an x are trained channel by channel, while a cache holds the channel: 0.6 to 0.9 of the time of the
moments of all and then one pass. For others the pass takes 0.3 to 0.95 of it, as its rows follow each other.
"""
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
    from opgauge.ops.normalization import jit

    axis %= x.ndim
    channels, wide, small = x.shape[axis], gamma.dtype, gamma.dtype.type(epsilon)
    threads = count((3 if training else 2) * x.nbytes, (6 if x.dtype.itemsize == 2 else 4) * x.size)
    post = x.size if channels == threads == 1 else prod(x.shape[axis + 1 :])  # then one row
    n, period = x.size // channels, channels * post
    columns = _are_columns(x.size // period, channels, post, training=training)
    repeats = _repeats(x.size // period, period) if columns else 1
    line = repeats * period if columns else post
    channel_of = np.tile(np.repeat(np.arange(channels), post), repeats) if repeats * post > 1 and columns else None
    (given, given_rest), (y, y_rest) = (_in_lines(array, line) for array in (x, out["y"]))
    addend, addend_rest = _in_lines(np.empty((0, 0), x.dtype) if add_to_output is None else add_to_output, line)
    pass_over = (jit.apply_to_columns if columns else jit.apply_to_rows).on(threads)
    parts = ((given, addend, y), (given_rest, addend_rest, y_rest))
    apply = partial(_apply, pass_over, parts[: 1 + bool(y_rest.size)], (channel_of, post), beta)
    if not training:
        return lambda: apply(moving_mean, gamma / np.sqrt(moving_variance + small))
    mean, inverse, variance = out["mean"], out["inv_variance"], np.empty(channels, wide)
    moments = (mean, variance) if channel_of is None else np.empty((2, channel_of.size), wide)
    leads = np.empty(0, np.intp) if channel_of is None else channel_of[::post] * post
    chunks = _CHUNKS.cap(max(min(threads, len(given)), len(given) // jit.DEPTH)) if columns else 1
    sums = np.empty((chunks, moments[0].size))
    by_channel = partial(jit.train_rows.on(threads), given, gamma, beta, small, addend, y, mean, variance, inverse)
    is_long = post * x.itemsize >= LONG_ROW and not SMALL < x.nbytes < LARGE

    def by_pass() -> None:
        if columns:
            jit.moments_of_columns.on(threads)(given, given_rest, *moments, sums, leads, n)
            if channel_of is not None:
                mean[...], variance[...] = (values[:period:post] for values in moments)
        else:
            jit.moments_of_rows.on(threads)(given, mean, variance)
        np.divide(1, np.sqrt(variance + small), out=inverse)
        apply(moments[0], inverse * gamma)

    few = threads > 1 and channels // threads < _CHANNELS_PER_THREAD
    run = by_channel if is_long and not few and not columns else by_pass
    if moving_mean is None:
        return run
    targets, before = (out["new_moving_mean"], out["new_moving_variance"]), (moving_mean, moving_variance)
    return partial(_run_and_move, run, targets, before, (mean, variance), n / max(n - 1, 1), momentum)


def _in_lines(array: Any, line: int) -> tuple[Any, Any]:
    """The array as (lines, line), and the rest, a last line with fewer elements, as (1, n)."""
    from opgauge.ops._cpu.jit import storage

    flat = storage(array.reshape(-1))
    whole = flat.size // line * line
    return flat[:whole].reshape(-1, line), flat[whole:].reshape(1, -1)


def _apply(
    pass_over: Callable[..., None],
    parts: tuple[tuple[Any, ...], ...],
    columns: tuple[Any, int],
    shift: Any,
    mean: Any,
    scale: Any,
) -> None:
    """One pass: (x - mean) scale + shift, plus the addend, into y; columns: as for `_of_columns`."""
    each = tuple(_of_columns(values, *columns) for values in (mean, scale, shift))
    for x, addend, y in parts:
        pass_over(x, *each, addend, y)


def _of_columns(values: Any, channel_of: Any, post: int) -> Any:
    """The values of each column's channel, of `post` neighbours or of rows in a line; values of columns as they are."""
    if channel_of is None or values.size == channel_of.size:
        return values
    return values.repeat(post) if values.size * post == channel_of.size else values[channel_of]


def _run_and_move(
    run: Bound,
    targets: tuple[Any, Any],
    before: tuple[Any, Any],
    now: tuple[Any, Any],
    unbiased: float,
    momentum: float,
) -> None:
    """Run, then compute moving statistics: a share of those before, and the rest of those now."""
    run()
    for target, old, new in zip(targets, before, (now[0], now[1] * unbiased), strict=True):
        target[...] = momentum * old + (1 - momentum) * new


def _are_columns(images: int, channels: int, post: int, *, training: bool) -> bool:
    """Whether each of a channel's `post` elements is a column, with as many rows as images."""
    if post == 1:
        return True
    if not training:
        return post <= SHORT_GIVEN and images >= MANY_IMAGES
    rows_ns = channels * (CHANNEL_NS + images * (SEGMENT_NS + ELEMENT_NS * post))
    return post <= SHORT and COLUMNS_NS + channels * post * (COLUMN_NS + TERM_NS * images) < rows_ns


def _repeats(rows: int, columns: int) -> int:
    """Rows of few columns that are taken as one, so that loops along it are vectors."""
    return max(1, min(LINE // columns, rows)) if columns <= NARROW and rows >= LEAST_ROWS else 1
