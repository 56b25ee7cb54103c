"""Estimate of how much slower B is than A, from paired process medians: centre, interval, tails, modes.

A pair is two neighbouring processes, one of each side; the estimate is the centre of the log ratios log(B / A). Its
standard error is estimated twice. First from the differences of the pairs, with n - 1 degrees of freedom: valid however
the host drifts. Second from differences and sums together, which is the spread of both sides on their own, with 2 (n -
1): sharper on a stable host, and too wide, never too narrow, on one that drifts. Each gets half of the allowed error,
and the sharper one is used: a Student-t interval whose coverage lies between `LEVEL` and the midpoint of `LEVEL` and 1.

A single outlier would hide all other pairs. Pairs further than `FENCE` robust deviations from the median are therefore
excluded, at most one of 6 to 9 and two of 10 to 13, none of 4 or 5 nor of bimodal sides; the median uses all.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opgauge.harness.judge.student import quantile, upper_tail

Floats = NDArray[np.float64]

LEVEL = 0.99
"""Nominal coverage of the interval."""
LEAST_PAIRS = 4
"""Least pairs for an interval."""
FENCE = 8.0
"""Robust deviations from the median beyond which a pair is an outlier."""
SPREAD_FLOOR = 5e-4
"""Least spread of log medians: identical medians prove nothing finer than the clock."""
POWER = 0.9
"""Probability with which a detectable change is detected."""

MODE_GAP = 0.01
"""Log ratio below which two modes count as one."""
_SEPARATION = {
    4: 16.94, 5: 11.69, 6: 9.29, 7: 7.83, 8: 7.02, 9: 6.42, 10: 6.03, 11: 5.68, 12: 5.47,
    13: 5.26, 14: 5.12, 15: 4.97, 16: 4.85, 17: 4.74, 18: 4.66, 19: 4.58, 20: 4.51,
}  # fmt: skip
"""The separation of two halves that one series in a hundred of a single mode exceeds, by length.

From 200,000 normal series of each length; longer ones are judged as 20 are, which is stricter.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Estimates of many comparisons with equally many pairs; arrays of shape (comparisons,).

    median: of the log ratios of all pairs. centre: mean of the pairs kept. kept: their number. pair_error,
    side_error: standard error of the centre from the pairs' differences (`kept - 1` degrees of freedom), and from
    both sides' own spread (twice as many).
    """

    median: Floats
    centre: Floats
    kept: NDArray[np.int64]
    pair_error: Floats
    side_error: Floats

    def half_width(self, level: float = LEVEL) -> Floats:
        """Half the width of the interval around the centre."""
        return self._sharper((1 - level) / 4)

    def interval(self, level: float = LEVEL) -> tuple[Floats, Floats]:
        """Lower and upper end, as log ratios; the median lies inside."""
        half = self.half_width(level)
        return np.minimum(self.centre - half, self.median), np.maximum(self.centre + half, self.median)

    def p_above(self, null: ArrayLike) -> Floats:
        """Probability of this centre or a higher one if the true log ratio is at most `null`."""
        return self._tail(self.centre - np.asarray(null, np.float64))

    def p_below(self, null: ArrayLike) -> Floats:
        """Probability of this centre or a lower one if the true log ratio is at least `null`."""
        return self._tail(np.asarray(null, np.float64) - self.centre)

    def detectable(self, null: ArrayLike, alpha: float) -> Floats:
        """Log ratio that is distinguished from `null` at `alpha` with probability `POWER`, with this noise."""
        beyond = NormalDist().inv_cdf(POWER) * np.minimum(self.pair_error, self.side_error)
        return np.asarray(null, np.float64) + self._sharper(alpha / 2) + beyond

    def _tail(self, distance: Floats) -> Floats:
        by_pairs = upper_tail(distance / self.pair_error, self.kept - 1)
        by_sides = upper_tail(distance / self.side_error, 2 * (self.kept - 1))
        return np.asarray(np.minimum(1.0, 2 * np.minimum(by_pairs, by_sides)))

    def _sharper(self, tail: float) -> Floats:
        by_pairs = _quantiles(tail, self.kept - 1) * self.pair_error
        by_sides = _quantiles(tail, 2 * (self.kept - 1)) * self.side_error
        return np.asarray(np.minimum(by_pairs, by_sides))


def estimate(logs: Floats, *, has_modes: ArrayLike = False) -> Estimates:
    """Estimates from logs of paired process medians, (comparisons, pairs, 2): side A, side B; at least 2 pairs.

    has_modes: per comparison, whether a side is bimodal; then no pair is an outlier, and all are kept.
    """
    differences, sums = logs[..., 1] - logs[..., 0], logs.sum(axis=-1)
    median = np.median(differences, axis=1)
    keep = _inside(differences, median) | np.asarray(has_modes, np.bool_).reshape(-1, 1)
    kept = keep.sum(axis=1)
    centre, by_pairs = _moments(differences, keep, kept)
    _, by_sums = _moments(sums, keep, kept)
    floor = 2 * SPREAD_FLOOR**2
    pair_error = np.sqrt(np.maximum(by_pairs, floor) / kept)
    side_error = np.sqrt(np.maximum((by_pairs + by_sums) / 2, floor) / kept)
    return Estimates(median, centre, kept, pair_error, side_error)


def _inside(differences: Floats, median: Floats) -> NDArray[np.bool_]:
    """Mask of the pairs that are kept."""
    allowed = (differences.shape[1] - 2) // 4
    away = np.abs(differences - median[:, None])
    if differences.shape[1] <= LEAST_PAIRS + 1:
        return np.ones(away.shape, np.bool_)
    deviation = np.maximum(1.4826 * np.median(away, axis=1), SPREAD_FLOOR)
    rank = np.argsort(np.argsort(-away, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray((away <= FENCE * deviation[:, None]) | (rank >= allowed))


def _moments(values: Floats, keep: NDArray[np.bool_], kept: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean and variance of the kept values, by row."""
    mean = (values * keep).sum(axis=1) / kept
    square = (((values - mean[:, None]) * keep) ** 2).sum(axis=1)
    return mean, square / (kept - 1)


