"""The interface of timers, and the limits of sampling."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from ctypes import c_uint8
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np

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


class Place(NamedTuple):
    """A byte of the outputs, and an element of the first array that a kernel returns instead."""

    memory: memoryview
    at: int = 0
    element: int = 0

    def look(self, returned: Any) -> tuple[int, Any]:
        """Present values of the byte and of the element, of torch's a byte of it; None without an array on the host."""
        own: Any = None
        first: Any = returned[0] if type(returned) is tuple and returned else None
        if issubclass(type(first), np.ndarray):
            if _NDARRAY.size.__get__(first) > self.element:
                own = _NDARRAY.item(first, self.element)
        elif type(first) is getattr(sys.modules.get("torch"), "Tensor", None) and _is_plain(first, self.element):
            own = c_uint8.from_address(first.data_ptr() + self.element * first.element_size()).value
        return self.memory[self.at], own


def _is_plain(tensor: Any, element: int) -> bool:
    """Whether an element of a tensor lies in memory of the host at its place."""
    is_strided = tensor.is_cpu and tensor.layout is sys.modules["torch"].strided
    return bool(is_strided and tensor.is_contiguous() and tensor.numel() > element)


_NDARRAY: Any = np.ndarray
NOWHERE = Place(memoryview(bytes(1)))
"""A byte that nothing writes."""


class Hooks(Protocol):
    """Callbacks around each sample, outside the timed region."""

    def before(self) -> Place:
        """Called right before the timed calls, after warm-up calls.

        Returns a place at which timers of the CPU look before they stop the clock: a hook or a handler that computes
        outputs when they are read is timed, and one that computes later leaves other values.
        """

    def after(self, returned: Any, seen: tuple[int, Any] | None = None) -> None:
        """Called right after the timed calls, with the last returned value; raises if the outputs are wrong.

        seen: values at the place; None if nobody looked.
        """


class TimedHooks:
    """Hooks, if there are any, and the seconds that they took: a slow check must not use up the time for samples."""

    def __init__(self, hooks: Hooks | None) -> None:
        self._hooks = hooks
        self.seconds = 0.0

    def before(self) -> Place:
        """Call the hook before a sample; returns the place to look at after it."""
        if self._hooks is None:
            return NOWHERE
        begun = perf_counter_ns()
        place = self._hooks.before()
        self.seconds += (perf_counter_ns() - begun) / 1e9
        return place

    def after(self, returned: Any, seen: tuple[int, Any] | None = None) -> None:
        """Call the hook after a sample."""
        if self._hooks is not None:
            begun = perf_counter_ns()
            self._hooks.after(returned, seen)
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
