"""Instructions per call on the CPU: a metric without noise, for hosts whose times are too noisy.

Hardware counters where the system permits them, else valgrind's cachegrind. Both sides run one thread, and under
valgrind without AVX-512, so that a count says nothing of threads or of wider vectors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opgauge.harness.errors import NothingError
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import Job
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.run.tree import temporary_folder
from opgauge.harness.settings import THREAD_VARIABLES, child_environment
from opgauge.harness.worker.instructions import FEW, MANY, open_counter

VALGRIND = "valgrind"
Counts = Mapping[Subject, Mapping[str, int]]
"""Instructions per call, by job and side."""
COUNT_S = 600.0
"""Seconds that the processes of one side may take."""
NOTES = {
    "perf_event": "instructions were counted with one thread",
    "cachegrind": "instructions were counted by valgrind's cachegrind, with one thread and AVX2",
}


def counter_name() -> str:
    """What counts instructions here: `perf_event` or `cachegrind`; raises NothingError where nothing can."""
    counter = open_counter()
    if counter is not None:
        os.close(counter)
        return "perf_event"
    if shutil.which(VALGRIND):
        return "cachegrind"
    msg = "nothing counts instructions here: hardware counters are refused, and valgrind is not installed"
    raise NothingError(msg)


def count_notes(counts: Counts) -> list[str]:
    """Limits of the counts, if there are any."""
    return [NOTES[counter_name()]] if any(counts.values()) else []


def count_instructions(pool: WorkerPool, jobs: Sequence[Job]) -> dict[Subject, dict[str, int]]:
    """Instructions per call of the jobs on the CPU, by side; jobs that fail are left out.

    Raises NothingError where nothing counts instructions.
    """
    wanted = [job for job in jobs if job.subject.device == "cpu" and job.is_paired]
    by_valgrind = counter_name() == "cachegrind"
    found: dict[Subject, dict[str, int]] = {job.subject: {} for job in wanted}
    for side in wanted[0].sides if wanted else ():
        for job, count in zip(wanted, _count_side(pool, side, wanted, by_valgrind=by_valgrind), strict=True):
            if count is not None:
                found[job.subject][side] = count
    return found


def _count_side(pool: WorkerPool, side: str, jobs: Sequence[Job], *, by_valgrind: bool) -> list[int | None]:
    """Counts of the jobs on the tree of a side, all in one process; None for those without one."""
    with temporary_folder("opgauge-counts-") as folder:
        command = [sys.executable, "-P", "-m", "opgauge.harness.worker.instructions"]
        if by_valgrind:
            out = f"--cachegrind-out-file={folder}/%p"
            command = [VALGRIND, "--tool=cachegrind", "--cache-sim=no", "--log-file=/dev/null", out, *command]
        done = subprocess.run(
            [*command, "--ops", str(pool.trees[side].path)],
            input="".join(json.dumps(job.trial) + "\n" for job in jobs),
            capture_output=True,
            text=True,
            check=False,
            timeout=COUNT_S,
            env=_environment(pool, side),
        )
        lines = done.stdout.splitlines()
        replies: list[Mapping[str, Any]] = [json.loads(line) for line in lines]
        counts = [_per_call(reply, folder if by_valgrind else None) for reply in replies]
    return [*counts, *[None] * (len(jobs) - len(counts))]


def _environment(pool: WorkerPool, side: str) -> dict[str, str]:
    """One thread, and everything that varies from process to process fixed."""
    fixed = {"PYTHONHASHSEED": "0", "NUMBA_CACHE_DIR": pool.cache(side), "NUMBA_THREADING_LAYER": "workqueue"}
    return {**child_environment(), **dict.fromkeys(THREAD_VARIABLES, "1"), **fixed}


def _per_call(reply: Mapping[str, Any], folder: Path | None) -> int | None:
    """Instructions of one call, from the counts of both forks; None where one failed."""
    if "failed" in reply:
        return None
    few, many = reply["counts"] if folder is None else (read_total(folder / str(one)) for one in reply["processes"])
    return round((many - few) / (MANY - FEW)) if few and many else None


def read_total(file: Path) -> int:
    """Instructions in an output file of cachegrind; 0 without such a file."""
    if not file.is_file():
        return 0
    totals = [line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if "summary:" in line]
    return int(totals[-1].partition(":")[2].split()[0]) if totals else 0
