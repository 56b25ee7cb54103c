"""Backups while the database is written, and retention of raw samples."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from opgauge.harness.errors import StoreError
from opgauge.harness.result.result import Environment
from opgauge.harness.store import Store
from opgauge.harness.store.maintenance import back_up, prune_samples
from opgauge.harness.store.projects import ProjectSettings, save_project
from opgauge.harness.store.tables import RunRow
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
