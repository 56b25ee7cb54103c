"""The interface of timers, and the limits of sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from opgauge.harness.result.result import Calibration, Measurement
from opgauge.harness.settings import Settings
from opgauge.ops import Bound


@dataclass(frozen=True)
class Limits:
    """Limits of measuring one trial.

    budget_s: seconds, without those of hooks, after which no sample begins, once there are `min_samples`.
    min_samples: least samples, unless they need `patience` times the budget. max_samples: most samples. warmup_s:
    seconds of calls before the first sample. turns: rounds in which samples are interleaved with the other
    implementations of a case (see harness.worker.interleave). scattered_samples: most interleaved samples if they
    scatter and the ranking is within noise. calls: calls per sample on the CPU; None: as many as last 1 ms.
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
    """A measurement, and the returned value of the last timed call."""

    measurement: Measurement
    returned: Any


class UnfinishedError(Exception):
    """Work of a call that was still running when the timed stream had ended."""


class Hooks(Protocol):
    """Callbacks around each sample, outside the timed region."""

    def before(self) -> None:
        """Called right before the timed calls, after warm-up calls."""

    def after(self, returned: Any) -> None:
        """Called right after the timed calls, with the last returned value; raises if the outputs are wrong."""


class TimedHooks:
    """Hooks, if there are any, and the seconds that they took: a slow check must not use up the time for samples."""

    def __init__(self, hooks: Hooks | None) -> None:
        self._hooks = hooks
        self.seconds = 0.0

    def before(self) -> None:
        """Call the hook before a sample."""
        if self._hooks is not None:
            begun = perf_counter_ns()
            self._hooks.before()
            self.seconds += (perf_counter_ns() - begun) / 1e9

    def after(self, returned: Any) -> None:
        """Call the hook after a sample."""
        if self._hooks is not None:
            begun = perf_counter_ns()
            self._hooks.after(returned)
            self.seconds += (perf_counter_ns() - begun) / 1e9


class Timer(Protocol):
    """Times calls on one backend."""

    def session(self, arrays: str) -> AbstractContextManager[None]:
        """Select device and stream for a trial, for torch too if `arrays` is "torch"."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""

    def measure(self, call: Bound, limits: Limits, hooks: Hooks | None = None, places: Sequence[Bound] = ()) -> Timed:
        """Warm up, then sample `call` until the limits are reached; raises the errors of `hooks`.

        places: the same call on buffers at several addresses, over which a GPU's hot time is the mean.
        """

    def calibrate(self) -> Calibration:
        """Time the calibration workload, so that differences of hosts can be recognized."""

    def times(
        self, call: Callable[[], object], repeats: int, *, flush: bool = False
    ) -> tuple[list[float], list[float]]:
        """Times of `repeats` calls in nanoseconds, and the clock before each in MHz if known."""
