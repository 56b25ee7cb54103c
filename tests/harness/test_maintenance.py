"""Backups while the database is written, and retention of raw samples."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, make_url, select, text, update

from opgauge.harness.errors import StoreError
from opgauge.harness.report.export import whole_run
from opgauge.harness.result.result import Environment, Measurement
from opgauge.harness.result.submission import read_submission
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store, run_queries
from opgauge.harness.store.audit import list_audit
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.dumping import dump_run
from opgauge.harness.store.maintenance import back_up, prune_samples
from opgauge.harness.store.projects import ProjectSettings, save_project
from opgauge.harness.store.result_rows import has_samples, result_values
from opgauge.harness.store.tables import ResultRow, RunRow, SampleRow
from tests.commandline import run_here
from tests.databases import SERVER, database
from tests.harness.test_store import a_result


def add(store: Store, project: str, days: int) -> str:
    """A run of a project, some days old."""
    run = store.begin_run(Environment({"cpu.model": "test"}, {"project": project}))
    store.add_result(run, a_result())
    store.finish_run(run)
    with store.engine.begin() as connection:
        old = datetime.now(UTC) - timedelta(days=days)
        connection.execute(update(RunRow).where(RunRow.uuid == run).values(started=old))
    return run


@pytest.mark.skipif(bool(SERVER) and not shutil.which("pg_dump"), reason="no pg_dump")
def test_a_backup_is_whole_and_overwrites_nothing(tmp_path: Path) -> None:
    """It has the runs that were there; a second one to the same file is refused, and leaves nothing behind."""
    target = tmp_path / "copy.db"
    with database(tmp_path) as url, Store.open(url) as store:
        run = add(store, "", 0)
        with store.engine.connect():  # it is in use meanwhile
            assert back_up(store.engine, target) == target.stat().st_size > 0
        with pytest.raises(StoreError, match="exists"):
            back_up(store.engine, target)
        with pytest.raises(StoreError, match="cannot be"):
            back_up(store.engine, tmp_path / "missing" / "x.db")
    assert not list(tmp_path.glob("*.partial"))
    if not SERVER:
        with Store.open(f"sqlite:///{target}") as copy:
            assert copy.results(run, samples=True)[0].measurement == a_result().measurement


def runbook_commands(start: str, **places: str) -> str:
    """Commands of the runbook that restore a backup, those of the block that begins with `start`, with our places."""
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    block = next(part for part in text.split("```sh\n")[1:] if part.startswith(start)).partition("```")[0]
    for name, place in places.items():
        block = block.replace({"file": "FILE", "old": "/var/lib/opgauge/opgauge.db"}.get(name, name), place)
    return "\n".join(line for line in block.splitlines() if not line.startswith("chown"))


@pytest.mark.skipif(bool(SERVER), reason="SQLite's files")
def test_a_restored_file_has_nothing_of_a_crashed_database(tmp_path: Path) -> None:
    """The log that a crash leaves beside the old file is not replayed into the backup."""
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with database(tmp_path) as url, Store.open(url) as store:
        run = add(store, "", 0)
        back_up(store.engine, tmp_path / "backup.db")
        add(store, "", 0)
        file = Path(store.engine.url.database or "")
        for path in file.parent.glob(f"{file.name}*"):
            shutil.copy(path, crashed / path.name)
    old = crashed / file.name
    assert old.with_name(f"{old.name}-wal").stat().st_size
    commands = runbook_commands("rm -f", old=str(old), file=str(tmp_path / "backup.db"))
    subprocess.run(["sh", "-ec", commands], check=True)
    with Store.open(f"sqlite:///{old}") as restored:
        assert [one.id for one in restored.runs()] == [run]
        add(restored, "", 0)


@pytest.mark.skipif(not SERVER or not shutil.which("pg_restore"), reason="no PostgreSQL")
def test_an_archive_is_restored_into_a_new_database(tmp_path: Path) -> None:
    """By the runbook's command, and the restored database takes further runs."""
    with database(tmp_path) as url, Store.open(url) as store, database(tmp_path) as target:
        run = add(store, "", 0)
        back_up(store.engine, tmp_path / "archive")
        plain = make_url(target).set(drivername="postgresql").render_as_string(hide_password=False)
        commands = runbook_commands("createdb", opgauge_restored=shlex.quote(plain), file=str(tmp_path / "archive"))
        subprocess.run(["sh", "-ec", commands.splitlines()[1]], check=True)
        with Store.open(target) as restored:
            assert [one.id for one in restored.runs()] == [run]
            add(restored, "", 0)


@pytest.mark.skipif(bool(SERVER) and not shutil.which("pg_dump"), reason="no pg_dump")
def test_a_database_of_an_older_schema_can_be_backed_up(tmp_path: Path) -> None:
    """By the version that asks for the backup before the upgrade; one of a newer schema too."""
    with database(tmp_path) as url:
        with Store.open(url) as store:
            add(store, "", 0)
        for schema in ("0001", "9999"):
            engine = create_engine(url)
            with engine.begin() as connection:
                connection.execute(text(f"UPDATE alembic_version SET version_num = '{schema}'"))  # noqa: S608
            engine.dispose()
            target = tmp_path / f"{schema}.copy"
            done = run_here("db", "backup", str(target), "--db", url, cwd=tmp_path, variables={})
            assert done.returncode == 0, done.stderr
            assert target.stat().st_size > 0


