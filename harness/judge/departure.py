"""Departures: judgement of single stored runs against the variation of their series.

Change points need several runs after a step. One run is judged at once: it departs if the log of its time lies outside
the prediction interval of the earlier runs. The standard deviation between runs blends that of the series with a prior,
as in a scaled inverse chi-squared posterior (Gelman et al., Bayesian Data Analysis, 2.6), so that a short series flags
only changes that no plausible noise explains, and a long one changes that its own noise does not explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.judge.estimate import Floats
from opgauge.harness.judge.student import quantile

TAIL = 5e-4
"""Probability of either tail: one series in a thousand is flagged by chance."""
PRIOR_DEVIATION = 0.02
"""Standard deviation between runs, of the log of the time, that is assumed before any run: 2 %."""
PRIOR_DEGREES = 3
"""Number of runs that the prior counts as."""
WINDOW = 20
"""Number of latest runs that describe a series."""
ROBUST_FROM = 6
"""Number of runs from which the median deviation is used, so that an outlier cannot hide others."""


@dataclass(frozen=True, slots=True)
class SeriesSpread:
    """Deviation between runs of a series, of the log of the time, and its degrees of freedom."""

    deviation: float = PRIOR_DEVIATION
    degrees: int = PRIOR_DEGREES

    def half_width(self, before: int = 1, after: int = 1) -> float:
        """Half width of the interval of a log ratio between the levels of `before` and `after` runs."""
        return quantile(TAIL, self.degrees) * self.deviation * math.sqrt(1 / before + 1 / after)


@dataclass(frozen=True, slots=True)
class Departure:
    """The latest runs of a series, all on one side of the interval of the earlier ones.

    index: the first of them. before, after: medians, in the series' unit. ratio: after over before. limit: least
    ratio, above 1 or below, that is flagged.
    """

    index: int
    before: float
    after: float
    ratio: float
    limit: float


def spread_of(values: Sequence[float], within: float = 0.0) -> SeriesSpread:
    """The spread of a series of positive times at one level.

    within: relative spread of the samples of one run; a series is not assumed to be quieter than its samples.
    """
    logs = list(map(math.log, values[-WINDOW:]))
    prior = max(PRIOR_DEVIATION, within)
    own = len(logs) - 1
    if own < 1:
        return SeriesSpread(prior, PRIOR_DEGREES)
    mean = math.fsum(logs) / len(logs)
    # not statistics.stdev, which computes with fractions: thousands of series are judged for one page
    deviation = math.dist(logs, [mean] * len(logs)) / math.sqrt(own)
    if len(logs) >= ROBUST_FROM:
        middle = median(logs)
        deviation = min(deviation, 1.4826 * median([abs(one - middle) for one in logs]) * math.sqrt(len(logs) / own))
    square = (PRIOR_DEGREES * prior**2 + own * deviation**2) / (PRIOR_DEGREES + own)
    return SeriesSpread(math.sqrt(square), PRIOR_DEGREES + own)


def half_widths(logs: Floats, known: NDArray[np.bool_]) -> Floats:
    """Half widths, between two runs, of the spreads of many series, as `spread_of` computes that of one.

    logs: of positive times, (series, runs), in order. known: the runs that a series has.
    """
    latest = known & (known[:, ::-1].cumsum(axis=1)[:, ::-1] <= WINDOW)
    sizes = latest.sum(axis=1)
    deviations, several = np.full(len(logs), PRIOR_DEVIATION), sizes > 1
    deviations[several] = _deviations(logs[several], latest[several], sizes[several])
    of_size = [SeriesSpread(1.0, PRIOR_DEGREES + max(size - 1, 0)).half_width() for size in range(WINDOW + 1)]
    return np.asarray(deviations * np.array(of_size)[sizes])


def _deviations(logs: Floats, known: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Floats:
    """Deviations of series of two runs and more, blended with the prior."""
    own = sizes - 1
    mean = np.where(known, logs, 0.0).sum(axis=1) / sizes
    squares = (np.where(known, logs - mean[:, None], 0.0) ** 2).sum(axis=1) / own
    away = np.abs(logs - _medians(logs, known, sizes)[:, None])
    robust = (1.4826 * _medians(away, known, sizes)) ** 2 * sizes / own
    squares = np.where(sizes >= ROBUST_FROM, np.minimum(squares, robust), squares)
    return np.asarray(np.sqrt((PRIOR_DEGREES * PRIOR_DEVIATION**2 + own * squares) / (PRIOR_DEGREES + own)))


def _medians(values: Floats, known: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Floats:
    """Median of the known values of each row, of which there are `sizes`."""
    ordered, rows = np.sort(np.where(known, values, np.inf), axis=1), np.arange(len(values))
    return np.asarray((ordered[rows, (sizes - 1) // 2] + ordered[rows, sizes // 2]) / 2)


def find_departure(values: Sequence[float], most: int, within: float = 0.0) -> Departure | None:
    """The latest runs, at most `most`, that depart from the earlier ones; None if the latest does not.

    Values are positive times in order of commit. All of the departing runs lie outside the interval, on one side of
    it.
    """
    for count in range(min(most, len(values) - 1), 0, -1):
        history, latest = values[:-count], values[-count:]
        usual = median(history[-WINDOW:])
        half = spread_of(history, within).half_width(len(history[-WINDOW:]))
        logs = [math.log(one / usual) for one in latest]
        if all(one > half for one in logs) or all(one < -half for one in logs):
            after = median(latest)
            limit = math.exp(half if after > usual else -half)
            return Departure(len(values) - count, usual, after, after / usual, limit)
    return None
