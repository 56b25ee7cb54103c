"""Gather and scatter of weighted rows: samples read from an image, and gradients added to one.

A row is one pixel with all its channels. Work is divided into blocks that fit a processor's cache and runs on all
processors: NumPy releases the interpreter lock while it computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

from opgauge.ops._core.op import Array

CORNERS = 4
BLOCK = 1 << 15
"""Numbers per block."""


def in_blocks(work: Callable[[int, slice], None], groups: int, count: int, width: int) -> None:
    """Run `work` in threads, for each group and each part of `count` rows of `width` numbers."""
    step = max(1, BLOCK // max(1, width))
    parts = [slice(start, min(start + step, count)) for start in range(0, count, step)]

    def quietly(at: tuple[int, slice]) -> None:
        with np.errstate(all="ignore"):  # per thread
            work(*at)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(quietly, product(range(groups), parts)))


def _wide(array: Array) -> np.dtype:
    """Dtype of sums: float64, or the wider one of `array`."""
    return np.result_type(array, np.float64)


def blend(
    rows: Array, places: Array, weights: Sequence[tuple[Array, Array]], against: Array | None = None
) -> tuple[list[Array], Array]:
    """Weighted sums of each sample's corner rows, and their products with a row of its own.

    rows: (G, R, C). places: (G, S, 4), the rows that a sample reads. weights: pairs of (G, S, 4), a weight per
    corner, and (G, S), a factor of the sum; each gives sums (G, S, C). against: (G, S, C), for products (G, S, 4).
    """
    (groups, _, width), count = rows.shape, places.shape[1]
    dtype = _wide(rows)
    sums = [np.empty((groups, count, width), dtype) for _ in weights]
    products = np.zeros(places.shape, dtype)

    def work(group: int, part: slice) -> None:
        at = (group, part)
        read, scaled = np.empty((2, part.stop - part.start, width), dtype)
        for corner in range(CORNERS):
            np.take(rows[group], places[(*at, corner)], axis=0, out=read, mode="clip")
            if against is not None:
                np.einsum("sc,sc->s", read, against[at], out=products[(*at, corner)])
            for total, (weight, _) in zip(sums, weights, strict=True):
                np.multiply(read, weight[(*at, corner, None)], out=scaled if corner else total[at])
                if corner:
                    total[at] += scaled
        for total, (_, factor) in zip(sums, weights, strict=True):
            total[at] *= factor[(*at, None)]

    in_blocks(work, groups, count, width)
    return sums, products


class RowScatter:
    """Scatter: adds a row of each sample to its corners.

    Target rows are sorted by their number of additions: the n-th addition then applies to
    a leading range of them, without gaps.
    """

    def __init__(self, places: Array, size: int) -> None:
        """places: (S, 4), the target rows of a sample; those from `size` on are ignored."""
        flat = places.reshape(-1)
        entries = np.flatnonzero(flat < size)
        # sorting numbers is several times faster than argsort
        order = np.sort(flat[entries] * flat.size + entries)
        counts = np.bincount(order // max(1, flat.size), minlength=size)
        self.entries = order % max(1, flat.size)
        self.rows = np.argsort(-counts, kind="stable")
        self.counts = counts[self.rows]
        self.starts = (np.cumsum(counts) - counts)[self.rows]

    def __call__(self, given: Array, weights: Array) -> Array:
        """given: (S, C), a row per sample. weights: (S, 4), one per corner. Returns (size, C)."""
        by_entry = weights.reshape(-1)
        total = np.zeros((len(self.rows), given.shape[1]), _wide(given))

        def work(_: int, part: slice) -> None:
            counts, starts = self.counts[part], self.starts[part]
            for turn in range(counts[0]):
                reached = np.searchsorted(-counts, -turn)
                entries = self.entries[starts[:reached] + turn]
                row = np.take(given, entries // CORNERS, axis=0)
                row *= by_entry[entries, None]
                total[part.start : part.start + reached] += row

        in_blocks(work, 1, *total.shape)
        spread = np.empty_like(total)
        spread[self.rows] = total
        return spread
