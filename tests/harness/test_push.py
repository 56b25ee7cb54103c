"""Pushing runs: asked for first, sent compressed, in parts, tried again, and nothing twice."""

from __future__ import annotations

import gzip
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from opgauge.harness.errors import HarnessError
from opgauge.harness.report.push import LONGEST_WAIT_S, TRIES, Client, Pushed, PushError, parts, push
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment, Measurement, Result, Status, Trial
from opgauge.harness.result.submission import join, parse, read_submission
from opgauge.harness.store import Store
from tests.harness.test_submission import a_result

TOKEN = "opg_secret"  # noqa: S105  it is none


@dataclass
class Service:
    """A service that keeps what it is sent, and first answers with what `moods` say."""

    runs: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    moods: list[int | Exception] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        self.seen.append(f"{request.method} {request.url.path.removeprefix('/base/api/v1/runs/')[36:]}")
        if self.moods:
            mood = self.moods.pop(0)
            if isinstance(mood, Exception):
                raise mood
            if mood:
                return httpx.Response(mood, json={"detail": "not now"}, headers={"Retry-After": "7"})
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        run, *rest = request.url.path.removeprefix("/base/api/v1/runs/").split("/")
        return self._answer(request.method, run, rest, request)

    def _answer(self, method: str, run: str, rest: list[str], request: httpx.Request) -> httpx.Response:
        there = self.parts.setdefault(run, {})
        if method == "GET" and not rest:
            known = self.runs.get(run)
            if known is None:
                return httpx.Response(404, json={})
            return httpx.Response(200, json={"id": run, "results": len(known.results), "status": known.status})
        if method == "GET":
            items = [{"number": key, "digest": hashlib.sha256(body).hexdigest()} for key, body in there.items()]
            start = int(request.url.params["offset"])
            after = start + 2 if len(items) > start + 2 else None
            return httpx.Response(200, json={"items": items[start : start + 2], "next": after})
        if method == "DELETE":
            there.clear()
            return httpx.Response(204)
        if method == "POST":
            digests = [hashlib.sha256(there[number]).hexdigest() for number in sorted(there)]
            assert json.loads(request.content) == {"parts": len(there), "digests": digests}
            self.runs[run] = join([read_submission(parse(there[number])) for number in sorted(there)])
            return httpx.Response(201, json={"created": True})
        assert request.headers["content-encoding"] == "gzip"
        body = gzip.decompress(request.content)
        if rest:
            there[int(rest[1])] = body
        else:
            self.runs[run] = read_submission(parse(body))
        return httpx.Response(201, json={"created": True})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a run of three results."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as made:
        add(made)
        yield made


def add(store: Store, status: str | None = "finished", results: int = 3) -> str:
    """Enter a run."""
    run = store.begin_run(Environment({"cpu.model": "test"}, {"commit": "abc"}))
    store.add_ceilings(run, Ceilings("cpu", copy_gbps=10.0))
    for block in range(results):
        store.add_result(run, a_result(block=block))
    if status:
        store.finish_run(run, status)
    return run


def send(
    store: Store, service: Service, part_bytes: int = 1 << 20, waits: list[float] | None = None
) -> list[tuple[str, str]]:
    """Push every run; gives what became of each."""
    sleep: Callable[[float], None] = ([] if waits is None else waits).append
    transport = httpx.MockTransport(service)
    with Client("http://service.example/base/", TOKEN, transport=transport, sleep=sleep) as client:
        found: list[Pushed] = list(push(store, store.runs()[::-1], client, part_bytes))
    return [(one.run.id, one.outcome) for one in found]


def test_a_run_arrives_as_it_is_stored(store: Store) -> None:
    """Results with their samples, ceilings, environment; the second time nothing is sent."""
    service = Service()
    ((run, outcome),) = send(store, service)
    assert outcome == "sent"
    assert [result.measurement for result in service.runs[run].results] == [
        result.measurement for result in store.results(run, samples=True)
    ]
    assert service.runs[run].ceilings == [Ceilings("cpu", copy_gbps=10.0)]
    assert service.seen == ["GET ", "PUT "]
    service.seen.clear()
    assert send(store, service) == [(run, "stored already")]
    assert service.seen == ["GET "]


