"""Sending runs: whole, in parts, again, malformed, too large; no half run is ever seen."""

from __future__ import annotations

import copy
import gzip
import io
import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from opgauge.harness.scope import Scope
from opgauge.harness.store import bulk
from opgauge.harness.store.audit import list_audit
from opgauge.harness.store.tables import PartRow, ResultRow
from opgauge.harness.store.tokens import create_token
from opgauge.web import body
from tests.web.submissions import API, a_run, bearer, count, put, seen, store_of


def test_a_run_is_sent_once(writable: TestClient) -> None:
    """201 with its results the first time, 200 and no change after that."""
    run, headers = a_run(), bearer(writable)
    before = count(writable, ResultRow)
    assert put(writable, run, headers) == {"id": run["run"]["id"], "created": True, "results": 6}
    assert put(writable, run, headers, code=200)["created"] is False
    assert count(writable, ResultRow) == before + 6
    found = writable.get(f"{API}/runs/{run['run']['id']}").json()
    assert (found["results"], found["status"], found["started"]) == (6, "finished", run["run"]["started"])
    assert found["ceilings"][0]["copy_gbps"] == 10.0
    assert writable.get(f"{API}/runs").json()["items"][0]["id"] == run["run"]["id"]


def test_a_run_is_sent_compressed(writable: TestClient) -> None:
    """Gzip bodies are taken, those of several members too."""
    run, headers = a_run(), bearer(writable) | {"Content-Encoding": "gzip"}
    text = json.dumps(run).encode()
    packed = gzip.compress(text[:100]) + gzip.compress(text[100:])
    answer = writable.put(f"{API}/runs/{run['run']['id']}", content=packed, headers=headers)
    assert answer.status_code == 201, answer.text


def test_a_run_is_sent_in_parts(writable: TestClient) -> None:
    """Parts may come in any order and twice; the run is seen when all have come, and in the right order."""
    run, headers = a_run(6), bearer(writable)
    pieces = [run | {"results": run["results"][start : start + 2]} for start in (0, 2, 4)]
    before = count(writable, ResultRow)
    for number in (2, 0):
        assert put(writable, pieces[number], headers, f"/parts/{number}")["created"]
    assert not put(writable, pieces[0], headers, "/parts/0", code=200)["created"]
    assert put(writable, pieces[1], headers, "/parts/0", code=409)
    address = f"{API}/runs/{run['run']['id']}"
    answer = writable.post(f"{address}/finish", json={"parts": 3}, headers=headers)
    assert (answer.status_code, "missing: 1" in answer.text) == (409, True)
    assert not seen(writable, run)
    assert count(writable, ResultRow) == before
    there = writable.get(f"{address}/parts", headers=headers).json()["items"]
    assert [part["number"] for part in there] == [0, 2]
    put(writable, pieces[1], headers, "/parts/1")
    answer = writable.post(f"{address}/finish", json={"parts": 3}, headers=headers)
    assert (answer.status_code, answer.json()["results"]) == (201, 6)
    assert seen(writable, run)
    assert count(writable, PartRow) == 0
    results = writable.get(f"{address}/results").json()["items"][::-1]
    assert [one["implementation"] for one in results] == [one["trial"]["implementation"] for one in run["results"]]
    answer = writable.post(f"{address}/finish", json={"parts": 3}, headers=headers)
    assert (answer.status_code, answer.json()["created"]) == (200, False)


def test_parts_belong_to_who_sent_them(writable: TestClient) -> None:
    """Another token neither adds to a run on its way in, nor ends or drops it; an admin may."""
    run = a_run()
    owner, other, admin = bearer(writable), bearer(writable), bearer(writable, Scope.ADMIN)
    put(writable, run, owner, "/parts/0")
    put(writable, run, other, "/parts/1", code=409)
    address = f"{API}/runs/{run['run']['id']}"
    assert writable.post(f"{address}/finish", json={"parts": 1}, headers=other).status_code == 409
    assert writable.delete(f"{address}/parts", headers=other).status_code == 409
    assert writable.delete(f"{address}/parts", headers=admin).status_code == 204
    assert writable.get(f"{address}/parts", headers=owner).json()["items"] == []


