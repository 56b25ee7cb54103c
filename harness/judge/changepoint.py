"""Change points: the commits at which a stored series changed its level.

The logs of the values are partitioned into levels so that the sum of squared residuals plus a price per level is least
(optimal partitioning, Jackson et al. 2005). The noise is estimated robustly from differences of neighbours, so that
steps do not count as noise. Isolated spikes are moved to the level around them, and excursions that return are not
levels. A slow trend, or autocorrelated noise, replaces the levels that it explains at a lower price. Each change must
pass Student's t-test of the two adjacent levels, as in Hunter (Fleming et al. 2023). Its standard error includes the
autocorrelation of the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opgauge.harness.judge.estimate import Floats
from opgauge.harness.judge.student import upper_tail

LEAST_POINTS = 10
"""Least points of a series that is analysed."""
EDGE = 3
"""Least points of a level: fewer at an edge may be a spike."""
CONFIRMING = 5
"""Points from which the first and the last level are confirmed; fewer may be a burst, to be measured again."""
BURST = 5
"""Most points of an excursion that returns to the previous level."""
MOST_BURSTS = 6
"""Most excursions of a series that are replaced."""
SPIKE = 4.0
"""Multiple of the noise beyond which a point is moved to the median of the five around it."""
PRICE = 3.0
"""Price of a level, as a multiple of the log of the number of points times the noise squared."""
SIGNIFICANCE = 5e-4
"""Largest p value of a change."""
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Lag-1 autocorrelations of the noise that are tried."""
CORRELATION_PRICE = 0.3
"""Price of a correlation, in levels: without it, series of several steps count as correlated."""
MOST_CORRELATED = 0.9
"""Autocorrelation, at most, by which the standard error of a level is inflated."""
LONG_ENOUGH = 20
"""Points from which trends and correlations are tried."""
DEGREES = (1, 2, 3)
"""Degrees of the polynomial of a trend."""
TREND_PRICE = 0.75
"""Price per degree of the trend, in levels: a slow change is more frequent than several steps in one direction."""
ROUNDS = 3
"""Number of times that levels and trend are fitted alternately."""
_SPREAD_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change of level.

    index: the first point of the new level. before, after: median of the levels, in the series' unit. ratio: after
    over before, without the trend, from medians of logs. p_value: of the t-test between the two levels.
    is_confirmed: whether the new level has lasted too long for a burst.
    """

    index: int
    before: float
    after: float
    ratio: float
    p_value: float
    is_confirmed: bool = True


@dataclass(frozen=True, slots=True)
class SeriesChanges:
    """Changes of a series.

    points: changes of level, in order. trend: ratio of the last to the first value along a slow trend; 1 without a
    trend. correlation: lag-1 autocorrelation, 0 to 1. path: log of the trend at each value; empty without a trend.
    """

    points: tuple[ChangePoint, ...] = ()
    trend: float = 1.0
    correlation: float = 0.0
    path: tuple[float, ...] = ()

    @property
    def has_trend(self) -> bool:
        """Whether the series changes slowly, in addition to or instead of changes of level."""
        return self.trend != 1.0


@dataclass(frozen=True, slots=True)
class _Fit:
    """Bounds of the levels (0 and the length included), of the logs without correlation and trend; and the cost."""

    bounds: list[int]
    flat: Floats
    trend: Floats
    correlation: float
    cost: float


def find_change_points(values: Sequence[float], *, least_ratio: float = 1.0) -> tuple[ChangePoint, ...]:
    """Change points of a series of positive values in order of commit; see `analyse_series`."""
    return analyse_series(values, least_ratio=least_ratio).points


def analyse_series(values: Sequence[float], *, least_ratio: float = 1.0) -> SeriesChanges:
    """Change points and trend of a series of positive values in order of commit; none below `LEAST_POINTS`.

    least_ratio: smaller changes, up or down, are ignored. Raises ValueError for values that are not positive and
    finite.
    """
    series = np.asarray(values, np.float64)
    if not np.all(np.isfinite(series) & (series > 0)):
        msg = "a series has positive, finite values only"
        raise ValueError(msg)
    if series.size < LEAST_POINTS:
        return SeriesChanges()
    fit = _fit(np.log(series))
    bounds = _prune(fit.flat, fit.bounds, least_ratio)
    points = _describe(series, fit, bounds)
    path = tuple(fit.trend.tolist()) if fit.trend.any() else ()
    return SeriesChanges(points, math.exp(float(fit.trend[-1] - fit.trend[0])), fit.correlation, path)


def _noise(logs: Floats) -> float:
    """Standard deviation about the level, from differences of neighbours."""
    steps = np.diff(logs)
    deviation = 1.4826 * _median(np.abs(steps - _median(steps))) / math.sqrt(2)
    return max(deviation, _SPREAD_FLOOR)


def _median(values: Floats) -> float:
    """The median; numpy's takes several times as long for a short series."""
    ordered = np.sort(values)
    return (float(ordered[(ordered.size - 1) // 2]) + float(ordered[ordered.size // 2])) / 2


def _mean(values: Floats) -> float:
    """The mean, as numpy's method computes it in several times as long for a short series."""
    return float(np.add.reduce(values)) / values.size


class _Calm(NamedTuple):
    """Logs without a correlation, spikes and bursts; the price of a level, bounds of the levels, replaced bursts."""

    values: Floats
    correlation: float
    price: float
    bounds: list[int]
    bursts: int


def _fit(logs: Floats) -> _Fit:
    """The cheapest fit: levels alone, or levels with a trend or a correlation."""
    white = _calm(logs, (0.0,))
    best = _levels(white[0], np.zeros_like(logs), white[0].bounds, 0)
    if len(best.bounds) == 2 or logs.size < LONG_ENOUGH:
        return best
    series = white + _calm(logs, CORRELATIONS[1:])
    found = [_levels(one, np.zeros_like(logs), one.bounds, 0) for one in series]
    return min((*found, *_fit_trends(series)), key=lambda fit: fit.cost)


def _calm(logs: Floats, correlations: Sequence[float]) -> list[_Calm]:
    """The logs for each of the correlations, with short excursions that return replaced, one after another."""
    found = []
    for correlation in correlations:
        white = logs.copy()
        white[1:] = (logs[1:] - correlation * logs[:-1]) / (1 - correlation)
        noise = _noise(white)
        price = PRICE * math.log(logs.size) * noise**2
        found.append(_Calm(_without_spikes(white, noise), correlation, price, [], 0))
    unsettled = list(range(len(found)))
    for count in range(MOST_BURSTS + 1):
        for place in unsettled:
            found[place] = found[place]._replace(bounds=_partition(found[place]), bursts=count)
        bursts = {
            place: burst
            for place in unsettled
            if count < MOST_BURSTS and (burst := _find_burst(found[place].values, found[place].bounds))
        }
        for place, burst in bursts.items():
            found[place] = found[place]._replace(values=_without_burst(found[place].values, *burst))
        unsettled = list(bursts)
        if not unsettled:
            break
    return found


def _fit_trends(series: Sequence[_Calm]) -> list[_Fit]:
    """Fits of levels above trends of each degree. Those whose levels repeat would repeat themselves, and end."""
    found = []
    rows = [(one, degree, [0, one.values.size]) for one in series for degree in DEGREES]
    for _ in range(ROUNDS):
        trends = [_polynomial(one.values, bounds, degree) for one, degree, bounds in rows]
        flat = [one._replace(values=one.values - trend) for (one, _, _), trend in zip(rows, trends, strict=True)]
        fits = [
            _levels(one, trend, bounds, degree)
            for (one, degree, _), trend, bounds in zip(rows, trends, map(_partition, flat), strict=True)
        ]
        found += fits
        rows = [
            (one, degree, fit.bounds)
            for (one, degree, bounds), fit in zip(rows, fits, strict=True)
            if fit.bounds != bounds
        ]
        if not rows:
            break
    return found


def _levels(calm: _Calm, trend: Floats, bounds: list[int], degree: int) -> _Fit:
    """Levels above a trend of a degree; the cost is the likelihood of the noise plus the prices."""
    from opgauge.harness.judge.jit_levels import squares_of_levels

    flat = calm.values - trend
    squares = squares_of_levels(flat, np.array(bounds)) * (1 - calm.correlation) ** 2
    misfit = flat.size * math.log(max(squares / flat.size, _SPREAD_FLOOR**2))
    # each replaced excursion costs as much as a level, for it improves the fit
    extras = len(bounds) - 1 + calm.bursts + TREND_PRICE * degree + CORRELATION_PRICE * bool(calm.correlation)
    return _Fit(bounds, flat, trend, calm.correlation, misfit + PRICE * math.log(flat.size) * extras)


def _without_spikes(logs: Floats, deviation: float) -> Floats:
    """The logs, with isolated spikes moved to the edge of the band around their neighbours."""
    from opgauge.harness.judge.jit_levels import median_of_five

    middle = median_of_five(logs)
    return np.clip(logs, middle - SPIKE * deviation, middle + SPIKE * deviation)


def _without_burst(logs: Floats, start: int, end: int, level: float) -> Floats:
    """The logs with an excursion replaced by the level around it."""
    found = logs.copy()
    found[start:end] = level
    return found


def _find_burst(logs: Floats, bounds: Sequence[int]) -> tuple[int, int, float] | None:
    """Start, end and surrounding level of an excursion of one or two short levels that returns; None without one."""
    means = [_mean(logs[start:end]) for start, end in pairwise(bounds)]
    for width in (1, 2):
        for place in range(1, len(means) - width):
            inside = range(place, place + width)
            if any(bounds[one + 1] - bounds[one] > BURST for one in inside):
                continue
            before, after = means[place - 1], means[place + width]
            level = (before + after) / 2
            if abs(before - after) < min(abs(means[one] - level) for one in inside) / 2:
                return bounds[place], bounds[place + width], level
    return None


def _polynomial(logs: Floats, bounds: Sequence[int], degree: int) -> Floats:
    """The trend of a degree, zero at first, that fits the logs best together with levels at these bounds."""
    from opgauge.harness.judge.jit_levels import fit_trend

    found: Floats = fit_trend(logs, np.array(bounds), _powers(logs.size, degree))
    return found


@lru_cache(maxsize=64)
def _powers(count: int, degree: int) -> Floats:
    """Powers 1 to `degree` of `count` points from -1 to 1, in rows."""
    return np.asarray(np.linspace(-1.0, 1.0, count) ** np.arange(1, degree + 1)[:, None])


def _partition(calm: _Calm) -> list[int]:
    """Bounds of the cheapest levels (0 and the length included), of `EDGE` points or more."""
    from opgauge.harness.judge.jit_levels import cheapest_levels

    return _walk(cheapest_levels(calm.values - _mean(calm.values), calm.price, EDGE))


def _walk(last: npt.NDArray[np.int64]) -> list[int]:
    """Bounds of levels, given the start of the last level of the points before each."""
    bounds = [last.size - 1]
    while bounds[-1]:
        bounds.append(int(last[bounds[-1]]))
    return bounds[::-1]


def _prune(logs: Floats, bounds: list[int], least_ratio: float) -> list[int]:
    """The bounds that pass the test; the others are removed one by one, weakest first."""
    bounds = list(bounds)
    while len(bounds) > 2:
        inflation = _inflation(logs, bounds)
        tests = [
            _test(logs, *bounds[place - 1 : place + 2], inflation=inflation) for place in range(1, len(bounds) - 1)
        ]
        weak = [
            (p_value, -abs(change), place)
            for place, (change, p_value) in enumerate(tests, start=1)
            if p_value > SIGNIFICANCE or abs(change) < math.log(least_ratio)
        ]
        if not weak:
            break
        del bounds[max(weak)[2]]
    return bounds


def _inflation(logs: Floats, bounds: Sequence[int]) -> float:
    """Factor of the standard error of a level, by the autocorrelation of what the levels leave; 1 for white noise.

    Fitted levels absorb a part of the autocorrelation, which is added again.
    """
    rest = logs - np.concatenate([np.full(end - start, _mean(logs[start:end])) for start, end in pairwise(bounds)])
    square = float((rest**2).sum())
    found = float((rest[1:] * rest[:-1]).sum()) / square if square else 0.0
    unbiased = found + (1 + 3 * max(found, 0.0) + (len(bounds) - 2)) / logs.size
    correlation = min(max(unbiased, 0.0), MOST_CORRELATED)
    return math.sqrt((1 + correlation) / (1 - correlation))


def _test(logs: Floats, start: int, middle: int, end: int, *, inflation: float = 1.0) -> tuple[float, float]:
    """Change of the mean, and p of the pooled two-sided t-test with an inflated standard error."""
    left, right = logs[start:middle], logs[middle:end]
    before, after = _mean(left), _mean(right)
    degrees = left.size + right.size - 2
    square = float(((left - before) ** 2).sum() + ((right - after) ** 2).sum()) / degrees
    error = inflation * math.sqrt(max(square, _SPREAD_FLOOR**2) * (1 / left.size + 1 / right.size))
    change = after - before
    return change, 2 * float(upper_tail(abs(change) / error, degrees))


def _describe(series: Floats, fit: _Fit, bounds: Sequence[int]) -> tuple[ChangePoint, ...]:
    """The changes between the levels within these bounds."""
    still = np.log(series) - fit.trend  # removing the correlation spreads a step over its first point
    usual = [(_median(series[start:end]), _median(still[start:end])) for start, end in pairwise(bounds)]
    found = []
    for place, ((before, low), (after, high)) in enumerate(pairwise(usual), start=1):
        start, middle, end = bounds[place - 1 : place + 2]
        _, p_value = _test(fit.flat, start, middle, end)
        # the first level may be the end of a burst
        is_confirmed = (end < series.size or end - middle >= CONFIRMING) and (start > 0 or middle >= CONFIRMING)
        found.append(ChangePoint(middle, before, after, math.exp(high - low), p_value, is_confirmed))
    return tuple(found)
