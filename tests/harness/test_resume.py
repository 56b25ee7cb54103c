"""`opgauge run --resume`: the selection is that of the resumed run, unless the command has one."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import update

from opgauge.harness.cli import cluster
from opgauge.harness.store import Store
from opgauge.harness.store.tables import RunRow
from tests.commandline import Done, run_here

ROOT = Path(__file__).parent.parent.parent
CASE = ("cases/dot.yaml", "--name", "vector-small", "--dtype", "float32", "--device", "cpu")
COMMAND = f"opgauge run {' '.join(CASE)} -i baseline -i optimized --budget 0.02"
QUICK = ("--budget", "0.02", "--no-ceilings")


def run(db: Path, *arguments: str) -> Done:
    """Run `opgauge run` with a database."""
    return run_here("run", *arguments, "--db", str(db), cwd=ROOT, variables={})


def state_command(db: Path, command: str) -> None:
    """Replace the stored command of the only run."""
    with Store.open(f"sqlite:///{db}") as store, store.engine.begin() as connection:
        connection.execute(update(RunRow).values(command=command))


def measured(db: Path) -> list[tuple[str, str]]:
    """Case and implementation of each result of the only run."""
    with Store.open(f"sqlite:///{db}") as store:
        (found,) = store.runs()
        return [(result.trial.case.name, result.trial.implementation) for result in store.results(found.id)]


def planned(done: Done) -> list[tuple[str, str]]:
    """Case and implementation of each trial that `--dry-run --json` listed."""
    assert done.returncode == 0, done.stderr
    return [(trial["case"], trial["implementation"]) for trial in json.loads(done.stdout)["trials"]]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a run of two implementations of a case, of which the first was measured."""
    db = tmp_path_factory.mktemp("resume") / "run.db"
    done = run(db, *CASE, "-i", "baseline", *QUICK)
    assert done.returncode == 0, done.stderr
    state_command(db, COMMAND)
    return db


@pytest.fixture
def db(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of that database."""
    return Path(shutil.copytree(interrupted.parent, tmp_path / "copy")) / interrupted.name


def test_a_run_is_resumed_with_its_own_selection(db: Path) -> None:
    """Without a selection only the rest of the run's own is measured, which stderr says in a line."""
    done = run(db, "--resume", "last", *QUICK)
    assert done.returncode == 0, done.stderr
    assert measured(db) == [("vector-small[float32]", "baseline"), ("vector-small[float32]", "optimized")]
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("resuming run "))
    assert line.endswith(
        "with its selection: cases/dot.yaml --dtype float32 --name vector-small"
        " --implementation baseline --implementation optimized --device cpu"
    )


def test_a_selection_that_is_given_replaces_that_of_the_run(db: Path) -> None:
    """Then the trials of the command are measured, and others of the run's selection are not."""
    done = run(db, *CASE, "-i", "baseline", "-i", "torch", "--resume", "last", *QUICK)
    assert done.returncode == 0, done.stderr
    assert [implementation for _, implementation in measured(db)] == ["baseline", "torch"]
    assert "resuming run" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "",
        "opgauge",
        "opgauge.run(...)",
        "pytest run --tag seed",
        "opgauge gate --op dot",
        "opgauge runs list",
        "opgauge run --settle 2 --tag seed",
        "opgauge run --name 'vector",
        "opgauge run --gpus all --resume last",
    ],
)
def test_a_run_without_a_readable_selection_needs_one(db: Path, command: str) -> None:
    """A usage error requests the selection for commands of other programs, verbs and versions."""
    state_command(db, command)
    done = run(db, "--resume", "last", "--dry-run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    told = " ".join(done.stderr.split())
    assert f"cannot be read from its command ({command or 'none stored'})" in told
    assert "give paths, --op, --tag" in told


@pytest.mark.parametrize("verb", ["run", "--builtin run", "run --builtin"])
def test_a_dry_run_lists_what_is_missing_of_the_selection(db: Path, verb: str) -> None:
    """Options beside the verb do not matter; with `--quiet` the selection is not named."""
    state_command(db, COMMAND.replace("run", verb))
    done = run(db, "--resume", "last", "--dry-run", "--json", "--quiet")
    assert planned(done) == [("vector-small[float32]", "optimized")]
    assert "selection" not in done.stderr


def test_a_run_without_filters_is_resumed_as_a_whole(db: Path) -> None:
    """A stored command without a selection selects every case by every implementation, and stderr says so."""
    state_command(db, "opgauge run --budget 0.02")
    done = run(db, "--resume", "last", "--dry-run", "--json")
    assert len(planned(done)) > 100
    assert "selection: every case by every implementation" in done.stderr


def test_a_spread_run_is_resumed_with_its_own_selection(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--gpus` the cases, implementations and devices of the resumed run are selected too."""
    monkeypatch.setattr(cluster, "opened_cluster", lambda *_: nullcontext(object()))
    state_command(db, COMMAND.replace("run", "run --gpus all"))
    done = run(db, "--gpus", "all", "--resume", "last", "--dry-run", "--json")
    assert planned(done) == [("vector-small[float32]", "optimized")]
