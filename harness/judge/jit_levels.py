"""Numba kernels of change points: the cheapest levels of a series, and a trend, without the interpreter's lock."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BLOCK, HALVES = 64, (32, 16, 8)
"""Places that are compared at once, and the steps in which that is done by vectors."""
INDEPENDENT = 1e-12
"""Share of the largest pivot below which a power counts as a combination of the others and the levels."""


@njit(cache=True, nogil=True)
def cheapest_levels(values: Any, price: float, edge: int) -> Any:
    """Start of the last level of the points before each place, if the levels before each are the cheapest.

    values: float64, of mean 0. price: of a level. edge: least points of a level. The sum of squares is the same for
    all levels and omitted.

    A start is dropped once a change at a later place is cheaper, as it then is for all points that follow (PELT,
    Killick et al. 2012): a level that has ended does not slow down those after it.
    """
    count = values.size
    last = np.zeros(count + 1, np.int64)
    # least cost of the points before each place; the padding costs too much
    least, sums, shares = np.empty(count + BLOCK), np.zeros(count + BLOCK), np.empty(count + BLOCK)
    for place in range(count + BLOCK):
        least[place] = np.inf
        shares[place] = 1.0 / (count - place) if place < count else 1.0
    least[0] = -price
    for place in range(count):
        sums[place + 1] = sums[place] + values[place]
    costs, dropped = np.empty(BLOCK), np.zeros(count + 1, np.int64)
    for end in range(edge, count + 1):
        starts, before, best, chosen = end - edge + 1, np.uint64(count - end), np.inf, np.uint64(0)
        for number in range(dropped[end - edge], starts, BLOCK):
            first = np.uint64(number)
            for index in range(np.uint64(BLOCK)):  # unsigned, or the loop would not be vectorized
                part = sums[end] - sums[first + index]
                costs[index] = least[first + index] - part * part * shares[before + first + index]
            for index in range(min(starts - number, BLOCK), BLOCK):
                costs[index] = np.inf
            smallest = _smallest(costs)
            if smallest < best:
                best, chosen = smallest, first
        while least[chosen] - (sums[end] - sums[chosen]) ** 2 * shares[before + chosen] != best:
            chosen += np.uint64(1)
        least[end], last[end] = best + price, chosen
        kept = dropped[end - 1]
        while kept < starts - 1 and least[kept] - (sums[end] - sums[kept]) ** 2 / (end - kept) > least[end]:
            kept += 1
        dropped[end] = kept
    return last


@njit(cache=True, nogil=True)
def fit_trend(values: Any, bounds: Any, powers: Any) -> Any:
    """The combination of `powers`, zero at first, that fits the values best together with levels at `bounds`.

    powers: float64, a row each. Powers that levels explain already are left out.
    """
    degree, count = powers.shape
    # within levels: what is left of the powers explains what is left of the values
    left = np.empty((degree + 1, count))  # the values come last
    for row in range(degree + 1):
        for level in range(bounds.size - 1):
            start, end = bounds[level], bounds[level + 1]
            total = 0.0
            for place in range(start, end):
                left[row, place] = powers[row, place] if row < degree else values[place]
                total += left[row, place]
            for place in range(start, end):
                left[row, place] -= total / (end - start)
    system = np.empty((degree, degree + 1))
    for row in range(degree):
        for column in range(degree + 1):
            total = 0.0
            for place in range(count):
                total += left[row, place] * left[column, place]
            system[row, column] = total
    factors = _solve(system)
    trend = np.zeros(count)
    for row in range(degree):
        for place in range(count):
            trend[place] += factors[row] * (powers[row, place] - powers[row, 0])
    return trend


@njit(cache=True, nogil=True)
def _solve(system: Any) -> Any:
    """Solution of a small symmetric system with its right side in the last column; 0 for what is not determined.

    In loops over elements, which Numba compiles sooner than operations on rows.
    """
    degree = system.shape[0]
    largest = system[0, 0]
    for row in range(1, degree):
        largest = max(largest, system[row, row])
    is_open = np.ones(degree, np.bool_)
    for _ in range(degree):
        pivot = -1
        for row in range(degree):
            if is_open[row] and (pivot < 0 or system[row, row] > system[pivot, pivot]):
                pivot = row
        if not system[pivot, pivot] > INDEPENDENT * largest:
            break
        is_open[pivot] = False
        divisor = system[pivot, pivot]
        for column in range(degree + 1):
            system[pivot, column] /= divisor
        for row in range(degree):
            factor = system[row, pivot]
            for column in range(degree + 1 if row != pivot else 0):
                system[row, column] -= factor * system[pivot, column]
    found = np.empty(degree)
    for row in range(degree):
        found[row] = 0.0 if is_open[row] else system[row, degree]
    return found


@njit(cache=True, nogil=True)
def squares_of_levels(values: Any, bounds: Any) -> float:
    """Sum of squares that levels at `bounds` leave."""
    squares = 0.0
    for level in range(bounds.size - 1):
        start, end = bounds[level], bounds[level + 1]
        total, within = 0.0, 0.0
        for place in range(start, end):
            total += values[place]
        for place in range(start, end):
            within += (values[place] - total / (end - start)) ** 2
        squares += within
    return squares


@njit(cache=True, nogil=True)
def median_of_five(values: Any) -> Any:
    """Median of each value and the two on either side of it, which are mirrored at the ends."""
    count = values.size
    found, window = np.empty(count), np.empty(5)
    for place in range(count):
        for offset in range(-2, 3):
            other = abs(place + offset)
            window[offset + 2] = values[other if other < count else 2 * (count - 1) - other]
        for first in range(3):
            for second in range(first + 1, 5):
                if window[second] < window[first]:
                    window[first], window[second] = window[second], window[first]
        found[place] = window[2]
    return found


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
