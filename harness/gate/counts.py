"""Counts of instructions per call on the CPU: a metric without noise, for hosts whose times are too noisy.

Hardware counters are used where the system permits them, else valgrind's cachegrind. Both sides run one thread. Under
valgrind, which has no AVX-512, Numba compiles for a processor with AVX2. Counts therefore do not include effects of
threads, of wider vectors or of memory.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

from opgauge.harness.counting import counted
from opgauge.harness.errors import NothingError
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import SIDES, Job
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.run.tree import temporary_folder
from opgauge.harness.run.worker_process import tree_options
from opgauge.harness.settings import THREAD_VARIABLES, child_environment
from opgauge.harness.worker.instructions import open_counter

VALGRIND = "valgrind"
"""Program that counts."""
Counts = Mapping[Subject, Mapping[str, int]]
"""Instructions per call, by job and side."""


class Counted(NamedTuple):
    """Counts of jobs, and reasons why some have none."""

    counts: Counts = MappingProxyType({})
    reasons: Collection[str] = ()


COUNT_S = 600.0
"""Default limit, in seconds, for the counts of all jobs."""
COUNTED_NS = 20e6
"""Time of the counted calls of a job without valgrind: one second or two with it."""
LEAST_CALLS, MOST_CALLS = 2, 1000
"""Counted calls. Few suffice for long calls; many average out what the interpreter does now and then."""
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+bmi,+bmi2,+f16c,+fma"}
"""Target of Numba's compiler under valgrind on x86-64. Code for it is compiled beforehand, without valgrind."""
CPU_FACTS = Path("/proc/cpuinfo")
"""Linux's list of what processors have."""
NOTES = {
    "perf_event": "instructions were counted with one thread",
    "cachegrind": "instructions were counted by valgrind's cachegrind, with one thread and AVX2",
}
"""Limits of the counts, by counter."""
Reply = Mapping[str, Any]


@cache
def counter_name() -> str:
    """The counter of this machine, `perf_event` or `cachegrind`; raises NothingError where there is neither."""
    counter = open_counter()
    if counter is not None:
        os.close(counter)
        return "perf_event"
    if shutil.which(VALGRIND):
        return "cachegrind"
    msg = "nothing counts instructions here: hardware counters are refused, and valgrind is not installed"
    raise NothingError(msg)


def count_notes(found: Counted) -> list[str]:
    """Limits of the counts, and the number of jobs without any; empty where nothing was counted."""
    if not found.counts:
        return []
    missing = sum(len(one) < len(SIDES) for one in found.counts.values())
    why = next(iter(found.reasons), "the time ended, or the process that counts")
    where = [f"instructions of {counted(missing, 'case')} were not counted: {why}"] if missing else []
    return [NOTES[counter_name()], *where]


def count_instructions(pool: WorkerPool, jobs: Sequence[Job], limit_s: float = COUNT_S) -> Counted:
    """Instructions per call of the jobs on the CPU, by side; jobs that fail, or find no time left, have none.

    limit_s: seconds for all of them. Raises NothingError where nothing counts instructions.
    """
    wanted = [job for job in jobs if job.subject.device == "cpu" and job.is_paired]
    end = monotonic() + min(limit_s, COUNT_S)
    counting = _Counting(pool, end, by_valgrind=counter_name() == "cachegrind")
    with ThreadPoolExecutor(len(SIDES)) as threads:
        times = list(threads.map(lambda side: counting.times_ns(side, wanted), SIDES))
        calls = [_calls(max(found, default=0.0)) for found in map(_known, zip(*times, strict=True))]
        counts = list(threads.map(lambda side: counting.per_call(side, wanted, calls), SIDES))
    per_job = {
        job.subject: {side: count for side, count in zip(SIDES, found, strict=True) if count is not None}
        for job, found in zip(wanted, zip(*counts, strict=True), strict=True)
    }
    return Counted(per_job, sorted(counting.reasons))


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _calls(call_ns: float) -> list[int]:
    """Numbers of calls of the two forks, equal for both sides; none for a kernel that failed."""
    if not call_ns:
        return []
    counted = max(LEAST_CALLS, min(MOST_CALLS, round(COUNTED_NS / call_ns)))
    few = 1 + counted // 10
    return [few, few + counted]