def test_a_resumed_run_is_sent_again(store: Store) -> None:
    """A run that was interrupted when it was sent is sent again once it has more results or has ended."""
    run = add(store, "interrupted", 2)
    service = Service()
    assert dict(send(store, service))[run] == "sent"
    assert dict(send(store, service))[run] == "stored already"
    store.add_result(run, a_result(block=2))
    store.finish_run(run)
    assert dict(send(store, service))[run] == "sent"
    assert len(service.runs[run].results) == 3


def test_a_large_run_is_sent_in_parts(store: Store) -> None:
    """Parts of about the wanted size; those that have come before are not sent again."""
    service = Service()
    ((run, _),) = send(store, service, part_bytes=1)
    assert service.seen == ["GET ", "GET /parts", *[f"PUT /parts/{number}" for number in range(3)], "POST /finish"]
    assert [result.block for result in service.runs[run].results] == [0, 1, 2]
    again = Service(parts={run: {0: service.parts[run][0], 1: service.parts[run][1]}})
    send(store, again, part_bytes=1)
    assert again.seen == ["GET ", "GET /parts", "PUT /parts/2", "POST /finish"]
    assert again.runs == service.runs
    waiting = Service(parts={run: dict(service.parts[run])})
    send(store, waiting, part_bytes=1)
    assert waiting.seen == ["GET ", "GET /parts", "GET /parts", "POST /finish"]  # two pages of what waits


def test_parts_of_another_split_are_dropped_first(store: Store) -> None:
    """What waits there and is not what would be sent goes before the new parts come."""
    (run,) = [one.id for one in store.runs()]
    service = Service(parts={run: {0: b"other", 7: b"more"}})
    send(store, service, part_bytes=1)
    assert "DELETE /parts" in service.seen
    assert len(service.runs[run].results) == 3


def test_what_fails_for_a_moment_is_tried_again(store: Store) -> None:
    """Lost connections, 429 and 503: waits grow, and are no shorter than the service asks for."""
    waits: list[float] = []
    service = Service(moods=[httpx.ConnectError("refused"), 503, 0, httpx.ReadTimeout("slow"), 429])
    ((_, outcome),) = send(store, service, waits=waits)
    assert outcome == "sent"
    assert len(waits) == 4
    assert waits[1] == 7.0
    assert waits[3] == 7.0
    assert all(0 < wait <= LONGEST_WAIT_S for wait in waits)


@pytest.mark.parametrize(
    ("moods", "message", "asked"),
    [
        ([401], "says 401 to GET .*not now; OPGAUGE_TOKEN is not one of its tokens", 1),
        ([0, 403], "says 403 to PUT .*not now", 2),
        ([503] * TRIES, "says 503", TRIES),
        ([httpx.ConnectError("refused")] * TRIES, "cannot be reached: refused", TRIES),
    ],
)
def test_what_stays_wrong_is_said(store: Store, moods: list[int | Exception], message: str, asked: int) -> None:
    """Refusals end the push at once, silence after some tries; the token is in no message."""
    service = Service(moods=moods)
    with pytest.raises(PushError, match=message) as caught:
        send(store, service)
    assert len(service.seen) == asked
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("code", [409, 413, 422])
def test_a_refused_run_holds_up_no_other(store: Store, code: int) -> None:
    """What the service says of it is its reason, and the next run is sent."""
    later = add(store)
    service = Service(moods=[0, code])
    transport = httpx.MockTransport(service)
    with Client("http://service.example/base/", TOKEN, transport=transport) as client:
        first, second = push(store, store.runs()[::-1], client)
    assert (first.outcome, second.outcome, second.run.id) == ("refused", "sent", later)
    assert f"says {code}" in first.reason
    assert set(service.runs) == {later}


@pytest.mark.parametrize("content", [b"<html>welcome</html>", b"[]", b'"x"', b"\xff", b""])
def test_other_services_are_told_from_ours(store: Store, content: bytes) -> None:
    """Whatever else answers 200 at the address is no service of ours, and nothing counts as sent."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    service = Client("http://service.example", TOKEN, transport=transport)
    with service as client, pytest.raises(PushError, match="is not opgauge"):
        list(push(store, store.runs(), client))


def test_another_run_is_not_taken_for_this_one(store: Store) -> None:
    """Only an answer with the run's own id says that it is there."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.method)
        return httpx.Response(200, json={"id": "other", "created": True})

    with Client("http://service.example", TOKEN, transport=httpx.MockTransport(answer)) as client:
        (found,) = push(store, store.runs(), client)
    assert (found.outcome, seen) == ("sent", ["GET", "PUT"])


