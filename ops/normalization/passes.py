"""normalization on CUDA by given statistics, and in two passes: what is left where one does not do."""

from __future__ import annotations

from typing import Any

import numpy as np
from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._cuda.pointwise import kept_bytes
from opgauge.ops._cuda.source import Source, divisor, flag, multiprocessors, widest_pack
from opgauge.ops.normalization.call import MOST_PARTIALS, THREADS, WIDTHS, Call, View, declare
from opgauge.ops.normalization.channels_last import lanes_across

MOMENTS = 3
"""Numbers of a partial result: how many values, their mean, squared distances from it."""
_REDUCE_BLOCKS = declare(
    "reduce_blocks_per_multiprocessor",
    8,
    (4, 8, 16, 32),
    "blocks that share the statistics where one pass is not possible: bandwidth against partial moments",
)
_APPLY_BLOCKS = declare(
    "apply_blocks_per_multiprocessor",
    8,
    (2, 4, 8, 16, 32),
    "blocks of inference, channels last: the end of a wave against the cost of a block",
)
_TYPES = tuple(f"{dtype_info(dtype).ctype}, {width}" for dtype, widest in WIDTHS.items() for width in (1, widest))
SOURCE = Source(
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
)


def mail_bytes(view: View, wide: int) -> int:
    """Room for partial results of blocks that share a channel, statistics being `wide` bytes each."""
    return MOMENTS * wide * view.channels * _most_splits(view)


def _most_splits(view: View) -> int:
    return max(1, min(64, view.images * view.post, MOST_PARTIALS // view.channels))


def _reduce(call: Call) -> Bound:
    """The statistics."""
    view = call.view
    width = call.widest_or_one(widest_pack(call.itemsize, view.run, call.x))
    packs = view.images * view.post // width
    wanted = min(_most_splits(view), -(-_REDUCE_BLOCKS.value() * multiprocessors() // view.channels))
    share = -(-packs // wanted)
    function = SOURCE.function(f"reduce_rows<{call.ctype}, {width}>")
    sizes = map(np.int32, (packs, view.channels, view.post, share))
    places = divisor(view.post // width)
    arguments = (call.x, call.statistics, call.mail, call.tickets, *sizes, places, *call.numbers)
    return lambda: function((view.channels, -(-packs // share)), (THREADS,), arguments)


def apply(call: Call, mean: Any, spread: Any, *, inference: bool) -> Bound:
    """y by given means and, in inference, variances; 1 / sqrt(variance + epsilon) otherwise. Channels first."""
    view, width = call.view, call.width
    packs = call.x.size // width
    function = SOURCE.function(f"apply_rows<{call.ctype}, {width}, {flag(inference)}>")
    divisors = (divisor(view.post // width), divisor(view.channels))
    kept = kept_bytes() // (THREADS * width * call.itemsize) if inference else 0
    arguments = (*call.arrays, mean, spread, call.epsilon, np.uint32(packs), *divisors, np.uint32(kept))
    return lambda: function((-(-packs // THREADS),), (THREADS,), arguments)


def apply_columns(call: Call, mean: Any, variance: Any) -> Bound:
    """y by given means and variances; channels last."""
    view, width = call.view, call.width
    lanes, across = lanes_across(view, width)
    many = _APPLY_BLOCKS.value() * multiprocessors() // (2 * across)
    down = max(1, min(many, -(-view.images * lanes // THREADS)))
    function = SOURCE.function(f"apply_columns<{call.ctype}, {width}>")
    sizes = map(np.int32, (view.images, view.channels, lanes))
    arguments = (*call.arrays, mean, variance, *sizes, call.epsilon)
    return lambda: function((across, down), (THREADS,), arguments)


def bind(call: Call, mean: Any, inverse: Any) -> Bound:
    """Two launches, channels first: the statistics, then y."""
    steps = _reduce(call), apply(call, mean, inverse, inference=False)

    def run() -> None:
        for step in steps:
            step()

    return run
