"""Webhooks: each event once, signed, repeated until it arrives, in the form that was chosen."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from opgauge.harness.cli import app
from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import Submission
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.projects import ProjectSettings, save_project
from opgauge.harness.store.webhooks import (
    TRIES,
    Event,
    Form,
    add_webhook,
    finish_delivery,
    list_webhooks,
    queue_event,
    remove_webhook,
    take_due,
)
from opgauge.web.app import create_app
from opgauge.web.cache import Cache
from opgauge.web.delivery import SIGNATURE, Sender
from opgauge.web.notify import queue_events
from opgauge.web.reader import Reader
from tests.databases import database
from tests.web import dataset
from tests.web.dataset import HARD, RUNS, START, fill, results
from tests.web.histories import add_history

URL = "https://hooks.example/x"
EVERY = frozenset(Event)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with database(tmp_path) as url, Store.open(url) as made:
        yield made


class Receiver:
    """What receives messages; answers `codes` in turn, then 200."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.seen: list[httpx.Request] = []

    def take(self, store: Store, base: str = "") -> int:
        """Have what is due sent to it."""
        with ThreadPoolExecutor(1) as thread:  # browser tests leave a loop running in this one
            return thread.submit(self._take, store, base).result()

    def _take(self, store: Store, base: str) -> int:
        with Sender(store.engine, base, transport=httpx.MockTransport(self)) as sender:
            return sender.send_due()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        self.seen.append(request)
        return httpx.Response(self.codes.pop(0) if self.codes else 200)


def test_messages_are_signed(store: Store) -> None:
    """The signature is an HMAC of timestamp and body with the secret that was shown once."""
    secret = add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    assert queue_event(store.engine, hook, "regression 1", {"text": "slow", "path": "/regressions/1"})
    receiver = Receiver()
    assert receiver.take(store, "https://opgauge.example") == 1
    (request,) = receiver.seen
    stamped = request.headers["X-Opgauge-Timestamp"].encode() + b"." + request.content
    assert request.headers[SIGNATURE] == "sha256=" + hmac.new(secret.encode(), stamped, hashlib.sha256).hexdigest()
    assert json.loads(request.content) == {"text": "slow", "link": "https://opgauge.example/regressions/1"}


def test_an_event_is_sent_once(store: Store) -> None:
    """Queued again, before or after it was sent, it is not sent again."""
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    receiver = Receiver()
    for _ in range(3):
        queue_event(store.engine, hook, "regression 1", {"text": "slow"})
        receiver.take(store)
    assert len(receiver.seen) == 1


def test_what_fails_is_tried_again_and_given_up(store: Store) -> None:
    """Pauses double; after the last try the message waits no more."""
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    queue_event(store.engine, hook, "regression 1", {"text": "slow"})
    receiver = Receiver(*[500] * 20)
    assert receiver.take(store) == 1
    assert receiver.take(store) == 0
    now = datetime.now(UTC)
    for _ in range(TRIES - 1):
        now += timedelta(days=1)
        delivery = take_due(store.engine, hook, now)
        assert delivery is not None
        assert take_due(store.engine, hook, now) is None, "another process would send it too"
        finish_delivery(store.engine, delivery, "answered 500", now)
    assert take_due(store.engine, hook, now + timedelta(days=9)) is None


def test_slack_sees_no_markup(store: Store) -> None:
    """Names of cases are text in its form, whatever they contain."""
    add_webhook(store.engine, "chat", URL, project="", form=Form.SLACK, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    queue_event(store.engine, hook, "1", {"text": "<!channel> & <b>", "path": "/runs/1"})
    receiver = Receiver()
    receiver.take(store, "https://o.example")
    expected = "&lt;!channel&gt; &amp; &lt;b&gt; (<https://o.example/runs/1|details>)"
    assert json.loads(receiver.seen[0].content) == {"text": expected}


def test_events_of_a_database(store: Store) -> None:
    """Open regressions of the last week, a device that is silent for two days; another project's webhook gets none."""
    fill(store)
    for name, project in (("ours", ""), ("theirs", "other")):
        add_webhook(store.engine, name, URL, project=project, form=Form.JSON, events=EVERY)
    reader = Reader(store, Cache(lambda: 0))
    now = START + timedelta(days=21 + 2)
    assert queue_events(reader, now) == 3
    assert queue_events(reader, now) == 0
    receiver = Receiver()
    receiver.take(store)
    found = [json.loads(request.content) for request in receiver.seen]
    assert sorted(one["event"] for one in found) == ["broken", "silent", "silent"]


@pytest.mark.parametrize("kinds", [EVERY, EVERY - {Event.SUSPECTED}])
@pytest.mark.parametrize("seed", [1, 4])
def test_a_regression_is_announced_once_while_runs_come(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int, kinds: frozenset[Event]
) -> None:
    """Suspected, confirmed, and its beginning moved by a run: one message, whose link leads to the regression."""
    step = 1.3 if seed == 4 else 1.03
    monkeypatch.setattr(dataset, "_factor", lambda shape, name, *_: step if _[-1] >= 14 and name == "optimized" else 1)
    noise = np.random.default_rng(seed)
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=kinds)
    receiver = Receiver()
    for number in range(RUNS - 1):  # the last one breaks a case
        found = tuple(one for one in results(number, noise) if one.trial.case.name.startswith("rows-"))
        when = START + timedelta(hours=number)
        about = Environment(HARD, {"commit": f"{number + 1:02x}" * 20, "branch": "main"})
        run = Submission(str(uuid4()), when, when, "finished", "", about, (), found)
        add_run(store.engine, run)
        queue_events(Reader(store, Cache(lambda: 0)), when)
        receiver.take(store)
    told = [json.loads(request.content) for request in receiver.seen]
    series = [(one["case"], one["device"], one["implementation"]) for one in told]
    assert len(series) == len(set(series)) == 4
    with TestClient(create_app(Settings(database=store.engine.url.render_as_string(hide_password=False)))) as client:
        for one in told:
            page = client.get(one["path"])
            assert page.status_code == 200
            assert one["case"] in page.text


