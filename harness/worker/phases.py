"""Phases of a trial: their names and durations, and what they add to a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any


class Phases:
    """Names and durations of the phases of a trial, in seconds."""

    def __init__(self, report: Callable[[str], None] = lambda _: None) -> None:
        self.report = report
        self.seconds: dict[str, float] = {}
        self.current = ""
        self.repeatable = self.varied = True
        self.digests: Mapping[str, str] = {}
        self.tuning: Mapping[str, int] = {}
        self.plans: tuple[str, ...] = ()
        self.written_share: float | None = None
        self.relaxed = 1.0
        self.since = perf_counter()

    def begin(self, name: str) -> None:
        """End the current phase and begin `name`."""
        self._end()
        self.current = name
        self.report(name)

    def extra(self, *, failed: bool) -> dict[str, Any]:
        """Entries of Result.extra: seconds by phase, and the phase that failed."""
        self._end()
        found: dict[str, Any] = {"phases_s": {name: round(value, 6) for name, value in self.seconds.items()}}
        if failed and self.current:
            found["phase"] = self.current
        if not self.repeatable:
            found["repeatable"] = False
        if not self.varied:
            found["varied"] = False
        if self.tuning:
            found["tuning"] = dict(self.tuning)
        if self.plans:
            found["plans"] = list(self.plans)
        if self.written_share is not None:
            found["written_share"] = self.written_share
        if self.relaxed != 1:
            found["relaxed"] = self.relaxed
        return {**found, **self.digests}

    def _end(self) -> None:
        now = perf_counter()
        if self.current:
            self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self.since
        self.since = now
