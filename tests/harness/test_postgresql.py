"""The store on PostgreSQL: `python -m tests.postgresql`, with which the other tests of store and service use it too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg.pq import TransactionStatus
from sqlalchemy import event, text

from opgauge.harness.cli.options import command_line
from opgauge.harness.errors import StoreError
from opgauge.harness.result.submission import read_submission
from opgauge.harness.scope import Scope
from opgauge.harness.store import Store
from opgauge.harness.store import engine as engine_module
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.deleting import delete_runs
from opgauge.harness.store.engine import CONNECTIONS
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


@needs_server
def test_connections_that_the_server_ended_are_replaced(tmp_path: Path) -> None:
    """A query after a restart of the server finds a new connection, for reading and for writing."""
    end = text(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with database(tmp_path) as url, Store.open(url) as store, Store.open(url) as other:
        for engine in (store.engine, store.reading):
            assert list_runs(engine) == []
            with other.engine.connect() as connection:
                assert connection.execute(end).scalars().all() == [True]
            assert list_runs(engine) == []


@needs_server
def test_connections_are_asked_after_a_long_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between may have dropped them; one that was used just now is not asked, which would take a query."""
    asked: list[object] = []
    with database(tmp_path) as url, Store.open(url) as store:
        monkeypatch.setattr(store.engine.dialect, "do_ping", asked.append)
        list_runs(store.engine)
        list_runs(store.reading)
        assert asked == []
        monkeypatch.setattr(engine_module, "WAIT_S", 0.0)
        list_runs(store.reading)
        assert len(asked) == 1


@needs_server
def test_each_request_keeps_its_connection(tmp_path: Path) -> None:
    """As many connections are kept as requests are processed at once: after their first queries none is opened."""
    with database(tmp_path) as url, Store.open(url) as store:
        opened: list[None] = []
        event.listen(store.engine, "connect", lambda *_: opened.append(None))
        for _ in range(2):
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    stack.enter_context(store.reading.connect()).execute(text("SELECT 1"))
            # the store's own is one of them
            assert len(opened) == CONNECTIONS - 1


@needs_server
def test_reading_begins_no_transactions(tmp_path: Path) -> None:
    """Beginning and ending one would take as long as two queries; what writes has them."""
    with database(tmp_path) as url, Store.open(url) as store:
        none, inside = TransactionStatus.IDLE, TransactionStatus.INTRANS
        begun = ((store.reading.connect, none), (store.reading.begin, inside), (store.engine.connect, inside))
        for begin, expected in begun:
            with begin() as connection:
                connection.execute(text("SELECT 1"))
                driver: Any = connection.connection.dbapi_connection
                assert driver.info.transaction_status == expected


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