def test_a_regression_that_weeks_confirm_is_announced(store: Store) -> None:
    """Three runs confirm it: where there is one in three days, its first is older than what is announced."""
    kinds = frozenset({Event.SLOWER})
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=kinds)
    counts = []
    for number in range(14):
        when = START + timedelta(days=4 * number)
        add_history(store, {"x": [100 if number < 10 else 130]}, first=when)
        counts.append(queue_events(Reader(store, Cache(lambda: 0)), when))
    assert sum(counts) == 1
    add_webhook(store.engine, "new", URL, project="", form=Form.JSON, events=kinds)
    assert queue_events(Reader(store, Cache(lambda: 0)), when + timedelta(days=8)) == 0


def test_links_lead_to_the_pages_of_the_project(store: Store) -> None:
    """A message links the regression, the comparison and the case below its project, and commits on the forge."""
    fill(store)
    save_project(store.engine, ProjectSettings("", forge="https://forge.example/commit/{sha}"))
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=frozenset({Event.BROKEN}))
    queue_events(Reader(store, Cache(lambda: 0)), START + timedelta(days=23))
    receiver = Receiver()
    receiver.take(store, "https://o.example")
    (found,) = [json.loads(request.content) for request in receiver.seen]
    assert found["link"].startswith("https://o.example/p/-/regressions/")
    assert found["compare_link"].startswith("https://o.example/p/-/compare?base=")
    assert found["case_link"].startswith("https://o.example/p/-/cases/")
    assert found["bad_commit_link"] == f"https://forge.example/commit/{found['bad_commit']}"
    assert not [key for key in found if key.endswith("path")]


def test_a_webhook_is_of_a_project_that_there_is(store: Store) -> None:
    """By default the only one; of several it has to be named, and one without runs is told: it would stay silent."""
    url = store.engine.url.render_as_string(hide_password=False)

    def add(name: str, *options: str) -> tuple[int, str]:
        answer = CliRunner().invoke(app, ["webhook", "add", name, URL, "--db", url, *options])
        return answer.exit_code, answer.output + str(answer.exception or "")

    add_history(store, {"x": [100]}, project="alpha")
    assert add("one")[0] == 0
    add_history(store, {"x": [100]}, project="beta")
    code, text = add("two")
    assert code != 0
    assert "--project alpha or beta" in text
    assert add("two", "--project", "beta")[0] == 0
    code, text = add("three", "--project", "gamma")
    assert code == 0
    assert "project 'gamma' has no runs; there are: alpha, beta" in text
    projects = {hook.name: hook.project for hook in list_webhooks(store.engine)}
    assert projects == {"one": "alpha", "two": "beta", "three": "gamma"}


def test_webhooks_are_checked_and_removed(store: Store) -> None:
    """A bad address, a bad or used name are refused; a removed webhook is gone with what waits for it."""
    wrong = ("file:///etc/passwd", "https://", "https://x:99999/", "https://x:a/", "https://[x/", "https://a b/", "x")
    for name, url in (*(("chat", one) for one in wrong), ("a b", URL)):
        with pytest.raises(StoreError):
            add_webhook(store.engine, name, url, project="", form=Form.JSON, events=EVERY)
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    with pytest.raises(StoreError, match="exists"):
        add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    queue_event(store.engine, hook, "1", {"text": "x"})
    remove_webhook(store.engine, "chat")
    assert take_due(store.engine, hook) is None
    with pytest.raises(NothingError):
        remove_webhook(store.engine, "chat")