def test_the_token_goes_nowhere_else(store: Store) -> None:
    """A redirection is not followed: the token would go with it."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(302, headers={"Location": "http://elsewhere.example/"})

    service = Client("http://service.example", TOKEN, transport=httpx.MockTransport(answer))
    with service as client, pytest.raises(PushError, match="says 302"):
        list(push(store, store.runs(), client))
    assert asked == ["service.example"]


@pytest.mark.parametrize("token", ["opg_ä", "opg_x\ny", "opg_\x00"])
def test_tokens_that_are_none(token: str) -> None:
    """What no header can hold is one error that does not show it."""
    with pytest.raises(PushError, match="characters that no token has") as caught:
        Client("http://service.example", token)
    assert token not in str(caught.value)


def test_unfinished_runs_stay_here(store: Store) -> None:
    """A run that is still running, or has no results, is passed over."""
    running, empty = add(store, status=None), add(store, results=0)
    service = Service()
    found = dict(send(store, service))
    assert found[running] == found[empty] == "passed over"
    assert set(service.runs) == set(found) - {running, empty}


@pytest.mark.parametrize("url", ["", "service.example", "ftp://x", "http://", "http://[::1", "file:///etc/passwd"])
def test_addresses_that_are_none(url: str) -> None:
    """Only http and https with a host."""
    with pytest.raises(HarnessError, match=r"not (an|the) address"):
        Client(url, TOKEN)


def test_a_run_falls_into_parts_of_bounded_size() -> None:
    """No part is much larger than wanted, none is empty, ceilings come once, and together they are the run."""
    results = [{"block": number, "text": "x" * 50} for number in range(20)]
    whole = {"opgauge": 1, "run": {"id": "r"}, "ceilings": [{"device": "cpu"}], "results": results}
    made = [json.loads(one) for one in parts(whole, 200)]
    assert len(made) > 5
    assert [result for part in made for result in part["results"]] == results
    assert all(part["results"] for part in made)
    assert [bool(part["ceilings"]) for part in made] == [True] + [False] * (len(made) - 1)
    assert [json.loads(one) for one in parts({**whole, "results": []}, 200)] == [{**whole, "results": []}]


def test_the_service_takes_what_is_pushed(store: Store, tmp_path: Path) -> None:
    """Client and service together: a run pushed in parts is the same run there."""
    with warnings.catch_warnings():
        # it would rather have another package than httpx, which the client of the service needs
        warnings.simplefilter("ignore")
        from fastapi.testclient import TestClient

    from opgauge.harness.scope import Scope
    from opgauge.harness.settings import Settings
    from opgauge.harness.store.tokens import create_token
    from opgauge.web.app import create_app

    app = create_app(Settings(database=f"sqlite:///{tmp_path}/there.db"))
    with TestClient(app) as there:
        secret = create_token(app.state.store.engine, "ci", Scope.SUBMIT)
        with Client("http://testserver", secret, transport=there._transport) as client:
            runs = store.runs()
            assert [one.outcome for one in push(store, runs, client, 1000)] == ["sent"]
            assert [one.outcome for one in push(store, runs, client, 1000)] == ["stored already"]
        (found,) = app.state.store.runs()
        assert found == runs[0]
        assert app.state.store.results(found.id, samples=True) == store.results(found.id, samples=True)
        assert app.state.store.ceilings(found.id) == store.ceilings(found.id)


def test_a_result_of_any_status_can_be_sent(store: Store, tmp_path: Path) -> None:
    """Failures have no measurement, and are sent all the same."""
    run = store.begin_run(Environment({}, {}))
    good = a_result()
    for number, status in enumerate(Status):
        measurement = Measurement((1.0,), "t", 0) if status is Status.OK else None
        trial = Trial(good.trial.case, f"variant-{number}", "cpu", "cpu")
        store.add_result(run, Result(trial, status, "why", measurement=measurement))
    store.finish_run(run, "interrupted")
    service = Service()
    send(store, service)
    assert [result.status for result in service.runs[run].results] == list(Status)
    assert service.runs[run].status == "interrupted"
