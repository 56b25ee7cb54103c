"""Failures of the machine and of people: a run ends, says how, and keeps what it measured."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from opgauge.harness.case.case import Case
from opgauge.harness.errors import StoreError
from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Environment, Measurement, Result, Status, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.liveness import is_gone, process_identity
from opgauge.harness.run.progress import Progress, ProgressStyle
from opgauge.harness.run.session import RunPlan, Session
from opgauge.harness.run.signals import TerminatedError
from opgauge.harness.run.worker_process import Worker
from opgauge.harness.store import Store, engine, store
from opgauge.harness.worker import protocol
from opgauge.ops import find_op
from tests.commandline import run_here
from tests.harness.test_summary import a_result

ROOT = Path(__file__).parents[2]
NOTHING = Environment({}, {})
IMPLEMENTATIONS = ("-i", "baseline", "-i", "optimized")
LONG_RUN = ("run", "cases/dot.yaml", *IMPLEMENTATIONS, "--tag", "smoke", "--budget", "1.0", "--no-ceilings")
EXPLORED = ROOT / "examples" / "numpy"
"""A project to explore, without kernels that import torch or are compiled."""


def start(
    db: Path,
    *,
    command: Sequence[str] = LONG_RUN,
    folder: Path = ROOT,
    limit_bytes: int | None = None,
    ignore: signal.Signals | None = None,
) -> subprocess.Popen[bytes]:
    """A run in a process of its own. limit_bytes: largest file that it can write. ignore: a signal, as nohup does."""

    def prepare() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
        if ignore is not None:
            signal.signal(ignore, signal.SIG_IGN)

    return subprocess.Popen(
        [sys.executable, "-P", "-m", "opgauge", *command, "--db", str(db)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=prepare,  # noqa: PLW1509  no threads here
    )


def wait_for_results(process: subprocess.Popen[bytes], db: Path) -> None:
    """Wait until the run has stored a result."""
    for _ in range(600):
        try:
            with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
                if connection.execute("SELECT count(*) FROM result").fetchone()[0]:
                    return
        except sqlite3.OperationalError:
            pass
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("the run stored nothing")


@pytest.mark.parametrize(
    ("command", "folder", "number"),
    [
        (LONG_RUN, ROOT, signal.SIGTERM),
        (LONG_RUN, ROOT, signal.SIGHUP),
        (LONG_RUN, ROOT, signal.SIGKILL),
        (("explore", "--device", "cpu", "--time", "100"), EXPLORED, signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_run_as_interrupted(
    command: Sequence[str], folder: Path, number: signal.Signals, tmp_path: Path
) -> None:
    """SIGTERM and SIGHUP end it with 128 + N; after SIGKILL the next command finds that the process is gone."""
    db = tmp_path / "x.db"
    with start(db, command=command, folder=folder) as process:
        wait_for_results(process, db)
        process.send_signal(number)
        assert process.wait(60) == (-number if number is signal.SIGKILL else 128 + number)
    with Store.open(f"sqlite:///{db}") as opened:
        (run,) = opened.runs()
        assert run.status == "interrupted"
        assert run.results >= 1
        assert "process" not in run.environment.soft


def test_nohup_is_respected(tmp_path: Path) -> None:
    """A hangup that was ignored when the run began does not end it."""
    db = tmp_path / "x.db"
    with start(db, ignore=signal.SIGHUP) as process:
        wait_for_results(process, db)
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """The run ends with the database's reason, no traceback; its status is true at the next look."""
    db = tmp_path / "x.db"
    with Store.open(f"sqlite:///{db}"):
        pass
    with start(db, limit_bytes=db.stat().st_size + 20_000) as process:
        errors = process.communicate(timeout=200)[1].decode()
    assert process.returncode == 2
    assert "Traceback" not in errors
    assert "the database cannot be used" in errors
    with Store.open(f"sqlite:///{db}") as opened:
        assert {run.status for run in opened.runs()} <= {"interrupted"}


class Failing:
    """A store that fails at one of its methods."""

    def __init__(self, method: str, error: BaseException) -> None:
        self.method, self.error, self.ended = method, error, ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == self.method:
                raise self.error
            if name == "finish_run":
                self.ended = arguments[-1]
            return []

        return call


