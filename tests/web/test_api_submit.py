"""Sending runs: whole, in parts, again, malformed, too large; no half run is ever seen."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import io
import json
import subprocess
import sys
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from sqlalchemy import Engine, func, select

from opgauge.harness.scope import Scope
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store, bulk
from opgauge.harness.store.audit import list_audit
from opgauge.harness.store.tables import PartRow, ResultRow
from opgauge.harness.store.tokens import create_token
from opgauge.web import body
from tests.databases import database
from tests.web.dataset import RUNS
from tests.web.submissions import a_run, bearer, store_of

API = "/api/v1"


def put(client: TestClient, run: dict[str, Any], headers: dict[str, str], path: str = "", code: int = 201) -> Any:
    """Send a run or a part."""
    answer = client.put(f"{API}/runs/{run['run']['id']}{path}", json=run, headers=headers)
    assert answer.status_code == code, answer.text[:300]
    return answer.json()


def count(client: TestClient, row: Any) -> int:
    """Rows of a table."""
    with store_of(client).engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(row)).scalar() or 0


def seen(client: TestClient, run: dict[str, Any]) -> bool:
    """Whether anybody can see the run."""
    found = bool(client.get(f"{API}/runs/{run['run']['id']}").status_code == 200)
    assert found == (run["run"]["id"] in [one.id for one in store_of(client).runs(limit=100)])
    return found


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
    put(writable, run, other, "/parts/1", code=403)
    address = f"{API}/runs/{run['run']['id']}"
    assert writable.post(f"{address}/finish", json={"parts": 1}, headers=other).status_code == 403
    assert writable.delete(f"{address}/parts", headers=other).status_code == 403
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
    from sqlalchemy.exc import OperationalError

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


def test_zip_bombs_are_refused(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small body that unpacks to a huge one is given up at the limit; so are nested members and lying lengths."""
    monkeypatch.setattr(body, "SENT_BYTES", 100_000)
    monkeypatch.setattr(body, "UNPACKED_BYTES", 1 << 20)
    headers = bearer(writable) | {"Content-Encoding": "gzip"}
    address = f"{API}/runs/{uuid.uuid4()}"
    bomb = gzip.compress(b" " * (50 << 20), 9)
    many = gzip.compress(b" " * 1000, 9) * 2000
    for content in (bomb, many):
        assert len(content) < 100_000
        assert writable.put(address, content=content, headers=headers).status_code == 413
    assert writable.put(address, content=b"x" * 100_001, headers=headers).status_code == 413

    def stream() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    assert writable.put(address, content=stream(), headers=headers).status_code == 413


def test_unpacking_is_exact() -> None:
    """Whatever gzip packs is unpacked; what is cut, or no gzip, is refused."""
    from fastapi import HTTPException

    for size in (0, 1, 100, body._STEP, body._STEP + 1, 3 * body._STEP):
        text = bytes(size)
        assert body.unpack(gzip.compress(text)) == text
    for wrong in (b"x", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"x", zlib.compress(b"abc"), b"\x1f\x8b"):
        with pytest.raises(HTTPException) as caught:
            body.unpack(wrong)
        assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 422),
        (b"null", 422),
        (b"[]", 422),
        (b"\xff\xfe", 422),
        (b"[" * 100_000, 422),
        (b'{"a":' * 50_000, 422),
        (b"1" * 100_000, 422),
        (b"[1e999]", 422),
        (b"[NaN]", 422),
        (b'{"opgauge":1,"run":{},"ceilings":[],"results":[]}', 422),
        (b'{"opgauge":1,"opgauge":2}', 422),
        (b'"\\ud800"', 422),
    ],
)
def test_malformed_bodies_are_refused(writable: TestClient, content: bytes, code: int) -> None:
    """Whatever is no run gets one message and no 500."""
    headers = bearer(writable)
    for path in ("", "/parts/0"):
        answer = writable.put(f"{API}/runs/{uuid.uuid4()}{path}", content=content, headers=headers)
        assert answer.status_code == code, answer.text
        assert set(answer.json()) == {"detail"}
        assert len(answer.text) < 2000
    assert len(store_of(writable).runs(limit=100)) == RUNS


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


def test_no_body_is_read_without_a_token(writable: TestClient) -> None:
    """Who has none is refused before the body is looked at, on every route that takes one."""
    address = f"{API}/runs/{uuid.uuid4()}"
    received: list[int] = []
    real = Request.stream

    async def watched(self: Request) -> AsyncIterator[bytes]:
        async for piece in real(self):
            received.append(len(piece))
            yield piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "stream", watched)
        for method, path in (("PUT", ""), ("PUT", "/parts/0"), ("POST", "/finish")):
            answer = writable.request(method, address + path, content=b"[" * 100_000)
            assert answer.status_code == 401, (method, path)
    assert received == []


def test_bodies_together_are_bounded(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being received counts until it is read: 503 beyond the bound, and nothing stays counted."""
    run, headers = a_run(), bearer(writable)
    with monkeypatch.context() as patch:
        patch.setattr(body, "HELD_BYTES", 100)
        answer = writable.put(f"{API}/runs/{run['run']['id']}", json=run, headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert body.Body.held == 0
    put(writable, run, headers)
    assert body.Body.held == 0


def test_a_run_of_many_parts_is_bounded(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are too large together are refused when they should be joined, and can be dropped."""
    run, headers = a_run(), bearer(writable)
    put(writable, run, headers, "/parts/0")
    # web.api.submit is the router
    monkeypatch.setattr(import_module("opgauge.web.api.submit"), "RUN_BYTES", 1000)
    address = f"{API}/runs/{run['run']['id']}"
    assert writable.post(f"{address}/finish", json={"parts": 1}, headers=headers).status_code == 413
    assert not seen(writable, run)
    assert writable.delete(f"{address}/parts", headers=headers).status_code == 204


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


def test_a_body_is_packed_once() -> None:
    """What a part is kept as unpacks to what was sent."""
    packed = io.BytesIO(gzip.compress(b"abc", 1)).getvalue()
    assert body.unpack(packed) == b"abc"
