"""Runs in parts, where others send the same run at the same time, divided otherwise or with other content."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from opgauge.harness.report.push import Client, parts, push
from opgauge.harness.result.submission import read_submission
from opgauge.harness.store import Store, bulk
from opgauge.harness.store.tables import PartRow
from tests.databases import database
from tests.web.submissions import API, a_run, bearer, count, put, seen


def _split(run: dict[str, Any], size: int) -> list[dict[str, Any]]:
    return [json.loads(body) for body in parts(run, size)]


def _digest(part: dict[str, Any]) -> str:
    return hashlib.sha256(httpx.Request("PUT", "http://x", json=part).content).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["run"]["environment"]["soft"].update(branch="other"),
        lambda run: run["run"]["environment"]["hard"].update({"cpu.model": "other"}),
        lambda run: run["run"].update(command="other"),
        lambda run: run["results"][0]["measurement"]["samples_ns"].reverse(),
        lambda run: run["results"][1].update(reason="other"),
        lambda run: run["results"][1].update(block=9),
    ],
)
def test_a_part_of_a_stored_run_with_other_content_is_refused(
    writable: TestClient, change: Callable[[dict[str, Any]], None]
) -> None:
    """Whatever differs; the same part is there already, and none is kept."""
    run, headers = a_run(), bearer(writable)
    put(writable, run, headers)
    other = copy.deepcopy(run)
    change(other)
    put(writable, other, headers, "/parts/0", code=409)
    put(writable, run, headers, "/parts/0", code=200)
    assert count(writable, PartRow) == 0


def test_only_the_parts_that_were_sent_are_joined(writable: TestClient) -> None:
    """With other parts of the same numbers a run would lack results, and nobody would know."""
    run, headers = a_run(20), bearer(writable)
    few, many = _split(run, 7_000), _split(run, 5_000)
    assert 1 < len(few) < len(many)
    for number, part in enumerate((many[0], *few[1:])):
        put(writable, part, headers, f"/parts/{number}")
    finish = f"{API}/runs/{run['run']['id']}/finish"
    wanted = {"parts": len(few), "digests": [_digest(part) for part in few]}
    answer = writable.post(finish, json=wanted, headers=headers)
    assert (answer.status_code, "another client" in answer.text) == (409, True)
    assert not seen(writable, run)
    writable.delete(f"{API}/runs/{run['run']['id']}/parts", headers=headers)
    for number, part in enumerate(few):
        put(writable, part, headers, f"/parts/{number}")
    assert writable.post(finish, json=wanted, headers=headers).json()["results"] == len(run["results"])
    wrongs: list[dict[str, Any]] = [{"parts": 1, "digests": ["x", "y"]}, {"parts": 1, "digests": "x"}, {"digests": []}]
    for wrong in wrongs:
        assert writable.post(finish, json=wrong, headers=headers).status_code == 422


def test_a_part_that_comes_after_its_run_is_not_kept(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client completes the run between the first look and the transaction: there already, nothing waits."""
    run, headers = a_run(), bearer(writable)
    put(writable, run, headers)
    monkeypatch.setattr(bulk, "accepts_parts", lambda *_: True)
    assert put(writable, run, headers, "/parts/0", code=200)["created"] is False
    assert count(writable, PartRow) == 0


def test_a_run_that_is_completed_meanwhile_is_there_already(
    writable: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts that were listed are gone as another client has completed the run: no conflict, no second run."""
    run, headers = a_run(), bearer(writable)
    put(writable, run, headers, "/parts/0")
    finish = f"{API}/runs/{run['run']['id']}/finish"
    real, calls = bulk.part_body, []

    def late(*given: Any) -> bytes:
        calls.append(given)
        if len(calls) == 1:
            assert writable.post(finish, json={"parts": 1}, headers=headers).status_code == 201
        return real(*given)

    monkeypatch.setattr(bulk, "part_body", late)
    answer = writable.post(finish, json={"parts": 1}, headers=headers)
    assert (answer.status_code, answer.json()["created"]) == (200, False)
    assert seen(writable, run)


@pytest.mark.parametrize("same_token", [True, False])
def test_a_push_beside_another_one_arrives_whole(writable: TestClient, tmp_path: Path, same_token: bool) -> None:
    """The other client, with other parts, takes its turn after each request of this one, also with another token."""
    run, own = a_run(20), bearer(writable)
    other = own if same_token else bearer(writable)
    rest = iter(enumerate(_split(run, 5_000)))

    def answer(request: httpx.Request) -> httpx.Response:
        found = writable.request(
            request.method, request.url.raw_path.decode(), content=request.content, headers=request.headers
        )
        number, part = next(rest, (0, None))
        if part is not None and request.method == "PUT":
            writable.put(f"{API}/runs/{run['run']['id']}/parts/{number}", json=part, headers=other)
        return httpx.Response(found.status_code, content=found.content, headers={"content-type": "application/json"})

    transport = httpx.MockTransport(answer)
    with database(tmp_path) as url, Store.open(url) as store:
        bulk.add_run(store.engine, read_submission(run))
        secret = own["Authorization"].removeprefix("Bearer ")
        with Client("http://testserver", secret, transport=transport, sleep=lambda _: None) as client:
            (found,) = push(store, store.runs(), client, 7_000)
    assert (found.outcome, found.reason) == ("sent", "")
    assert writable.get(f"{API}/runs/{run['run']['id']}").json()["results"] == len(run["results"])
