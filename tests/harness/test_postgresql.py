"""The store on PostgreSQL: `python -m tests.postgresql`, with which the other tests of store and service use it too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from opgauge.harness.cli.options import command_line
from opgauge.harness.errors import StoreError
from opgauge.harness.result.submission import read_submission
from opgauge.harness.scope import Scope
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.deleting import delete_runs
from opgauge.harness.store.run_queries import list_runs
from opgauge.harness.store.schema import HEAD, version
from opgauge.harness.store.tables import Table
from opgauge.harness.store.tokens import create_token, list_tokens
from opgauge.harness.store.writer_lock import order_numbers
from tests.databases import SERVER, database
from tests.harness.test_submission import a_run

needs_server = pytest.mark.skipif(
    not SERVER,
    reason="python -m tests.postgresql, or with OPGAUGE_TEST_DATABASE the URL of a server, such as "
    "postgresql+psycopg://postgres@127.0.0.1/postgres",
)


@needs_server
def test_migrations_make_what_the_tables_say(tmp_path: Path) -> None:
    """An empty database is migrated to the latest schema, which is that of the tables."""
    with database(tmp_path) as url, Store.open(url) as store:
        assert store.engine.dialect.name == "postgresql"
        assert version(store.engine) == HEAD
        with store.engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []


@needs_server
def test_times_keep_their_moment(tmp_path: Path) -> None:
    """Whatever zone the server thinks in, a run starts when it started, and all moments are in UTC."""
    sent = a_run()
    with database(tmp_path) as url:
        with Store.open(url) as store, store.engine.begin() as connection:
            name = store.engine.url.database
            connection.execute(text(f"ALTER DATABASE \"{name}\" SET timezone TO 'Asia/Kathmandu'"))
        with Store.open(url) as store:
            add_run(store.engine, read_submission(sent))
            assert store.find_run().started.isoformat() == sent["run"]["started"] == "2026-01-31T12:00:00+00:00"
            assert list_runs(store.engine)[0].started.isoformat() == sent["run"]["started"]
            create_token(store.engine, "mine", Scope.SUBMIT)
            assert list_tokens(store.engine)[0].created.tzinfo is UTC


def test_a_server_that_is_not_there_is_one_error() -> None:
    """No traceback, and the password is not shown."""
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        Store.open("postgresql+psycopg://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)


def test_passwords_of_databases_are_not_kept() -> None:
    """The command of a run, which pages show, has none, whatever characters it is of."""
    given = ["run", "--db", "postgresql+psycopg://me:s3:c/r@ t@db.example/x", "-i", "torch"]
    assert command_line(given) == "opgauge run --db 'postgresql+psycopg://me:***@db.example/x' -i torch"
    assert command_line(["run", "--db=sqlite:///a@b.db", "my cases.yaml"]) == (
        "opgauge run --db=sqlite:///a@b.db 'my cases.yaml'"
    )


@needs_server
def test_a_deletion_waits_for_a_submission_that_uses_its_cases(tmp_path: Path) -> None:
    """Cases without other results are deleted; one that a submission uses, and has not committed yet, is not."""
    first, second = (read_submission(a_run()) for _ in range(2))
    with database(tmp_path) as url, Store.open(url) as store, ThreadPoolExecutor(1) as thread:
        add_run(store.engine, first)
        with store.engine.begin() as connection:
            order_numbers(connection)
            enter = "INSERT INTO run (uuid, started, status, commit, command, environment) "
            enter += "SELECT :uuid, started, status, commit, command, environment FROM run RETURNING id"
            key = connection.execute(text(enter), {"uuid": second.id}).scalar_one()
            names = "case_key, implementation, backend, device, block, status, reason, median_ns, bytes, flops, data"
            uses = f"INSERT INTO result (run_id, {names}) SELECT :run, {names} FROM result"  # noqa: S608
            connection.execute(text(uses), {"run": key})
            deletion = thread.submit(delete_runs, store.engine, [first.id])
            wait([deletion], timeout=0.5)
        assert deletion.result() == 1
        assert [run.id for run in list_runs(store.engine, limit=9)] == [second.id]
