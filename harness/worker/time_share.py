"""Time shares of checks: each kind takes at most a share of the sampling time."""

from __future__ import annotations


class TimeShare:
    """Seconds spent on one kind of check, which are limited to a share of the sampling time."""

    def __init__(self, share: float, least_s: float = 0.0) -> None:
        self._share, self._least_s = share, least_s
        self._spent_s = self._last_s = 0.0

    def has_room(self, sampled_s: float) -> bool:
        """Whether one more check fits after so many seconds of sampling; the first always does."""
        needed_s = self._spent_s + self._last_s
        return not needed_s or needed_s <= max(self._least_s, self._share * sampled_s)

    def add(self, spent_s: float) -> None:
        """Count one check."""
        self._spent_s, self._last_s = self._spent_s + spent_s, spent_s