def _quantiles(tail: float, degrees: NDArray[np.int64]) -> Floats:
    return np.array([quantile(tail, int(count)) for count in degrees])


def reject(p_values: ArrayLike, q: float) -> NDArray[np.bool_]:
    """Hypotheses that are rejected with a false discovery rate of at most `q`.

    Benjamini and Hochberg (1995), step up.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.flatnonzero(p[order] <= q * np.arange(1, p.size + 1) / max(p.size, 1))
    fallen = np.zeros(p.shape, np.bool_)
    if steps.size:
        fallen[order[: steps[-1] + 1]] = True
    return fallen


def find_modes(medians: ArrayLike) -> tuple[float, ...]:
    """Centres of the modes of a series of process medians: two if it is bimodal, else one; none for an empty series."""
    values = np.sort(np.asarray(medians, np.float64))
    if not values.size:
        return ()
    return modes_at(values, int(split_modes(np.log(values)[None, :])[0]))


def modes_at(ordered: Floats, place: int) -> tuple[float, ...]:
    """Centres of the two parts of an ordered series split at `place`; of the whole if `place` is 0."""
    parts = (ordered[:place], ordered[place:]) if place else (ordered,)
    return tuple(float(np.median(part)) for part in parts)


def split_modes(ordered: Floats) -> NDArray[np.int64]:
    """First index of the second mode of each row of ordered logs, (series, processes); 0 for one mode.

    A row is split where the parts, of two or more each, are furthest apart relative to their own spread;
    `_SEPARATION` is the distance that chance alone gives.
    """
    count = ordered.shape[1]
    if count < LEAST_PAIRS:
        return np.zeros(len(ordered), np.int64)
    shifted = ordered - ordered[:, :1]
    sums, squares = shifted.cumsum(axis=1), (shifted**2).sum(axis=1, keepdims=True)
    sizes = np.arange(2, count - 1)
    below = sums[:, 1 : count - 2]
    low, high = below / sizes, (sums[:, -1:] - below) / (count - sizes)
    inside = squares - sizes * low**2 - (count - sizes) * high**2
    separation = (high - low) / np.sqrt(np.maximum(inside / (count - 2), SPREAD_FLOOR**2))
    best, rows = separation.argmax(axis=1), np.arange(len(ordered))
    gap = ordered[rows, best + 2] - ordered[rows, best + 1]
    apart = separation[rows, best] > _SEPARATION[min(count, max(_SEPARATION))]
    return np.where(apart & (gap >= MODE_GAP), best + 2, 0)
