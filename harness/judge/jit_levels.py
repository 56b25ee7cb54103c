"""Numba kernel of change points: the cheapest levels of a series, without the interpreter's lock."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BLOCK, HALVES = 64, (32, 16, 8)
"""Places that are compared at once, and the steps in which that is done by vectors."""


@njit(cache=True, nogil=True)
def cheapest_levels(values: Any, price: float, edge: int) -> Any:
    """Start of the last level of the points before each place, if the levels before each are the cheapest.

    values: float64, of mean 0. price: of a level. edge: least points of a level. The sum of squares is the same for
    all levels and omitted.
    """
    count = values.size
    last = np.zeros(count + 1, np.int64)
    # least cost of the points before each place; the padding costs too much
    least, sums = np.full(count + BLOCK, np.inf), np.zeros(count + BLOCK)
    least[0] = -price
    for place in range(count):
        sums[place + 1] = sums[place] + values[place]
    shares = np.ones(count + BLOCK)
    shares[:count] = 1.0 / np.arange(count, 0, -1)
    costs = np.empty(BLOCK)
    for end in range(edge, count + 1):
        starts, before, best, chosen = end - edge + 1, np.uint64(count - end), np.inf, np.uint64(0)
        for number in range(0, starts, BLOCK):
            first = np.uint64(number)
            for index in range(np.uint64(BLOCK)):  # unsigned, or the loop would not be vectorized
                part = sums[end] - sums[first + index]
                costs[index] = least[first + index] - part * part * shares[before + first + index]
            costs[min(starts - number, BLOCK) :] = np.inf
            smallest = _smallest(costs)
            if smallest < best:
                best, chosen = smallest, first
        while least[chosen] - (sums[end] - sums[chosen]) ** 2 * shares[before + chosen] != best:
            chosen += np.uint64(1)
        least[end], last[end] = best + price, chosen
    return last


@njit(cache=True, nogil=True)
def _smallest(costs: Any) -> Any:
    """The smallest of a block, whose order is lost."""
    for half in HALVES:
        for index in range(np.uint64(half)):
            other = costs[index + np.uint64(half)]
            costs[index] = min(costs[index], other)
    smallest = costs[0]
    for index in range(1, HALVES[-1]):
        smallest = min(smallest, costs[index])
    return smallest
