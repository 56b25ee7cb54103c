"""Clock of a gate run: where its wall time went, by activity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic

from opgauge.harness.gate.record import MEASURING, BlockOutcome

OPENING, READING, LOOKING = "checkouts and builds", "reading the trees", "first checks"
"""Activities before blocks: checking out and building both trees; importing them; calling and checking kernels once."""
PEAKS, LISTING = "peaks of the device", "kernel lists"
"""Activities outside blocks on a GPU."""
STARTING, BETWEEN_PHASES = "starting processes", "between phases"
"""Activities of blocks beside the phases of trials: starting and ending processes; and the rest: comparing the state of
processes before and after trials, messages, and choosing what comes next."""


@dataclass(slots=True)
class Clock:
    """Time spent, in seconds. phases_s: of blocks_s, by phase of the trials and other activities.

    outside_s: outside blocks, by activity.
    """

    blocks: int = 0
    blocks_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    outside_s: dict[str, float] = field(default_factory=dict)

    @property
    def measuring_s(self) -> float:
        """Seconds of sampling and warming up."""
        return self.phases_s.get(MEASURING, 0.0)

    @property
    def listing_s(self) -> float:
        """Seconds that kernel lists will take: a process for each tree imports it, and begins on the device."""
        return 2 * (self.outside_s.get(READING, 0.0) + self.outside_s.get(PEAKS, 0.0))

    def since(self, before: Clock) -> Clock:
        """The time spent since `before`."""
        phases_s = {name: spent - before.phases_s.get(name, 0.0) for name, spent in self.phases_s.items()}
        outside_s = {name: spent - before.outside_s.get(name, 0.0) for name, spent in self.outside_s.items()}
        return Clock(self.blocks - before.blocks, self.blocks_s - before.blocks_s, phases_s, outside_s)

    def spent_s(self, wall_s: float) -> dict[str, float]:
        """Seconds by activity, of this many in all."""
        return {
            **self.phases_s,
            BETWEEN_PHASES: self.blocks_s - sum(self.phases_s.values()),
            **self.outside_s,
            "between blocks": wall_s - self.blocks_s - sum(self.outside_s.values()),
        }

    def add(self, phases_s: Mapping[str, float]) -> None:
        """Add the phases of a trial, or other activities of blocks."""
        _add(self.phases_s, phases_s)

    def add_outside(self, spent_s: Mapping[str, float]) -> None:
        """Add activities outside blocks."""
        _add(self.outside_s, spent_s)

    def add_shared(self, outcomes: Iterable[BlockOutcome], count: int) -> None:
        """Add the phases of trials of which this many ran at the same time."""
        for found in outcomes:
            self.add({name: spent / count for name, spent in found.phases_s.items()})

    @contextmanager
    def block(self, processes: int, activity: str = "") -> Iterator[None]:
        """Count the processes and the time of a block. activity: a name for all of it that has none by then."""
        started, before = monotonic(), sum(self.phases_s.values())
        try:
            yield
        finally:
            spent_s = monotonic() - started
            self.blocks += processes
            self.blocks_s += spent_s
            if activity:
                self.add({activity: spent_s - (sum(self.phases_s.values()) - before)})

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Count the time within as that of starting and ending processes."""
        started = monotonic()
        try:
            yield
        finally:
            self.add({STARTING: monotonic() - started})

    @contextmanager
    def outside(self, activity: str) -> Iterator[None]:
        """Count the time within, outside blocks, as that of an activity."""
        started = monotonic()
        try:
            yield
        finally:
            self.add_outside({activity: monotonic() - started})

    def now(self) -> Clock:
        """A copy of the current values."""
        return replace(self, phases_s=self.phases_s.copy(), outside_s=self.outside_s.copy())


def _add(totals_s: dict[str, float], spent_s: Mapping[str, float]) -> None:
    for name, spent in spent_s.items():
        totals_s[name] = totals_s.get(name, 0.0) + spent
