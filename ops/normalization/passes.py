"""normalization on CUDA by given statistics, and in two passes where one does not suffice."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.bind import bind_launch
from opgauge.ops._cuda.pointwise import evict_last_bytes
from opgauge.ops._cuda.source import CudaSource, flag, multiprocessors
from opgauge.ops._cuda.struct import divisor
from opgauge.ops._cuda.vectors import widest_vector
from opgauge.ops.normalization.call import MOST_PARTIALS, STATISTICS, THREADS, WIDTHS, Call, View
from opgauge.ops.normalization.channels_last import lanes_across

MOMENTS = 3
"""Numbers of a partial result: count of the values, their mean, squared distances from it."""
_REDUCE_BLOCKS, _APPLY_BLOCKS = 8, 8
"""Blocks per multiprocessor: for the statistics, where more mean more partial results; for inference, channels last."""
_TYPES = tuple(f"{dtype_info(dtype).ctype}, {width}" for dtype, widest in WIDTHS.items() for width in (1, widest))
SOURCE = CudaSource(
    __file__,
    "passes.cu",
    tuple(
        f"{name}>"
        for these in _TYPES
        for name in (
            f"reduce_rows<{these}",
            f"apply_rows<{these}, false",
            f"apply_rows<{these}, true",
            f"apply_columns<{these}",
        )
    ),
    structs=STATISTICS,
)
"""Declared instances of passes.cu."""


def flagged_bytes(view: View, wide: int) -> int:
    """Bytes of partial results of blocks that share a channel, statistics having `wide` bytes each."""
    return MOMENTS * wide * view.channels * _most_splits(view)


def _most_splits(view: View) -> int:
    return max(1, min(64, view.images * view.post, MOST_PARTIALS // view.channels))


def _reduce(call: Call) -> Bound:
    """Launch for the statistics."""
    view = call.view
    width = call.widest_or_one(widest_vector(call.itemsize, view.run, call.x))
    vectors = view.images * view.post // width
    wanted = min(_most_splits(view), -(-_REDUCE_BLOCKS * multiprocessors() // view.channels))
    share = -(-vectors // wanted)
    sizes = map(np.int32, (vectors, view.channels, view.post, share))
    places = divisor(view.post // width)
    arguments = (call.x, call.statistics, call.flagged, call.counters, *sizes, places, *call.numbers)
    grid = view.channels, -(-vectors // share)
    return bind_launch(SOURCE, f"reduce_rows<{call.ctype}, {width}>", grid, (THREADS,), arguments)


def apply(call: Call, mean: Any, spread: Any, *, inference: bool) -> Bound:
    """Launch for y by given means and, in inference, variances; 1 / sqrt(variance + epsilon) otherwise."""
    view, width = call.view, call.width
    vectors = call.x.size // width
    divisors = (divisor(view.post // width), divisor(view.channels))
    kept = evict_last_bytes() // (THREADS * width * call.itemsize) if inference else 0
    arguments = (*call.arrays, mean, spread, call.epsilon, np.uint32(vectors), *divisors, np.uint32(kept))
    expression = f"apply_rows<{call.ctype}, {width}, {flag(inference)}>"
    return bind_launch(SOURCE, expression, (-(-vectors // THREADS),), (THREADS,), arguments)


def apply_columns(call: Call, mean: Any, variance: Any) -> Bound:
    """Launch for y by given means and variances, channels last."""
    view, width = call.view, call.width
    lanes, across = lanes_across(view, width)
    while lanes * view.images < THREADS and across > multiprocessors():  # few rows: no thread is without one
        lanes, across = 2 * lanes, -(-across // 2)
    many = _APPLY_BLOCKS * multiprocessors() // (2 * across)
    down = max(1, min(many, -(-view.images * lanes // THREADS)))
    sizes = map(np.int32, (view.images, view.channels, lanes))
    arguments = (*call.arrays, mean, variance, *sizes, call.epsilon)
    return bind_launch(SOURCE, f"apply_columns<{call.ctype}, {width}>", (across, down), (THREADS,), arguments)


def bind(call: Call, mean: Any, inverse: Any) -> Bound:
    """Two launches, channels first: the statistics, then y."""
    steps = _reduce(call), apply(call, mean, inverse, inference=False)

    def run() -> None:
        for step in steps:
            step()

    return run