class Instant(LocalExecutor):
    """An executor that measures nothing."""

    def __init__(self) -> None:
        pass

    def run(self, trials: Any, **_: Any) -> Iterator[Result]:
        """A valid result for each trial."""
        for trial in trials:
            yield Result(trial, Status.OK)

    def ceilings(self, device: str) -> Any:
        """Nothing."""
        return device

    def renew(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("method", ["add_result", "add_ceilings", "results"])
@pytest.mark.parametrize("error", [OperationalError("", None, Exception("database or disk is full")), MemoryError()])
def test_a_write_that_fails_ends_the_run(method: str, error: Exception) -> None:
    """At every write: the error is raised, and the run is interrupted, not running."""
    failing = Failing(method, error)
    session = Session(failing, "r", lambda total: Progress(total, ProgressStyle.NONE), lambda text: None)
    with pytest.raises(type(error)):
        session.measure(RunPlan((a_result("optimized", 1.0).trial,), ("cpu",)), Instant())
    assert failing.ended == "interrupted"


def test_a_signal_in_a_finalizer_is_not_lost() -> None:
    """Python ignores exceptions there: the run ends after the trial, and the next run in this process does not."""
    stored = Failing("", OSError())

    def add_result(*_: object) -> None:
        with suppress(TerminatedError):
            os.kill(os.getpid(), signal.SIGTERM)

    trials = (a_result("optimized", 1.0).trial,) * 2
    for add, code, ended in ((add_result, 143, "interrupted"), (lambda *_: None, 0, "finished")):
        stored.add_result = add  # type: ignore[attr-defined]
        session = Session(stored, "r", lambda total: Progress(total, ProgressStyle.NONE), lambda text: None)
        assert session.measure(RunPlan(trials), Instant()) == code
        assert stored.ended == ended


def test_an_error_survives_a_store_that_cannot_end_the_run() -> None:
    """What went wrong first is what is raised."""
    failing = Failing("finish_run", OSError("full"))
    failing.add_result = Failing("x", OSError()).nothing = lambda *_: (_ for _ in ()).throw(KeyError("first"))  # type: ignore[attr-defined]
    session = Session(failing, "r", lambda total: Progress(total, ProgressStyle.NONE), lambda text: None)
    with pytest.raises(KeyError, match="first"):
        session.measure(RunPlan((a_result("optimized", 1.0).trial,)), Instant())


def test_a_process_is_known_by_more_than_its_number() -> None:
    """Alive, ended, another start, another machine, another container, nonsense."""
    here = process_identity()
    assert not is_gone(here)
    with subprocess.Popen(["sleep", "60"]) as process:
        other = process_identity(process.pid)
        assert not is_gone(other)
        process.kill()
    assert is_gone(other)
    host, boot, namespace, number, started = here.split(" ")
    assert is_gone(f"{host} {boot} {namespace} {number} {int(started) + 1}")
    assert not is_gone(f"elsewhere {boot} {namespace} 1 5")
    assert not is_gone(f"{host} {boot} pid:[1] 999999999 5")
    assert is_gone(f"{host} another-boot {namespace} {number} {started}")
    assert not any(is_gone(text) for text in ("", "x", "a b c", f"{host} {boot} {namespace} -1 5"))


def test_killed_and_timed_out_trials_are_tried_again() -> None:
    """A resumed run leaves out results, wrong ones too, but not those that the machine may have caused."""
    with Store.open("sqlite://") as opened:
        run = opened.begin_run(NOTHING)
        for status in Status:
            measurement = Measurement((1.0,), "test", 0) if status is Status.OK else None
            given = a_result("optimized", 1.0, name=str(status), status=status)
            case = replace(given.trial.case, shapes={"x": (len(Status), list(Status).index(status) + 1)})
            opened.add_result(run, replace(given, trial=replace(given.trial, case=case), measurement=measurement))
        left_out = {case_id for case_id, *_ in opened.finished_trials(run)}
        named = {result.trial.case.name for result in opened.results(run) if result.trial.case.id in left_out}
    assert named == {"ok", "wrong", "error", "unsupported"}


def test_a_clock_that_is_set_back_gives_no_negative_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run never ends before it began."""

    class Earlier(datetime):
        """A clock an hour behind."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - timedelta(hours=1)

    with Store.open("sqlite://") as opened:
        run = opened.begin_run(NOTHING)
        monkeypatch.setattr(store, "datetime", Earlier)
        opened.finish_run(run)
        (found,) = opened.runs()
    assert found.finished is not None
    assert found.finished >= found.started > datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "written",
    [b"hello\n", b"{}\n", b'{"kind": "Ready"}\n', b"\xff\xfe\x00\n", b"null\n", b"[1, 2]\n", b'"x"\n', b"12\n", b"\n",
     b'{"kind": "Ready", "to": [1, "", 1], "content": {}}\n', b'{"kind": "No", "to": [0, "", 0], "content": {}}\n'],
)  # fmt: skip
def test_bytes_that_are_no_reply_are_refused(written: bytes) -> None:
    """Whatever a kernel writes to the pipe, the parent raises one error that a result can carry."""
    worker = Worker(["--preload"], dict(os.environ))
    try:
        worker.wait_until_ready()
        worker.send(protocol.NameModel("cpu"))
        worker._pending[:0] = written
        with pytest.raises(protocol.MismatchedReplyError):
            worker.receive(float("inf"))
    finally:
        worker.kill()


def test_a_trial_with_a_foreign_reply_fails_alone() -> None:
    """The trial is an error with the reason; the next one is measured by another process."""
    case = Case("p_norm", "small", {"x": (5, 7)}, "float32", find_op("p_norm").params())
    trial = Trial(case, "baseline", "cpu", "cpu")
    limits = Limits(budget_s=0.01, min_samples=2, max_samples=3, warmup_s=0.0)
    with LocalExecutor(limits=limits, preload=()) as executor:
        executor.ready()._pending[:0] = b"GET / HTTP/1.1\n"
        (first,) = executor.run([trial])
        (second,) = executor.run([trial])
    assert (first.status, second.status) == (Status.ERROR, Status.OK)
    assert "pipe" in first.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"not a database at all, but a text of some length" * 40, "not a database"), (b"", "")],
    ids=["text", "empty"],
)
def test_a_corrupt_database_is_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    """A file that is no database is refused with its name; an empty file is a new database."""
    db = tmp_path / "x.db"
    db.write_bytes(content)
    done = run_here("runs", "list", "--db", str(db), cwd=ROOT, variables={})
    assert done.returncode == (2 if reason else 0)
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_locked_database_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the wait for the lock the reason is printed, and nothing is lost."""
    monkeypatch.setattr(engine, "PRAGMAS", ("busy_timeout=50", *engine.PRAGMAS[1:]))
    db = tmp_path / "x.db"
    with Store.open(f"sqlite:///{db}") as opened:
        run = opened.begin_run(NOTHING)
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    done = run_here("runs", "rm", run, "--yes", "--db", str(db), cwd=ROOT, variables={})
    other.execute("ROLLBACK")
    other.close()
    assert done.returncode == 2
    assert "locked" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A database cannot be made in a folder that does not exist."""
    with pytest.raises(StoreError, match="no folder"):
        Store.open(f"sqlite:///{tmp_path}/none/x.db")
