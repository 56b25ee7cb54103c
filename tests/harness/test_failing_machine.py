"""Failures of disks, folders, pipes and processes, each at every place where it can happen."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from opgauge.harness.cli.app import CLOSED
from opgauge.harness.errors import WorkerError
from opgauge.harness.result.result import Environment, Result, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.progress import Progress, ProgressStyle
from opgauge.harness.run.session import RunPlan, Session
from opgauge.harness.store import Store
from tests.commandline import run_here
from tests.harness.test_summary import a_result
from tools.kills import rounds

ROOT = Path(__file__).parents[2]
NOTHING = Environment({}, {})
TRIALS = 6
PAGE_BYTES = 4096
"""Every result is longer than a page of the database, so that each of them needs another one."""
KILLS = 2
"""Rounds here; docs/reliability.md has the result of more."""


class Scripted(LocalExecutor):
    """An executor that measures nothing and may fail after some trials."""

    def __init__(self, ends_after: int | None = None) -> None:
        self.ends_after = ends_after

    def run(self, trials: Any, **_: Any) -> Iterator[Result]:
        """A valid result for each trial, until the device is gone."""
        for number, trial in enumerate(trials):
            if number == self.ends_after:
                msg = "cuda:0: the device is gone"
                raise WorkerError(msg)
            yield replace(a_result("optimized", 1.0), trial=trial, extra={"log": "x" * PAGE_BYTES})

    def renew(self) -> None:
        """Nothing."""


def some_trials() -> tuple[Trial, ...]:
    """Trials of unlike cases."""
    trial = a_result("optimized", 1.0).trial
    return tuple(replace(trial, case=replace(trial.case, shapes={"x": (3, 2 + number)})) for number in range(TRIALS))


def session_of(store: Store, run: str) -> Session:
    """A session that prints nothing."""
    return Session(store, run, lambda total: Progress(total, ProgressStyle.NONE), lambda text: None)


def test_a_time_that_is_none_is_an_error_of_its_trial(tmp_path: Path) -> None:
    """A clock that ran backwards: the store would refuse the time, and the run goes on."""

    class Backwards(Scripted):
        def run(self, trials: Any, **_: Any) -> Iterator[Result]:
            for number, trial in enumerate(trials):
                yield replace(a_result("optimized", -5.0 if number == 1 else 5.0), trial=trial)

    with Store.open(f"sqlite:///{tmp_path}/results.db") as store:
        run = store.begin_run(NOTHING)
        assert session_of(store, run).measure(RunPlan(some_trials()), Backwards()) == 0
        found = store.results(run)
    assert [one.status.value for one in found] == ["ok", "error", *["ok"] * (TRIALS - 2)]
    assert "samples_ns should be positive numbers" in found[1].reason


def test_a_disk_may_be_full_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over a database that cannot grow beyond n pages, for every n: it ends with SQLite's reason.

    The results before that are stored. Once its process is gone, the run is interrupted, whatever could not be written.
    """
    kinds = set()
    for number in range(1000):
        url = f"sqlite:///{tmp_path}/{number}.db"
        with Store.open(url) as store:
            run = store.begin_run(NOTHING)
            with store.engine.connect() as connection:
                pages = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
            store.engine.dispose()

            def limit(connection: Any, _: object, pages: int = pages + number) -> None:
                connection.execute(f"PRAGMA max_page_count={pages}")

            event.listen(store.engine, "connect", limit)
            try:
                session_of(store, run).measure(RunPlan(some_trials()), Scripted())
                ended = "finished"
            except OperationalError as error:
                ended = "full" if "full" in str(error.orig) else str(error)
        kinds.add(ended)
        with monkeypatch.context() as patched:
            patched.setattr("opgauge.harness.store.abandoned.is_gone", lambda _: True)
            with Store.open(url) as store:
                (found,) = store.runs()
                assert found.status == ("finished" if ended == "finished" else "interrupted")
                assert len(store.results(run)) == found.results <= TRIALS
                assert found.results == TRIALS or ended == "full"
        if ended == "finished":
            break
    assert kinds == {"full", "finished"}


def test_a_device_that_vanishes_ends_the_run_with_what_it_measured(tmp_path: Path) -> None:
    """The error is raised, the run is interrupted, and the results before it are stored."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        run = store.begin_run(NOTHING)
        with pytest.raises(WorkerError, match="device is gone"):
            session_of(store, run).measure(RunPlan(some_trials()), Scripted(ends_after=4))
        assert (store.find_run(run).status, len(store.results(run))) == ("interrupted", 4)


def test_two_runs_share_a_database(tmp_path: Path) -> None:
    """Runs that write at the same time both finish, each with its own results."""
    url = f"sqlite:///{tmp_path}/x.db"
    Store.open(url).close()

    def measure(_: int) -> str:
        with Store.open(url) as store:
            run = store.begin_run(NOTHING)
            session_of(store, run).measure(RunPlan(some_trials()), Scripted())
        return run

    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(measure, range(10)))
    with Store.open(url) as store:
        assert {(run.id, run.status, run.results) for run in store.runs()} == {
            (run, "finished", TRIALS) for run in runs
        }


def test_without_a_temporary_folder_the_reason_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder for temporary files: exit code 2, no traceback."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    done = run_here("run", "cases/sign.yaml", "--db", str(tmp_path / "x.db"), cwd=ROOT, variables={})
    assert done.returncode == 2
    assert "temporary directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_is_closed_early_is_no_error() -> None:
    """As with `| head`: the listing has no reader. The command ends with 128 + SIGPIPE and prints nothing."""
    command = [sys.executable, "-m", "opgauge", "list", "--json"]
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        errors = process.communicate(timeout=120)[1]
    assert (process.returncode, errors) == (CLOSED, "")


def test_kills_at_random_moments_lose_nothing() -> None:
    """Runner and worker are killed; after a resume each trial has one valid result, and no process is left."""
    found = list(rounds(KILLS, seed=3))
    assert [one.victim for one in found] == ["runner", "worker"]
    assert not [fault for one in found for fault in one.faults]
