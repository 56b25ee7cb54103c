"""Load of the host: whether other processes leave this one the processors that threads need.

A thread that shares its processor waits for its turn, several milliseconds, and the caller of a parallel loop waits for
the thread. Work stealing does not help once such a thread has begun a part.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic, process_time

UPTIME = Path("/proc/uptime")
"""The system's file whose second number is the time that all processors have been idle, in seconds."""
WINDOW_S = 0.05
"""Time between readings: the file counts in units of 10 ms."""
LEAST_FREE = 1.5
"""Processors, idle or used by this process, from which threads pay: 1 is the caller's own."""


class HostLoad:
    """Whether processors were free between the last two readings; without the file, always."""

    def __init__(self) -> None:
        self._is_free = True
        self._at, self._used, self._idle = 0.0, 0.0, 0.0

    def leaves_processors(self) -> bool:
        """Whether threads pay; reads the file at most once per window."""
        now = monotonic()
        if now - self._at >= WINDOW_S:
            self._read(now)
        return self._is_free

    def _read(self, now: float) -> None:
        idle, used = _idle_s(), process_time()
        if self._at and idle > 0:
            self._is_free = idle - self._idle + used - self._used >= LEAST_FREE * (now - self._at)
        self._at, self._used, self._idle = now, used, idle


def _idle_s() -> float:
    """Idle time of all processors; 0 if the system does not count it."""
    try:
        return float(UPTIME.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0


HOST = HostLoad()
"""The load of this host, as this process sees it."""
