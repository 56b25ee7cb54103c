"""Hardware counters, by Nsight Compute, of kernels that miss their goal, as a table.

`python -m tools.counters tests/data/h200/full.json tests/data/h200-counters.json` on the GPU of that run profiles the
cases whose goal it misses, and copies to compare them with. A call is profiled twice: with an overwritten L2 cache, as
before a cold sample of the harness (its time and memory traffic), and with a clean one.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opgauge.harness.measure.cuda import CudaTimer
from opgauge.harness.report.render import label
from opgauge.harness.result.result import Trial
from opgauge.harness.result.submission import parse, read_submission
from opgauge.harness.result.summary import OPTIMIZED, rows
from opgauge.harness.worker.profiler import InputCache, prepared
from opgauge.ops._core.backend import cupy
from tools.documentation import GOALS

COPIES = {("flatten · config [copy=true]", "float32"), ("flatten · large", "float32")}
"""Cases that copy, by label and dtype."""
DIRTY = {
    "time_ns": "gpu__time_duration.sum",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
}
"""Metrics of one pass: a replayed kernel would find the cache of the previous pass."""
CLEAN = {
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "cache_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
"""Metrics of a second pass, which do not depend on the cache."""
WARM_CALLS = 3
"""Calls before the counted one."""


def main() -> None:
    """Profile cases of EXPORT that miss their goal into OUT; with one argument, make the calls to be profiled."""
    export, *out = sys.argv[1:]
    if not out:
        _call_each([trial for _, trial in chosen(Path(export))])
        return
    found = [
        {"case": name, "dtype": trial.case.dtype, "goal_us": _goal_us(name, trial), **dirty, **clean}
        for (name, trial), dirty, clean in zip(
            chosen(Path(export)), _profile(export, DIRTY, "none"), _profile(export, CLEAN, "all"), strict=True
        )
    ]
    Path(out[0]).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _goal_us(name: str, trial: Trial) -> float | None:
    return GOALS.get((name, trial.case.dtype, trial.implementation))


def chosen(export: Path) -> list[tuple[str, Trial]]:
    """The trials of a run that miss their goal, and the copies, by label."""
    found = []
    for row in rows(read_submission(parse(export.read_bytes())).results):
        for implementation, result in row.results.items():
            goal_us, taken_ns = _goal_us(label(row), result.trial), row.median_ns(implementation)
            is_missed = goal_us is not None and (taken_ns is None or taken_ns > goal_us * 1e3)
            is_copy = implementation == OPTIMIZED and (label(row), row.dtype) in COPIES
            if is_missed or is_copy:
                found.append((label(row), result.trial))
    return found


def _call_each(trials: Sequence[Trial]) -> None:
    """Call each kernel between start and stop of the profiler, after overwriting the L2 cache."""
    profiler, timer = cupy().cuda.profiler, CudaTimer()
    flush, inputs = timer.make_flush(), InputCache()
    for trial in trials:
        with prepared(trial, timer, inputs) as call:
            for _ in range(WARM_CALLS):
                call()
            flush(1)
            timer.synchronize()
            profiler.start()
            call()
            timer.synchronize()
            profiler.stop()


def _profile(export: str, metrics: dict[str, str], cache_control: str) -> Iterator[dict[str, Any]]:
    """A kernel and its counters for each case; profiled cases launch one kernel each."""
    options = ["--clock-control", "none", "--cache-control", cache_control, "--profile-from-start", "off"]
    output = ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics.values())]
    command = ["ncu", *options, *output, sys.executable, "-m", "tests.counters", export]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line.startswith('"')]
    _, *launches = csv.DictReader(lines)
    for launch in launches:
        figures = {name: float(launch[metric].replace(",", "")) for name, metric in metrics.items()}
        yield {"kernel": launch["Kernel Name"].partition("(")[0].removeprefix("void "), **figures}


if __name__ == "__main__":
    main()
