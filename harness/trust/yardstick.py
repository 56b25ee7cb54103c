"""Yardstick: our cold time and cuda-bench's of the same calls on the same buffers, in a process of its own.

`python -m harness.trust.yardstick` reads {"trials": […], "limits": …, "samples": n} on standard input and writes a list
of {"ours_ns", "bench_ns", "launch_ns", "reason"} to a private copy of standard output. cuda-bench runs its benchmarks
once per process: all trials are points of one benchmark.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.harness.errors import WorkerError
from opgauge.harness.measure import Limits, Timer
from opgauge.harness.measure.cuda import CudaTimer
from opgauge.harness.result.failure import classify_death
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Trial
from opgauge.harness.settings import child_environment
from opgauge.harness.worker.attempt import KernelFailedError
from opgauge.harness.worker.bench import Bench
from opgauge.harness.worker.profiler import InputCache, prepared
from opgauge.ops import BackendError, Bound, Device, KernelNotFoundError

SAMPLES = 100
"""Samples of a point."""
MISSING = "cuda-bench is not installed: pip install 'cuda-bench[cu13]'"
"""Message if cuda-bench is not installed."""
TIMEOUT_S = 5.0
"""Seconds after which cuda-bench stops a point."""
START_S, TRIAL_S = 60.0, 30.0
"""Longest wait for the start of the process, and for each trial in it, in seconds."""
CRITERION = "sample-count"
"""Stopping criterion of cuda-bench."""
MEDIAN, MEAN = "nv/cold/time/gpu/median", "nv/cold/time/gpu/mean"
"""Tags of the median and mean cold times."""
REFUSALS = (BackendError, KernelFailedError, KernelNotFoundError, MemoryError)
"""Errors of a kernel that cannot be timed."""


class Pace(NamedTuple):
    """One trial by both clocks, in nanoseconds; None, with a reason, if it could not be timed.

    launch_ns: an empty kernel by our clock, in the same process.
    """

    ours_ns: float | None = None
    bench_ns: float | None = None
    launch_ns: float | None = None
    reason: str = ""


def measure(trials: Sequence[Trial], limits: Limits) -> list[Pace]:
    """Both times of each trial, in a process of its own, and in another one if that ends early."""
    try:
        return _measure_together(trials, limits)
    except WorkerError as error:
        if len(trials) == 1:
            return [Pace(reason=str(error))]
        middle = len(trials) // 2
        return [*measure(trials[:middle], limits), *measure(trials[middle:], limits)]


def _measure_together(trials: Sequence[Trial], limits: Limits, samples: int = SAMPLES) -> list[Pace]:
    request = {"trials": [to_json(trial) for trial in trials], "limits": vars(limits), "samples": samples}
    command = [sys.executable, "-P", "-m", "opgauge.harness.trust.yardstick"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request, allow_nan=False),
            capture_output=True,
            text=True,
            env=child_environment(),
            timeout=START_S + TRIAL_S * len(trials),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"cuda-bench gave no answer in {error.timeout:g} s"
        raise WorkerError(msg) from error
    if done.returncode:
        msg = f"cuda-bench's process {classify_death(done.returncode)[1]}: {done.stderr.strip()[-2000:]}"
        raise WorkerError(msg)
    return [Pace(**item) for item in json.loads(done.stdout)]


def bench_version() -> str | None:
    """The version of cuda-bench; None if it is not installed."""
    try:
        return version("cuda-bench")
    except PackageNotFoundError:
        return None


@dataclass
class Yardstick:
    """Times trials one after another by our timer, and, in cuda-bench's loop, by cuda-bench."""

    trials: Sequence[Trial]
    limits: Limits

    def __post_init__(self) -> None:
        self.paces = [Pace(reason="not reached")] * len(self.trials)
        self._bench = Bench(lambda _: None)
        self._inputs = InputCache()
        self._launches: dict[str, float] = {}

    def run_alone(self) -> list[Pace]:
        """Our times only."""
        for number in range(len(self.trials)):
            self._time(number, None)
        return self.paces

    def run_beside(self, samples: int) -> list[Pace]:
        """Both times."""
        bench: Any = import_module("cuda.bench")
        registered = bench.register(self._point)
        registered.set_name("opgauge")
        registered.add_int64_axis("trial", range(len(self.trials)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.json"
            devices = ",".join(sorted({str(Device.parse(trial.device).index) for trial in self.trials}))
            options = {"--devices": devices, "--json": str(path), "--timeout": str(TIMEOUT_S)}
            options |= {"--stopping-criterion": CRITERION, "--target-samples": str(samples)}
            bench.run_all_benchmarks(["opgauge", *(word for pair in options.items() for word in pair)])
            found = read_times(json.loads(path.read_text(encoding="utf-8")))
        return [pace._replace(bench_ns=found.get(number)) for number, pace in enumerate(self.paces)]

    def _point(self, state: Any) -> None:
        number = state.get_int64("trial")
        if Device.parse(self.trials[number].device).index != state.get_device():
            state.skip("on another device")
        else:
            self._time(number, state)

    def _time(self, number: int, state: Any) -> None:
        trial = self.trials[number]
        try:
            timer = self._bench.timer(trial.backend, Device.parse(trial.device).index)
            with prepared(trial, timer, self._inputs) as call:
                before = timer.measure(call, self.limits).measurement
                if state is not None and isinstance(timer, CudaTimer):
                    _hand_over(state, call, timer.stream_handle, waits=before.timer == CudaTimer.name_with_gaps)
                # before and after, so that a linear drift cancels
                after = timer.measure(call, self.limits).measurement
                ours_ns = (before.median_ns + after.median_ns) / 2
                self.paces[number] = Pace(ours_ns, launch_ns=self._launch_ns(timer, trial.device))
        except REFUSALS as error:
            self.paces[number] = Pace(reason=str(error))
            if state is not None:
                state.skip(str(error)[:200])

    def _launch_ns(self, timer: Timer, device: str) -> float:
        if device not in self._launches:
            self._launches[device] = timer.calibrate().launch_ns
        return self._launches[device]


class _Stream:
    """Our stream in the form that cuda-bench accepts."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _hand_over(state: Any, call: Bound, stream: int, *, waits: bool) -> None:
    """Let cuda-bench time the call on the stream that it was prepared for.

    waits: the call synchronizes, and would never return behind a kernel that blocks the stream.
    """

    def launch(_: Any) -> None:
        call()

    state.set_stream(_Stream(stream))
    state.exec(launch, batched=False, sync=waits)


def read_times(report: Mapping[str, Any]) -> dict[int, float]:
    """Cold times in nanoseconds by the number of the trial, from cuda-bench's JSON: medians, else means."""
    found = {}
    for benchmark in report.get("benchmarks", ()):
        for state in benchmark.get("states", ()):
            summaries = {item["tag"]: item for item in state.get("summaries") or ()}
            summary = summaries.get(MEDIAN) or summaries.get(MEAN)
            if summary is not None and not state.get("is_skipped"):
                found[_number(state)] = _value(summary) * 1e9
    return found


def _number(state: Mapping[str, Any]) -> int:
    return next(int(axis["value"]) for axis in state["axis_values"] if axis["name"] == "trial")


def _value(summary: Mapping[str, Any]) -> float:
    return next(float(item["value"]) for item in summary["data"] if item["name"] == "value")


def main() -> None:
    """Answer one request."""
    from opgauge.harness.worker.serve import take_streams

    requests, replies = take_streams()
    request = json.load(requests)
    trials = [from_json(Trial, item) for item in request["trials"]]
    yardstick = Yardstick(trials, from_json(Limits, request["limits"]))
    paces = yardstick.run_beside(request["samples"]) if bench_version() else yardstick.run_alone()
    json.dump([pace._asdict() for pace in paces], replies, allow_nan=False)
    replies.close()


if __name__ == "__main__":
    main()
