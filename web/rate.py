"""Rate limits: token buckets by key, in the memory of this process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

MOST_KEYS = 10_000
"""Most keys with a bucket; the least recently used is dropped first."""


@dataclass
class RateLimit:
    """`burst` at once, then `per_s` in each second."""

    per_s: float
    burst: int
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def take(self, key: str, count: int = 1) -> float:
        """Take `count` tokens and return 0, or take none and return the seconds until they are available."""
        now = monotonic()
        with self._lock:
            level, seen = self._buckets.pop(key, (float(self.burst), now))
            level = min(float(self.burst), level + (now - seen) * self.per_s)
            wait_s = max(0.0, (count - level) / self.per_s)
            self._buckets[key] = (level if wait_s else level - count, now)
            while len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)
        return wait_s


@dataclass(frozen=True)
class RateLimits:
    """Limits of writes by token, of writes by address, of wrong tokens by address, of audited refusals by token."""

    token: RateLimit = field(default_factory=lambda: RateLimit(per_s=50, burst=200))
    address: RateLimit = field(default_factory=lambda: RateLimit(per_s=100, burst=400))
    wrong: RateLimit = field(default_factory=lambda: RateLimit(per_s=0.2, burst=20))
    refusal: RateLimit = field(default_factory=lambda: RateLimit(per_s=0.1, burst=20))
