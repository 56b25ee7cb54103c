"""Share of counted items, with bounds that hold for every true share (Clopper and Pearson 1934)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

CONFIDENCE = 0.95
"""Confidence of the interval."""
_STEPS = 60
Below = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Share:
    """Ratio of `count` to `total`."""

    count: int
    total: int

    @property
    def value(self) -> float:
        """The share itself; 0 if `total` is 0."""
        return self.count / self.total if self.total else 0.0

    @property
    def low(self) -> float:
        """Lower end of the two-sided interval."""
        if not self.count:
            return 0.0
        return _solve(lambda share: 1 - _at_most(self.count - 1, self.total, share) < (1 - CONFIDENCE) / 2)

    @property
    def high(self) -> float:
        """Upper end of the two-sided interval."""
        if self.count >= self.total:
            return 1.0
        return _solve(lambda share: _at_most(self.count, self.total, share) > (1 - CONFIDENCE) / 2)

    def __str__(self) -> str:
        bounds = f"{100 * self.low:.3g} … {100 * self.high:.3g} %"
        return f"{self.count} of {self.total} ({100 * self.value:.3g} %; {100 * CONFIDENCE:.0f} % interval {bounds})"


def _at_most(count: int, total: int, share: float) -> float:
    """Probability of at most `count` of `total`."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(count >= total)
    log, rest = math.log(share), math.log1p(-share)
    ways = (_log_ways(total, hits) + hits * log + (total - hits) * rest for hits in range(count + 1))
    return min(1.0, math.fsum(math.exp(way) for way in ways))


def _log_ways(total: int, hits: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(hits + 1) - math.lgamma(total - hits + 1)


def _solve(is_below: Below) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2
