"""Achieved peaks of devices, by which the times of a run are judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from opgauge.harness.errors import HarnessError
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Result
from opgauge.harness.result.summary import exceeds_peaks, within_peaks
from opgauge.harness.run.execute import LocalExecutor

MOST_PEAKS = 3
"""Most further measurements of a device's peaks, when times exceed them."""


class AchievedPeaks:
    """Peaks measured where the trials run, and again when a time exceeds them: the best measurement counts.

    Peaks that were measured while other processes used the host are too low. known: by device. changed: called with
    each new or better measurement.
    """

    def __init__(self, executor: LocalExecutor, changed: Callable[[Ceilings], Any] = lambda _: None) -> None:
        self.known: dict[str, Ceilings] = {}
        self._executor = executor
        self._changed = changed
        self._measured: Counter[str] = Counter()

    def measure(self, device: str) -> None:
        """Measure the peaks of a device; raises HarnessError, after which the executor has another process."""
        self._measured[device] += 1
        try:
            found = self._executor.ceilings(device)
        except HarnessError:
            self._executor.renew()
            raise
        self.known[device] = self.known[device].best_of(found) if device in self.known else found
        self._changed(self.known[device])

    def judge(self, result: Result) -> Result:
        """The result, wrong if its time is impossible; such a time is measured again, as the host may have changed."""
        device = result.trial.device
        while exceeds_peaks(result, self.known) and self._measured[device] <= MOST_PEAKS:
            try:
                self.measure(device)
            except HarnessError:
                break
        judged = within_peaks(result, self.known)
        if judged.status is result.status:
            return result
        return within_peaks(next(iter(self._executor.run([result.trial], block=result.block))), self.known)

    def measure_once(self, device: str) -> None:
        """Measure the peaks of a device unless that was tried before; without peaks, all times are possible."""
        if not self._measured[device]:
            with suppress(HarnessError):
                self.measure(device)
