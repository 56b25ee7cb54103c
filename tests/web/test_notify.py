"""Webhooks: each event once, signed, repeated until it arrives, in the form that was chosen."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.store import Store
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
from opgauge.web.cache import Cache
from opgauge.web.notify import SIGNATURE, queue_events, send_due
from opgauge.web.reader import Reader
from tests.databases import database
from tests.web.dataset import START, fill

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

    def client(self) -> httpx.Client:
        """A client that reaches it."""
        return httpx.Client(transport=httpx.MockTransport(self))

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
    assert send_due(store.engine, receiver.client(), "https://opgauge.example") == 1
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
        send_due(store.engine, receiver.client())
    assert len(receiver.seen) == 1


def test_what_fails_is_tried_again_and_given_up(store: Store) -> None:
    """Pauses double; after the last try the message waits no more."""
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    queue_event(store.engine, hook, "regression 1", {"text": "slow"})
    receiver = Receiver(*[500] * 20)
    assert send_due(store.engine, receiver.client()) == 1
    assert send_due(store.engine, receiver.client()) == 0
    now = datetime.now(UTC)
    for _ in range(TRIES - 1):
        now += timedelta(days=1)
        delivery = take_due(store.engine, now)
        assert delivery is not None
        assert take_due(store.engine, now) is None, "another process would send it too"
        finish_delivery(store.engine, delivery, "answered 500", now)
    assert take_due(store.engine, now + timedelta(days=9)) is None


def test_slack_sees_no_markup(store: Store) -> None:
    """Names of cases are text in its form, whatever they contain."""
    add_webhook(store.engine, "chat", URL, project="", form=Form.SLACK, events=EVERY)
    (hook,) = list_webhooks(store.engine)
    queue_event(store.engine, hook, "1", {"text": "<!channel> & <b>", "path": "/runs/1"})
    receiver = Receiver()
    send_due(store.engine, receiver.client(), "https://o.example")
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
    send_due(store.engine, receiver.client())
    found = [json.loads(request.content) for request in receiver.seen]
    assert sorted(one["event"] for one in found) == ["broken", "silent", "silent"]


def test_links_lead_to_the_pages_of_the_project(store: Store) -> None:
    """A message links the regression, the comparison and the case below its project, and commits on the forge."""
    fill(store)
    save_project(store.engine, ProjectSettings("", forge="https://forge.example/commit/{sha}"))
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=frozenset({Event.BROKEN}))
    queue_events(Reader(store, Cache(lambda: 0)), START + timedelta(days=23))
    receiver = Receiver()
    send_due(store.engine, receiver.client(), "https://o.example")
    (found,) = [json.loads(request.content) for request in receiver.seen]
    assert found["link"].startswith("https://o.example/p/-/regressions/")
    assert found["compare_link"].startswith("https://o.example/p/-/compare?base=")
    assert found["case_link"].startswith("https://o.example/p/-/cases/")
    assert found["bad_commit_link"] == f"https://forge.example/commit/{found['bad_commit']}"
    assert not [key for key in found if key.endswith("path")]


def test_webhooks_are_checked_and_removed(store: Store) -> None:
    """A bad address, a bad or used name are refused; a removed webhook is gone with what waits for it."""
    for name, url in (("chat", "file:///etc/passwd"), ("chat", "https://"), ("a b", URL)):
        with pytest.raises(StoreError):
            add_webhook(store.engine, name, url, project="", form=Form.JSON, events=EVERY)
    add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    with pytest.raises(StoreError, match="exists"):
        add_webhook(store.engine, "chat", URL, project="", form=Form.JSON, events=EVERY)
    queue_event(store.engine, list_webhooks(store.engine)[0], "1", {"text": "x"})
    remove_webhook(store.engine, "chat")
    assert take_due(store.engine) is None
    with pytest.raises(NothingError):
        remove_webhook(store.engine, "chat")