def test_no_database_is_no_backup(tmp_path: Path) -> None:
    """A mistyped address would otherwise be created, and its emptiness backed up."""
    (tmp_path / "empty.db").touch()
    for name in ("missing", "empty"):
        url = f"sqlite:///{tmp_path}/{name}.db"
        done = run_here("db", "backup", str(tmp_path / "copy"), "--db", url, cwd=tmp_path, variables={})
        assert done.returncode != 0
        assert "no opgauge database" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]


def test_administration_is_in_the_audit_log(tmp_path: Path) -> None:
    """Deletions of runs, settings of projects and retention: who looks for a lost run finds what took it."""
    with database(tmp_path) as url, Store.open(url) as store:
        run = add(store, "a", 100)
        for given in (("project", "set", "a", "--samples-days", "30"), ("db", "prune"), ("runs", "rm", run, "--yes")):
            assert run_here(*given, "--db", url, cwd=tmp_path, variables={}).returncode == 0
        entries = [(one.action, one.subject) for one in list_audit(store.engine)]
        assert entries == [("delete run", run), ("prune samples", "by project"), ("set project", "a")]


def test_old_samples_are_pruned_and_summaries_stay(tmp_path: Path) -> None:
    """By age of all, or by each project's own retention; medians and quartiles are as before."""
    with database(tmp_path) as url, Store.open(url) as store:
        runs = {(name, days): add(store, name, days) for name in ("a", "b") for days in (1, 100)}
        before = {key: store.results(run) for key, run in runs.items()}
        save_project(store.engine, ProjectSettings("a", samples_days=30))
        assert prune_samples(store.engine) == {"a": 1}
        assert prune_samples(store.engine, timedelta(days=30), "b") == {"b": 1}
        assert prune_samples(store.engine, timedelta(days=30)) == {"a": 0, "b": 0}
        assert {key: store.results(run) for key, run in runs.items()} == before
        kept = store.results(runs["a", 1], samples=True)[0].measurement
        assert kept == a_result().measurement


def test_a_run_without_raw_samples_moves_whole(tmp_path: Path) -> None:
    """Exported, dumped and stored elsewhere: median, quartiles and number of samples are those that were measured."""
    times = (4.0, 1.0, 9.0, 2.0, 3.0, 7.0, 5.0, 6.0)
    measured = replace(a_result(), measurement=Measurement(times, "events", 1))
    with database(tmp_path) as url, Store.open(url) as store:
        run = store.begin_run(Environment({"cpu.model": "test"}, {}))
        store.add_result(run, measured)
        store.finish_run(run)
        before = store.results(run)
        assert prune_samples(store.engine, timedelta(0)) == {"": 1}
        found = store.find_run(run)
        whole = whole_run(found, store.results(run, samples=True), {})
        (info,) = run_queries.find_runs(store.engine, run)
        dumped = dump_run(store.engine, info.key, json.dumps({**whole, "results": []}, separators=(",", ":")))
        assert json.loads(dumped) == json.loads(json.dumps(whole))
        with database(tmp_path) as other, Store.open(other) as copy:
            add_run(copy.engine, read_submission(json.loads(dumped)))
            assert copy.results(run) == before
            # not even the median is taken for a raw sample
            assert copy.results(run, samples=True) == before
            with copy.engine.connect() as connection:
                assert connection.execute(select(func.count()).select_from(SampleRow)).scalar() == 0
                row = connection.execute(select(ResultRow.low_ns, ResultRow.median_ns, ResultRow.high_ns)).one()
            assert tuple(row) == (2.0, 4.5, 7.0)


@pytest.mark.parametrize(
    "given",
    [
        [1.0, 2.0, 3.0, 1],
        [1.0, 2.0, 3.0, True],
        [1.0, 6.0, 7.0, 9],
        [2.0, 1.0, 7.0, 9],
        [0, 1.0, 7.0, 9],
        ["1", 2, 3, 4],
    ],
)
def test_quartiles_that_contradict_the_median_are_not_believed(given: list[object]) -> None:
    """What a sender calls the quartiles of dropped samples must fit; otherwise they are those of what it sent."""
    one = replace(a_result(), measurement=Measurement((4.5,), "events", 1), extra={"quantiles_ns": given})
    assert result_values(one)["data"]["quantiles_ns"] == [4.5, 4.5, 4.5, 1]
    assert has_samples(one)
    many = replace(one, measurement=Measurement((4.0, 5.0), "events", 1), extra={"quantiles_ns": [1.0, 2.0, 7.0, 9]})
    assert result_values(many)["data"]["quantiles_ns"] == [4.0, 4.0, 5.0, 2]
