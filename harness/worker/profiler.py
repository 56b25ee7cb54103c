"""Profiler: kernel lists of trials, in a process that times nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from opgauge.harness.measure import Timer
from opgauge.harness.measure.cupti import Collector, empty_ns, split_calls, summarize
from opgauge.harness.result.result import Profile, Trial
from opgauge.harness.worker.attempt import Attempt, KernelFailedError
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.inputs import make_inputs
from opgauge.harness.worker.trial_kernel import find_trial_kernel
from opgauge.ops import BackendError, Bound, Device, KernelNotFoundError
from opgauge.ops._core.op import Array

CALLS = 20
"""Profiled calls per trial."""
ON_CPU = "there is no kernel list on the CPU: CUPTI sees GPUs only"
"""Reason for a missing list on the CPU."""


class Profiler:
    """Lists the kernels of one trial after another, with the timers of `bench`."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._collector: Collector | None = None
        self._inputs = InputCache()

    def run(self, trial: Trial, calls: int = CALLS) -> Profile:
        """The kernels of a cold call; a profile without kernels has the reason."""
        if trial.backend == "cpu":
            return Profile(reason=ON_CPU)
        try:
            timer = self._bench.timer(trial.backend, Device.parse(trial.device).index)
            collector = self._collector = self._collector or Collector()
            with prepared(trial, timer, self._inputs) as call:
                collector.take()
                timer.times(call, calls, flush=True)
                records = collector.take()
                return replace(summarize(split_calls(records), collector.tool), empty_ns=empty_ns(records))
        except (BackendError, KernelNotFoundError, KernelFailedError, MemoryError) as error:
            return Profile(reason=str(error))


class InputCache:
    """The inputs of the last case, for all its implementations."""

    def __init__(self) -> None:
        self._case_id = ""
        self._values: Mapping[str, Array] = {}

    def values(self, trial: Trial) -> Mapping[str, Array]:
        """The inputs of a trial's case."""
        if trial.case.id != self._case_id:
            self._values = {}
            self._values = make_inputs(trial.case).values
            self._case_id = trial.case.id
        return self._values


@contextmanager
def prepared(trial: Trial, timer: Timer, inputs: InputCache) -> Iterator[Bound]:
    """A trial's call, bound to buffers and called once; outputs are not checked, since a run has done that."""
    kernel = find_trial_kernel(trial).kernel
    with timer.session(kernel.arrays):
        attempt = Attempt(trial.case, kernel, inputs.values(trial), timer)
        call = attempt.bind()
        attempt.call(call, 0)
        yield call
