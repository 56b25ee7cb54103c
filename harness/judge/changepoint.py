"""Change points: the commits at which a stored series changed its level.

The logs of the values are parted into levels so that the squared distances from them plus a
price per part are least (optimal partitioning, Jackson et al. 2005). The noise is
taken from the differences of neighbours, robustly, so that steps do not count as noise; lone
spikes are first drawn in to the level around them. A change must then hold
against Student's t-test of the two parts beside it, as in Hunter (Fleming et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from opgauge.harness.judge.estimate import Floats
from opgauge.harness.judge.student import upper_tail

LEAST_POINTS = 10
EDGE = 3
"""Points that a level has at least: fewer at an edge may be a spike."""
SPIKE = 4.0
"""Multiples of the noise beyond which a point is drawn in to the median of the five around it."""
PRICE = 3.0
"""Price of a part, as a multiple of the log of the number of points times the noise squared."""
SIGNIFICANCE = 5e-4
_SPREAD_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change of level.

    index: the first point of the new level. before, after: median of the levels, in the
    series' unit. ratio: after over before, from the means of the logs. p_value: of the
    t-test between the two levels.
    """

    index: int
    before: float
    after: float
    ratio: float
    p_value: float


def find_change_points(values: Sequence[float], *, least_ratio: float = 1.0) -> tuple[ChangePoint, ...]:
    """Change points of a series of positive values in order of commit; none of fewer than `LEAST_POINTS`.

    least_ratio: smaller changes, up or down, are passed over. Raises ValueError for values that are not
    positive and finite.
    """
    series = np.asarray(values, np.float64)
    if not np.all(np.isfinite(series) & (series > 0)):
        msg = "a series has positive, finite values only"
        raise ValueError(msg)
    if series.size < LEAST_POINTS:
        return ()
    logs = np.log(series)
    noise = _noise(logs)
    calm = _drawn_in(logs, noise)
    bounds = _partition(calm, PRICE * math.log(series.size) * noise**2)
    kept = _prune(calm, bounds, least_ratio)
    return tuple(_describe(series, calm, kept, place) for place in range(1, len(kept) - 1))


def _noise(logs: Floats) -> float:
    """Standard deviation about the level, from the differences of neighbours."""
    steps = np.diff(logs)
    deviation = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    return max(deviation, _SPREAD_FLOOR)


def _drawn_in(logs: Floats, noise: float) -> Floats:
    """The logs, lone spikes drawn in to the edge of the band around their neighbours."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(logs, 2, mode="reflect"), 5)
    middle = np.median(around, axis=1)
    return np.clip(logs, middle - SPIKE * noise, middle + SPIKE * noise)


def _partition(logs: Floats, price: float) -> list[int]:
    """Bounds of the parts, 0 and the length included, that cost least; parts have `EDGE` points or more."""
    count = logs.size
    shifted = logs - logs.mean()
    sums = np.concatenate(([0.0], np.cumsum(shifted)))
    last = np.zeros(count + 1, np.int64)
    # the least cost of the points before each; their squares are in every partition, so they are left out
    least = np.full(count + 1, np.inf)
    least[0] = -price
    lengths = np.arange(count, 0, -1)
    for end in range(EDGE, count + 1):
        starts = slice(end - EDGE + 1)
        steps = sums[end] - sums[starts]
        total = least[starts] - steps * steps / lengths[count - end :][starts]
        last[end] = total.argmin()
        least[end] = total[last[end]] + price
    bounds = [count]
    while bounds[-1]:
        bounds.append(int(last[bounds[-1]]))
    return bounds[::-1]


def _prune(logs: Floats, bounds: list[int], least_ratio: float) -> list[int]:
    """The bounds that hold; the others are dropped one by one, weakest first."""
    bounds = list(bounds)
    while len(bounds) > 2:
        tests = [_test(logs, *bounds[place - 1 : place + 2]) for place in range(1, len(bounds) - 1)]
        weak = [
            (p_value, -abs(change), place)
            for place, (change, p_value) in enumerate(tests, start=1)
            if p_value > SIGNIFICANCE or abs(change) < math.log(least_ratio)
        ]
        if not weak:
            break
        del bounds[max(weak)[2]]
    return bounds


def _test(logs: Floats, start: int, middle: int, end: int) -> tuple[float, float]:
    """Change of the mean, and p of the pooled two-sided t-test."""
    left, right = logs[start:middle], logs[middle:end]
    change = float(right.mean() - left.mean())
    degrees = left.size + right.size - 2
    square = float(((left - left.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum()) / degrees
    error = math.sqrt(max(square, _SPREAD_FLOOR**2) * (1 / left.size + 1 / right.size))
    return change, 2 * float(upper_tail(abs(change) / error, degrees))


def _describe(series: Floats, logs: Floats, bounds: list[int], place: int) -> ChangePoint:
    start, middle, end = bounds[place - 1 : place + 2]
    change, p_value = _test(logs, start, middle, end)
    before, after = float(np.median(series[start:middle])), float(np.median(series[middle:end]))
    return ChangePoint(middle, before, after, math.exp(change), p_value)