def test_a_body_that_breaks_off_leaves_nothing(writable: TestClient) -> None:
    """Half a run, plain or gzip, is refused and nowhere to be seen."""
    run, headers = a_run(), bearer(writable)
    text = json.dumps(run).encode()
    address = f"{API}/runs/{run['run']['id']}"
    before = count(writable, ResultRow)
    assert writable.put(address, content=text[: len(text) // 2], headers=headers).status_code == 422
    packed = gzip.compress(text)
    zipped = headers | {"Content-Encoding": "gzip"}
    assert writable.put(address, content=packed[: len(packed) // 2], headers=zipped).status_code == 400
    assert not seen(writable, run)
    assert count(writable, ResultRow) == before


def test_a_failing_database_leaves_nothing(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing ends in the middle, no half run is visible, and sending it again works."""
    run, headers = a_run(), bearer(writable)

    def fail(*_: object) -> None:
        raise OperationalError("INSERT", {}, Exception("disk I/O error"))

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "packed_samples", fail)
        answer = writable.put(f"{API}/runs/{run['run']['id']}", json=run, headers=headers)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert not seen(writable, run)
    put(writable, run, headers)
    assert seen(writable, run)


class FullDiskError(Exception):
    """PostgreSQL's error of a full disk."""

    sqlstate = "53100"


def test_a_full_disk_is_told_and_leaves_nothing(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """To try again at once would not help: 507, by the codes of both databases."""
    run, headers = a_run(), bearer(writable)
    address = f"{API}/runs/{run['run']['id']}"
    engine = store_of(writable).engine
    if engine.dialect.name == "sqlite":

        def fill(connection: Any, *_: object) -> None:
            connection.execute("PRAGMA max_page_count=1")  # as many as there are

        event.listen(engine, "checkout", fill)
        full = writable.put(address, json=a_run(400) | {"run": run["run"]}, headers=headers)
        event.remove(engine, "checkout", fill)
        engine.dispose()
        assert (full.status_code, full.json()["detail"].partition(":")[0]) == (507, "the disk of the database is full")
        assert not seen(writable, run)

    def fail(*_: object) -> None:
        raise OperationalError("INSERT", {}, FullDiskError())

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "packed_samples", fail)
        assert writable.put(address, json=run, headers=headers).status_code == 507
    assert not seen(writable, run)
    put(writable, run, headers)


def test_other_wrong_requests(writable: TestClient) -> None:
    """Encodings, addresses and numbers that are not allowed have a code of their own."""
    run, headers = a_run(), bearer(writable)
    address = f"{API}/runs/{run['run']['id']}"
    assert writable.put(address, json=run, headers=headers | {"Content-Encoding": "br"}).status_code == 415
    assert writable.put(f"{API}/runs/{uuid.uuid4()}", json=run, headers=headers).status_code == 422
    assert writable.put(f"{API}/runs/{run['run']['id'].upper()}", json=run, headers=headers).status_code == 422
    assert writable.put(f"{address}/parts/1000", json=run, headers=headers).status_code == 422
    assert writable.post(f"{address}/finish", json={"parts": 0}, headers=headers).status_code == 422
    assert writable.post(f"{address}/finish", json={"parts": 1, "x": 1}, headers=headers).status_code == 422
    assert writable.post(f"{address}/finish", json={"parts": True}, headers=headers).status_code == 422
    assert writable.post(f"{address}/finish", content=b"[" * 900, headers=headers).status_code == 422
    assert writable.post(f"{address}/finish", content=b"[" * 100_000, headers=headers).status_code == 413
    assert writable.put(address, json=run, headers=headers | {"Content-Length": "9" * 30}).status_code in {400, 201}


def test_hostile_names_come_back_as_they_are(writable: TestClient) -> None:
    """Names and notes are kept to the letter in JSON, and shown harmlessly in pictures."""
    run, headers = a_run(1), bearer(writable)
    name = '=HYPERLINK("http://x")</text><script>alert(1)</script>\u202e'
    run["results"][0]["trial"]["case"]["name"] = name
    put(writable, run, headers)
    (found,) = writable.get(f"{API}/runs/{run['run']['id']}/results").json()["items"]
    assert found["case"] == name
    picture = writable.get(f"{API}/cases/{found['case_id']}/badge.svg").text
    assert "<script" not in picture
    assert "\u202e" not in picture


def test_a_late_part_of_a_whole_run_is_not_kept(writable: TestClient) -> None:
    """A part that arrives after the run is complete leaves nothing behind."""
    run, headers = a_run(), bearer(writable)
    put(writable, run, headers)
    assert put(writable, run, headers, "/parts/0", code=200)["created"] is False
    assert count(writable, PartRow) == 0


def test_an_interrupted_run_is_continued(writable: TestClient) -> None:
    """A run that was interrupted, sent, resumed and sent again has all of its results; once finished it is fixed."""
    whole, headers = a_run(6), bearer(writable)
    part = copy.deepcopy(whole)
    part["run"]["status"], part["results"] = "interrupted", part["results"][:4]
    assert put(writable, part, headers)["created"]
    assert put(writable, part, headers, code=200)["created"] is False
    assert put(writable, whole, headers) == {"id": whole["run"]["id"], "created": True, "results": 6}
    found = writable.get(f"{API}/runs/{whole['run']['id']}").json()
    assert (found["results"], found["status"]) == (6, "finished")
    put(writable, part, headers, code=409)
    assert writable.get(f"{API}/runs/{whole['run']['id']}").json()["results"] == 6


def test_a_continuation_is_sent_in_parts_too(writable: TestClient) -> None:
    """Parts of a run that is stored as interrupted are taken, and replace it when all have arrived."""
    whole, headers = a_run(6), bearer(writable)
    first = copy.deepcopy(whole)
    first["run"]["status"], first["results"] = "interrupted", first["results"][:2]
    put(writable, first, headers)
    for number, start in enumerate((0, 3)):
        put(writable, whole | {"results": whole["results"][start : start + 3]}, headers, f"/parts/{number}")
    address = f"{API}/runs/{whole['run']['id']}"
    assert writable.post(f"{address}/finish", json={"parts": 2}, headers=headers).json()["results"] == 6
    assert writable.get(address).json()["results"] == 6


def test_no_continuation_loses_results_or_changes_the_place(writable: TestClient) -> None:
    """Fewer results, other hardware, another start or another token: 409, and the stored run stays."""
    stored, headers = a_run(6), bearer(writable)
    stored["run"]["status"] = "interrupted"
    put(writable, stored, headers)
    fewer, moved, later = (copy.deepcopy(stored) for _ in range(3))
    fewer["results"] = fewer["results"][:3]
    moved["run"]["environment"]["hard"]["cpu.model"] = "another"
    later["run"]["started"] = "2026-02-01T10:00:00+00:00"
    for other in (fewer, moved, later):
        other["run"]["status"] = "finished"
        put(writable, other, headers, code=409)
    more = copy.deepcopy(stored)
    more["run"]["status"] = "finished"
    put(writable, more, bearer(writable), code=409)
    assert writable.get(f"{API}/runs/{stored['run']['id']}").json()["status"] == "interrupted"
    put(writable, more, bearer(writable, Scope.ADMIN))


def test_other_content_under_a_known_id_is_refused(writable: TestClient) -> None:
    """One number changed is another run: 409 whether it is sent whole or as a part."""
    run, headers = a_run(), bearer(writable)
    put(writable, run, headers)
    other = copy.deepcopy(run)
    other["results"][0]["measurement"]["samples_ns"][0] += 1.0
    put(writable, other, headers, code=409)
    other["results"][0]["measurement"]["samples_ns"] = [5.0, 5.0, 5.0]
    put(writable, other, headers, "/parts/0", code=409)
    shuffled = {key: run[key] for key in reversed(run)}
    assert put(writable, shuffled, headers, code=200)["created"] is False


def test_parts_of_another_environment_are_refused(writable: TestClient) -> None:
    """Every part has the same head: one that was measured elsewhere is named, and nothing is stored."""
    run, headers = a_run(4), bearer(writable)
    other = copy.deepcopy(run) | {"results": run["results"][2:]}
    other["run"]["environment"]["hard"]["cpu.model"] = "another"
    put(writable, run | {"results": run["results"][:2]}, headers, "/parts/0")
    put(writable, other, headers, "/parts/1")
    answer = writable.post(f"{API}/runs/{run['run']['id']}/finish", json={"parts": 2}, headers=headers)
    assert (answer.status_code, "run.environment" in answer.text) == (422, True)
    assert not seen(writable, run)


def test_submissions_and_refusals_are_audited(writable: TestClient) -> None:
    """The log says which token sent which run, and which was refused for its scope."""
    run = a_run()
    put(writable, run, bearer(writable, name="gpu-1"))
    put(writable, run, bearer(writable, Scope.ACK, name="nosy"), code=403)
    found = [(one.actor, one.action, one.subject) for one in list_audit(store_of(writable).engine)]
    assert found[:2] == [
        ("nosy", "refuse", f"{API}/runs/{run['run']['id']}"),
        ("gpu-1", "submit", f"run {run['run']['id']}"),
    ]
    assert all(one.request for one in list_audit(store_of(writable).engine))


def test_a_token_of_a_project_submits_to_that_project_only(writable: TestClient) -> None:
    """A run of another project, or of none, is refused with 403."""
    secret = create_token(store_of(writable).engine, "theirs", Scope.SUBMIT, project="kernels")
    headers = {"Authorization": f"Bearer {secret}"}
    put(writable, a_run(), headers, code=403)
    run = a_run()
    run["run"]["environment"]["soft"]["project"] = "kernels"
    put(writable, run, headers)


def test_a_body_is_packed_once() -> None:
    """What a part is kept as unpacks to what was sent."""
    packed = io.BytesIO(gzip.compress(b"abc", 1)).getvalue()
    assert body.unpack(packed) == b"abc"
