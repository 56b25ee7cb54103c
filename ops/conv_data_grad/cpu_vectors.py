"""conv_data_grad on the CPU for few outputs, channels last: each times the taps that reach dx.

BLAS reads the matrix of a product with one row in place, and copies that of others: 512 by 2048 numbers of a filter
take 48 µs with one row, 247 with two.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.blas import matmul
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.cpu_product_costs import FLOAT_BYTES
from opgauge.ops.conv_data_grad.op import ConvGeometry

MOST_PRODUCTS, MOST_LINES, LEAST_FILTER = 32, 1 << 10, 1 << 13
"""Maximum products, and rows of taps that are looked at; least channels of dx times channels of dy, that calls pay."""
READS = 3
"""Times that the filter is read, up to which it is faster than to copy it once."""
START_NS, CALL_NS, READ_NS = 2500, 2800, 0.065
"""Time in all, of a product and its addition, and per number of the filter that it reads."""


class TapRun(NamedTuple):
    """A product: the output, the first tap and the end of those that it is multiplied with, and their pixels of dx."""

    output: tuple[int, ...]
    taps: tuple[int, int]
    target: tuple[int | slice, ...]


@lru_cache(maxsize=64)
def runs_of(found: ConvGeometry) -> tuple[TapRun, ...]:
    """The products of one image: a run of taps along the last axis each, those that lie within dx."""
    runs, width, step = [], found.kernel[-1], found.dilation[-1]
    for output in np.ndindex(*found.out_size):
        starts = [o * s - p for o, s, p in zip(output, found.strides, found.padding, strict=True)]
        first = max(0, -(starts[-1] // step))
        end = min(width, -(-(found.size[-1] - starts[-1]) // step))
        for number, line in enumerate(np.ndindex(*found.kernel[:-1])):
            place = tuple(start + tap * d for start, tap, d in zip(starts, line, found.dilation, strict=False))
            if first < end and all(0 <= at < size for at, size in zip(place, found.size, strict=False)):
                pixels = slice(starts[-1] + first * step, starts[-1] + (end - 1) * step + 1, step)
                runs.append(TapRun(output, (number * width + first, number * width + end), (*place, pixels)))
    return tuple(runs)


def are_vectors(found: ConvGeometry) -> bool:
    """Whether there are few products, which read the filter few times."""
    taps, outputs = prod(found.kernel), found.batch * prod(found.out_size)
    if not found.channels_last or found.groups > 1 or taps == 1 or found.channels * found.out_channels < LEAST_FILTER:
        return False
    if outputs > MOST_PRODUCTS or outputs * prod(found.kernel[:-1]) > MOST_LINES:
        return False
    runs = runs_of(found)
    return found.batch * len(runs) <= MOST_PRODUCTS and found.batch * _reached(runs) <= READS * taps


def _reached(runs: tuple[TapRun, ...]) -> int:
    """Taps of all products."""
    return sum(run.taps[1] - run.taps[0] for run in runs)


def vectors_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Expected time of `by_vectors`."""
    runs = runs_of(found)
    read = _reached(runs) * found.channels * found.out_channels * wide.itemsize / FLOAT_BYTES
    return START_NS + found.batch * (CALL_NS * len(runs) + READ_NS * read)


def by_vectors(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A product by BLAS for each run, added to dx while it is in the cache; no tensor is widened."""
    dy, weight, dx, addend, _ = tensors
    outs, channels = found.out_channels, found.channels
    given, matrix = dy.reshape(found.batch, *found.out_size, outs), weight.reshape(outs, -1, channels)
    into = dx.reshape(found.batch, *found.size, channels)
    products = []
    for run in runs_of(found):
        part = matrix[:, slice(*run.taps)].reshape(outs, -1)
        columns = np.empty((run.taps[1] - run.taps[0], channels), dx.dtype)
        rows = given[(slice(None), *run.output)]
        products += [(row, part, columns, one[run.target]) for row, one in zip(rows, into, strict=True)]

    def compute() -> None:
        dx[...] = 0 if addend is None else addend
        for row, part, columns, target in products:
            matmul(row, part, out=columns.reshape(-1))
            np.add(target, columns, out=target)

    return compute
