"""Runs found by their ids, in memory or in the database."""

from __future__ import annotations

from threading import Event, Thread

from fastapi.testclient import TestClient
from sqlalchemy import event

from opgauge.harness.result.result import Environment
from opgauge.harness.store.deleting import delete_runs
from opgauge.web.known_runs import find_runs
from tests.web.reading_pages import reader_of
from tests.web.submissions import a_run, bearer, put, store_of


def test_a_finished_run_is_found_without_a_query(client: TestClient) -> None:
    """By its whole id only; it is what the database has."""
    reader = reader_of(client)
    run = reader.runs()[0]
    find_runs(reader, run.id)
    asked: list[str] = []
    event.listen(reader.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    assert find_runs(reader, run.id) == [run]
    assert not any("WHERE run.uuid" in one for one in asked)
    assert find_runs(reader, run.id[:-1]) == [run]
    assert any("WHERE run.uuid" in one or "LIKE" in one for one in asked)
    assert find_runs(reader, "0" * len(run.id)) == []


def test_a_run_is_found_as_it_is_now(empty_copy: TestClient) -> None:
    """Running, finished, and no longer there once it is deleted."""
    reader, store = reader_of(empty_copy), store_of(empty_copy)
    name = store.begin_run(Environment({"cpu.model": "test"}, {"commit": "c" * 40}))
    assert [run.status for run in find_runs(reader, name)] == ["running"]
    store.finish_run(name)
    assert [run.status for run in find_runs(reader, name)] == ["finished"]
    delete_runs(store.engine, [name])
    assert find_runs(reader, name) == []


def test_pages_of_a_project_find_its_runs_only(empty_copy: TestClient) -> None:
    """Also those in memory."""
    sent = a_run(3)
    put(empty_copy, sent, bearer(empty_copy))
    reader, name = reader_of(empty_copy), sent["run"]["id"]
    assert [run.id for run in find_runs(reader, name)] == [name]
    assert find_runs(reader.of_project("another"), name) == []


def test_what_two_pages_want_of_a_run_is_made_once(client: TestClient) -> None:
    """The second waits for the first."""
    reader = reader_of(client)
    run, begun, going = reader.runs()[0], Event(), Event()
    made: list[int] = []
    found: list[int] = []

    def make() -> int:
        made.append(1)
        begun.set()
        going.wait(30)
        return 7

    def look() -> None:
        found.append(reader.cached_for_run("a test", run, make))

    first, second = Thread(target=look), Thread(target=look)
    first.start()
    begun.wait(30)
    second.start()
    second.join(0.1)
    going.set()
    first.join(30)
    second.join(30)
    assert found == [7, 7]
    assert len(made) == 1
