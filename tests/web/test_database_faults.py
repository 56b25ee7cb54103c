"""Faults of the database in every route that writes: 507 for a full disk, 503 for a busy one, a line in the log."""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import Engine, event

from opgauge.harness.scope import Scope
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.tokens import create_token
from opgauge.web.app import create_app
from tests.databases import database
from tests.web.reading_pages import PLAIN, regression_key, routes_of
from tests.web.submissions import API, a_run, bearer, put, store_of
from tests.web.test_acknowledging import acknowledgement

WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SQLITE = {"full": sqlite3.SQLITE_FULL, "busy": sqlite3.SQLITE_BUSY, "read-only": sqlite3.SQLITE_READONLY}
POSTGRESQL = {"full": "DiskFull", "busy": "LockNotAvailable", "read-only": "ReadOnlySqlTransaction"}
STATUSES = {"full": 507, "busy": 503, "read-only": 500}
"""Errors of both databases, and the statuses that they become."""
Request = Callable[[TestClient], Callable[[], Response]]


def _put(path: str) -> Request:
    def prepare(client: TestClient) -> Callable[[], Response]:
        run, headers = a_run(), bearer(client)
        return lambda: client.put(f"{API}/runs/{run['run']['id']}{path}", json=run, headers=headers)

    return prepare


def _with_part(method: str, path: str, **body: Any) -> Request:
    def prepare(client: TestClient) -> Callable[[], Response]:
        run, headers = a_run(), bearer(client)
        put(client, run, headers, "/parts/0")
        return lambda: client.request(method, f"{API}/runs/{run['run']['id']}{path}", headers=headers, **body)

    return prepare


def _acknowledge(client: TestClient) -> Callable[[], Response]:
    secret = create_token(store_of(client).engine, f"t-{uuid.uuid4().hex[:8]}", Scope.ACK)
    address = f"/regressions/{regression_key(client, 'slower')}"
    return lambda: client.post(address, content=acknowledgement(token=secret), headers=FORM, follow_redirects=False)


def _withdraw(client: TestClient) -> Callable[[], Response]:
    address = f"/regressions/{regression_key(client, 'slower')}/withdraw"
    assert _acknowledge(client)().status_code == 303
    secret = create_token(store_of(client).engine, f"t-{uuid.uuid4().hex[:8]}", Scope.ACK)
    return lambda: client.post(address, content=f"token={secret}", headers=FORM, follow_redirects=False)


REQUESTS: dict[tuple[str, str], Request] = {
    ("PUT", f"{API}/runs/{{run_id}}"): _put(""),
    ("PUT", f"{API}/runs/{{run_id}}/parts/{{number}}"): _put("/parts/0"),
    ("POST", f"{API}/runs/{{run_id}}/finish"): _with_part("POST", "/finish", json={"parts": 1}),
    ("DELETE", f"{API}/runs/{{run_id}}/parts"): _with_part("DELETE", "/parts"),
    ("POST", "/regressions/{key}/withdraw"): _withdraw,
    ("POST", "/regressions/{key}"): _acknowledge,
}
"""A request that writes, for each route that can."""


@contextmanager
def failing(engine: Engine, fault: str, statements: tuple[str, ...] = ("INSERT", "UPDATE", "DELETE")) -> Iterator[None]:
    """Context in which statements fail as they do on a full, busy or read-only database."""

    def fail(_: object, statement: str, *__: object) -> None:
        if statement.lstrip().upper().startswith(statements):
            raise _error(engine, fault)

    for name in ("do_execute", "do_executemany"):
        event.listen(engine, name, fail)
    try:
        yield
    finally:
        for name in ("do_execute", "do_executemany"):
            event.remove(engine, name, fail)


def _error(engine: Engine, fault: str) -> Exception:
    if engine.dialect.name == "sqlite":
        error = sqlite3.OperationalError(fault)
        error.sqlite_errorcode = SQLITE[fault]
        return error
    errors = pytest.importorskip("psycopg.errors")
    made: Exception = getattr(errors, POSTGRESQL[fault])(fault)
    return made


def test_no_writing_route_is_forgotten(writable: TestClient) -> None:
    """`REQUESTS` has every route of the app with a method that writes."""
    routes = {found for found in routes_of(writable.app) if found[0] in WRITING}
    assert routes == set(REQUESTS)


@pytest.mark.parametrize("fault", STATUSES)
def test_every_writing_route_tells_the_fault(
    writable: TestClient, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """With the reason in the answer and in the log; only what passes asks to try again; afterwards it works."""
    for (method, path), prepare in REQUESTS.items():
        send = prepare(writable)
        caplog.clear()
        with failing(store_of(writable).engine, fault), caplog.at_level(logging.ERROR, "opgauge"):
            answer = send()
        assert answer.status_code == STATUSES[fault], (method, path, answer.text[:300])
        assert ("retry-after" in answer.headers) == (fault == "busy")
        assert {"full": "disk", "busy": "busy", "read-only": "reading only"}[fault] in answer.text
        assert fault in caplog.text, (method, path)
        assert send().status_code < 400, (method, path)


@pytest.mark.parametrize("guarded", [False, True])
def test_no_page_blames_itself_for_the_database(filled: str, tmp_path: Path, guarded: bool) -> None:
    """Where it does not answer, pages and the API are 503, also behind tokens and before the project is known."""
    with database(tmp_path, filled) as url:
        with Store.open(url) as store:
            reading = {"Authorization": f"Bearer {create_token(store.engine, 'reader', Scope.READ)}"}
        with TestClient(create_app(Settings(database=url), guarded=guarded), headers=reading) as client:
            with failing(store_of(client).engine, "busy", ("SELECT",)):
                for path in (*PLAIN, "/p/-/runs", "/search?q=lerp", f"{API}/runs", f"{API}/ops"):
                    answer = client.get(path)
                    assert answer.status_code == 503, path
                    assert answer.headers["x-content-type-options"] == "nosniff"
            assert client.get("/").status_code == 200
