"""Runs that are sent by several threads and processes at once."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store, bulk
from opgauge.harness.store.tables import ResultRow
from tests.databases import database
from tests.web.submissions import API, a_run, bearer, count, put, seen


@pytest.mark.parametrize("replaced", [False, True])
def test_parts_that_change_while_they_are_joined(
    writable: TestClient, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Another push of the run drops the parts, and sends others, after they were counted: 409, and no half run."""
    run, headers = a_run(6), bearer(writable)
    pieces = [run | {"results": run["results"][start : start + 3]} for start in (0, 3)]
    for number, piece in enumerate(pieces):
        put(writable, piece, headers, f"/parts/{number}")
    address = f"{API}/runs/{run['run']['id']}"
    real = bulk.part_body

    def late(engine: Engine, part: bulk.SubmissionPart) -> bytes:
        if part.number == 1:
            bulk.drop_parts(engine, part.run)
            if replaced:
                other = json.dumps(run | {"results": run["results"][5:]}).encode()
                bulk.add_part(engine, dataclasses.replace(part, digest="other"), gzip.compress(other))
        return real(engine, part)

    monkeypatch.setattr(bulk, "part_body", late)
    answer = writable.post(f"{address}/finish", json={"parts": 2}, headers=headers)
    assert (answer.status_code, "dropped meanwhile" in answer.text) == (409, True)
    assert not seen(writable, run)


def test_many_send_the_same_run_at_once(writable: TestClient) -> None:
    """One of them enters it, the others are told that it is there; so it is with runs that share new cases."""
    run, headers = a_run(), bearer(writable)
    before = count(writable, ResultRow)
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda _: writable.put(f"{API}/runs/{run['run']['id']}", json=run, headers=headers), range(6))
        )
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert count(writable, ResultRow) == before + 6


def test_processes_enter_runs_at_once(filled: str, tmp_path: Path) -> None:
    """Processes that enter the same runs and cases in other orders wait for each other; every run is there, whole."""
    runs = [a_run() for _ in range(4)]
    for number, run in enumerate(runs):
        for result in run["results"]:
            result["trial"]["case"]["note"] = "new"  # a case that is not there yet
        if number % 2:
            run["results"].reverse()
    code = """
import json, sys
from opgauge.harness.store import Store, bulk
from opgauge.harness.result.submission import read_submission
runs = [read_submission(run) for run in json.load(sys.stdin)]
with Store.open(sys.argv[1]) as store:
    print(sum(bulk.add_run(store.engine, run) == 'created' for run in runs))
"""
    with database(tmp_path, filled) as url:
        started = []
        for order in (runs, runs[::-1], runs[1:]):
            command = [sys.executable, "-c", code, url]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdin is not None
            process.stdin.write(json.dumps(order))
            process.stdin.close()
            started.append(process)
        entered = []
        for process in started:
            assert process.stdout is not None
            entered.append(int(process.stdout.read()))
            process.stdout.close()
            assert process.wait() == 0
        assert sum(entered) == 4
        with Store.open(url) as store:
            assert [len(store.results(run["run"]["id"])) for run in runs] == [6] * 4


def test_a_deadlock_is_tried_again(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends one of two transactions that wait for each other: it is done again, and nobody is told."""
    from sqlalchemy.exc import OperationalError

    class DeadlockError(Exception):
        sqlstate = bulk.DEADLOCK

    real, calls = bulk._enter_cases, []

    def first_fails(*arguments: Any) -> dict[str, int]:
        calls.append(1)
        if len(calls) == 1:
            raise OperationalError("INSERT", {}, DeadlockError())
        return real(*arguments)

    monkeypatch.setattr(bulk, "_enter_cases", first_fails)
    put(writable, a_run(), bearer(writable))
    assert len(calls) == 2
