"""What a timer is, and when it has seen enough."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from opgauge.harness.result.result import Measurement, Ruler
from opgauge.harness.settings import Settings
from opgauge.ops import Bound


@dataclass(frozen=True)
class Limits:
    """How long to measure one trial.

    budget_s: no sample is begun after this long, save for `min_samples`.
    min_samples: taken unless that would need `patience` times the budget.
    max_samples: enough. warmup_s: of calls before the first sample.
    turns: in how many turns with the other implementations of a case samples are taken (see harness.worker.interleave).
    scattered_samples: enough in turns where samples scatter and it is open who is fastest.
    calls: per sample on the CPU; None: as many as last 1 ms.
    """

    budget_s: float = Settings.budget_s
    min_samples: int = 3
    max_samples: int = 60
    warmup_s: float = 0.05
    patience: float = 10.0
    turns: int = 1
    scattered_samples: int = 240
    calls: int | None = None

    def enough(self, samples: int, spent_s: float) -> bool:
        """Whether to stop after `samples`, `spent_s` seconds into sampling."""
        if samples >= self.max_samples:
            return True
        if samples >= self.min_samples:
            return spent_s >= self.budget_s
        return samples > 0 and spent_s >= self.budget_s * self.patience


class Timed(NamedTuple):
    """A measurement, and what the last timed call returned."""

    measurement: Measurement
    returned: Any


class UnfinishedError(Exception):
    """Work that a call started had not ended when the timed stream had."""


class Hooks(Protocol):
    """Called around each sample, outside the timed region."""

    def before(self) -> None:
        """Right before the timed calls, after warm-up calls."""

    def after(self, returned: Any) -> None:
        """Right after the timed calls, the last of which returned this; raises what is wrong with their outputs."""


class NoHooks:
    """Hooks that do nothing."""

    def before(self) -> None:
        """Nothing."""

    def after(self, returned: Any) -> None:
        """Nothing."""


class Timer(Protocol):
    """Times calls on one backend."""

    def session(self, arrays: str) -> AbstractContextManager[None]:
        """Select device and stream for all that a trial does, for torch too where `arrays` is "torch"."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""

    def measure(self, call: Bound, limits: Limits, hooks: Hooks | None = None) -> Timed:
        """Warm up, then sample `call` until the limits are reached; raises what `hooks` raise."""

    def ruler(self) -> Ruler:
        """Time fixed work, so that blocks can be told from hosts."""

    def times(
        self, call: Callable[[], object], repeats: int, *, flush: bool = False
    ) -> tuple[list[float], list[float]]:
        """Times of `repeats` calls in nanoseconds, and the clock before each in MHz where it is known."""
