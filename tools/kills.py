"""Kills `opgauge run` or its worker by SIGKILL at random moments: `python -m tools.kills [ROUNDS] [SEED]`.

After every kill the run is resumed. A round passes if each trial has one valid result in the end, the run is marked as
finished, and no process of it is left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import typer

from opgauge.harness.settings import program_environment
from opgauge.harness.store import Store

ROOT = Path(__file__).parents[1]
"""The source tree, which has the case files."""
RUN = ("run", "cases/sign.yaml", "-i", "baseline", "--tag", "smoke", "--budget", "0.02", "--no-ceilings", "--quiet")
"""Arguments of the run that is killed."""
LATEST_S = 4.0
"""Latest moment of a kill, seconds after the start; a run that ends earlier counts as not hit."""
PATIENCE_S = 300.0
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Round:
    """Outcome of one round. victim: `runner` or `worker`. hit: whether it lived. faults: what was found wrong."""

    victim: str
    hit: bool
    faults: tuple[str, ...]


def rounds(count: int, seed: int, latest_s: float = LATEST_S) -> Iterator[Round]:
    """Outcomes of `count` rounds, runner and worker alternately."""
    chosen = random.Random(seed)  # noqa: S311  moments of kills
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            yield _round(Path(folder), "runner" if number % 2 == 0 else "worker", chosen.uniform(0, latest_s))


def _round(folder: Path, victim: str, moment_s: float) -> Round:
    url = f"sqlite:///{folder}/x.db"
    with _start(url, folder) as process:
        time.sleep(moment_s)
        seen = _descendants(process.pid)
        target = process.pid if victim == "runner" else next(iter(seen), 0)
        hit = bool(target) and process.poll() is None
        if hit:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        faults = _wait(process, "run")
    if hit:
        # the result of a trial that lost its worker says so, and is measured again too
        faults += _resume(url, folder)
    return Round(victim, hit, (*faults, *_wrong_results(url), *_left(seen)))


def _start(url: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "opgauge", *RUN, "--db", url, *more]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=program_environment({}), stdout=log, stderr=log)


def _resume(url: str, folder: Path) -> tuple[str, ...]:
    with Store.open(url) as store:
        begun = any(run.results for run in store.runs())
    with _start(url, folder, *(("--resume", "last") if begun else ())) as process:
        faults = _wait(process, "resumed run")
        code = process.returncode
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    if "Traceback" in log:
        faults = (*faults, f"traceback: {log[-300:]}")
    return faults if code in {0, None} else (*faults, f"exit code {code}: {log[-200:]}")


def _wait(process: subprocess.Popen[bytes], name: str) -> tuple[str, ...]:
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return (f"the {name} did not end",)
    return ()


def _wrong_results(url: str) -> list[str]:
    with Store.open(url) as store:
        # a run that was killed before its first result cannot be resumed, and leaves an empty one
        found = [run for run in store.runs() if run.results]
        if len(found) != 1:
            return [f"{len(found)} runs"]
        results = store.results(found[0].id)
        counts = Counter((one.trial.case.id, one.trial.implementation) for one in results if one.status == "ok")
        faults = [] if found[0].status == "finished" else [f"status {found[0].status}"]
        expected = {one.trial.case.id for one in results}
        if len(counts) != len(expected) or not counts:
            faults.append(f"{len(counts)} of {len(expected)} trials have a valid result")
        return faults + [f"{key} has {count} results" for key, count in counts.items() if count > 1]


def _descendants(process: int) -> list[int]:
    try:
        return [one.pid for one in psutil.Process(process).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _left(processes: list[int]) -> list[str]:
    """Processes of a round that still exist a moment after its end."""
    end = time.monotonic() + 10
    while any(_is_alive(one) for one in processes) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"process {one} is left" for one in processes if _is_alive(one)]


def _is_alive(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    """Print a line per fault and the counts; returns 1 if there was a fault."""
    count, seed = (int(word) for word in (*sys.argv[1:3], *("100", "1")[len(sys.argv) - 1 :]))
    hits: Counter[str] = Counter()
    faulty = 0
    for number, done in enumerate(rounds(count, seed), 1):
        hits[done.victim] += done.hit
        faulty += bool(done.faults)
        for fault in done.faults:
            typer.echo(f"round {number}, {done.victim}: {fault}")
        if number % 10 == 0 or number == count:
            kills = ", ".join(f"{victim} {times}" for victim, times in sorted(hits.items()))
            typer.echo(f"{number} rounds; killed: {kills}; rounds with a fault: {faulty}")
    return int(faulty > 0)


if __name__ == "__main__":
    sys.exit(main())