class _Counting:
    """Processes that count, on the trees of a pool; they end at `end`, by `time.monotonic`."""

    def __init__(self, pool: WorkerPool, end: float, *, by_valgrind: bool) -> None:
        self._pool = pool
        self._end = end
        self._by_valgrind = by_valgrind
        self.reasons: set[str] = set()

    def times_ns(self, side: str, jobs: Sequence[Job]) -> list[float | None]:
        """Time of a call of each job, in a process that compiles what the counted ones load; None for a failure."""
        command = [sys.executable, "-P", "-m", "opgauge.harness.worker.instructions"]
        replies = self._ask(side, command, [{"trial": job.trial, "calls": []} for job in jobs])
        return [float(one["call_ns"]) if one is not None and "call_ns" in one else None for one in replies]

    def per_call(self, side: str, jobs: Sequence[Job], calls: Sequence[Sequence[int]]) -> list[int | None]:
        """Instructions per call of each job; None for one that failed or has no calls."""
        requests = [{"trial": job.trial, "calls": counted} for job, counted in zip(jobs, calls, strict=True) if counted]
        with temporary_folder("opgauge-counts-") as folder:
            command = [sys.executable, "-P", "-m", "opgauge.harness.worker.instructions"]
            if self._by_valgrind:
                out = f"--cachegrind-out-file={folder}/%p"
                command = [VALGRIND, "--tool=cachegrind", "--cache-sim=no", "--log-file=/dev/null", out, *command]
            replies = iter(self._ask(side, command, requests))
            return [
                _per_call(next(replies), counted, folder if self._by_valgrind else None) if counted else None
                for counted in calls
            ]

    def _ask(self, side: str, command: Sequence[str], requests: Sequence[Mapping[str, Any]]) -> list[Reply | None]:
        """A reply per request; None for those that ended their process, and for all after the time is over."""
        replies: list[Reply | None] = []
        while len(replies) < len(requests) and monotonic() < self._end:
            replies += self._ask_once(side, command, requests[len(replies) :])
            # the next request ended the process, or the time is over
            replies += [None] * (len(replies) < len(requests))
        return [*replies, *[None] * (len(requests) - len(replies))]

    def _ask_once(self, side: str, command: Sequence[str], requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """Replies of one process, which may have ended before it answered all requests."""
        process = subprocess.Popen(
            [*command, *tree_options(self._pool.trees[side].path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment(side),
        )
        asked = "".join(json.dumps(one) + "\n" for one in requests)
        try:
            said, _ = process.communicate(asked, timeout=max(0.1, self._end - monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        finally:
            process.kill()
        # a process that was killed may have written half a line
        found = [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]
        self.reasons.update(f"{side}: {one['failed']}" for one in found if "failed" in one)
        return found

    def _environment(self, side: str) -> dict[str, str]:
        """One thread, and a fixed value for everything that varies from process to process."""
        fixed = {
            "PYTHONHASHSEED": "0",
            "NUMBA_CACHE_DIR": self._pool.cache(side),
            "NUMBA_THREADING_LAYER": "workqueue",
        }
        if self._by_valgrind and has_avx2():
            fixed |= AVX2
        return {
            **child_environment(),
            **dict.fromkeys(THREAD_VARIABLES, "1"),
            **self._pool.trees[side].environment,
            **fixed,
        }


def has_avx2() -> bool:
    """Whether this processor has AVX2, as far as the system says."""
    try:
        return platform.machine() == "x86_64" and "avx2" in CPU_FACTS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def _per_call(reply: Reply | None, calls: Sequence[int], folder: Path | None) -> int | None:
    """Instructions of one call, from the counts of both forks; None where one failed."""
    if reply is None or "failed" in reply:
        return None
    few, many = reply["counts"] if folder is None else (read_total(folder / str(one)) for one in reply["processes"])
    return round((many - few) / (calls[1] - calls[0])) if few and many else None


def read_total(file: Path) -> int:
    """Instructions in an output file of cachegrind; 0 without such a file."""
    if not file.is_file():
        return 0
    totals = [line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if "summary:" in line]
    return int(totals[-1].partition(":")[2].split()[0]) if totals else 0
