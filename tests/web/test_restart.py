"""A service that ends while messages wait for webhooks, and those that start after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Event as Signal
from threading import Thread
from time import monotonic, sleep

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.tables import DeliveryRow
from opgauge.harness.store.webhooks import LEASE, Event, Form, add_webhook, list_webhooks, queue_event
from opgauge.web import app as service
from opgauge.web import delivery, notify
from opgauge.web.reader import Reader
from tests.databases import database

MESSAGES = 4
PATIENCE_S = 60.0
"""Longest wait for a message; one that comes takes a fraction of a second."""


class Receiver:
    """A webhook's receiver on this machine; it answers while `answers` is set."""

    def __init__(self) -> None:
        self.answers = Signal()
        self._seen: Queue[int] = Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                receiver._seen.put(int(self.headers["X-Opgauge-Delivery"]))
                receiver.answers.wait()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    def next(self) -> int:
        """Number of the next message."""
        return self._seen.get(timeout=PATIENCE_S)

    def is_done(self) -> bool:
        """Whether no further message has come."""
        try:
            self._seen.get_nowait()
        except Empty:
            return True
        return False


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that does not answer yet."""
    made = Receiver()
    thread = Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.answers.set()
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def url(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database with messages that wait; services look for them all the time."""
    monkeypatch.setattr(service, "NOTIFY_S", 0.02)
    with database(tmp_path) as found:
        with Store.open(found) as store:
            address = f"http://127.0.0.1:{receiver.server.server_port}/"
            add_webhook(store.engine, "chat", address, project="", form=Form.JSON, events=frozenset(Event))
            (hook,) = list_webhooks(store.engine)
            for number in range(MESSAGES):
                queue_event(store.engine, hook, f"regression {number}", {"text": "slow"})
        yield found


@contextmanager
def serving(url: str, processes: int = 1) -> Iterator[None]:
    """So many services over one database, as the processes of one are."""
    with ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(TestClient(service.create_app(Settings(database=url), lag_s=0.05)))
        yield


def sent(url: str) -> list[tuple[int, str]]:
    """Number and state of each message."""
    with Store.open(url) as store, store.engine.connect() as connection:
        found = connection.execute(select(DeliveryRow.id, DeliveryRow.state).order_by(DeliveryRow.id))
        return [(one.id, one.state) for one in found]


def until_sent(url: str, count: int) -> None:
    """Wait until so many messages are recorded as sent."""
    ends = monotonic() + PATIENCE_S
    while sum(state == "sent" for _, state in sent(url)) < count:
        assert monotonic() < ends
        sleep(0.02)


def test_messages_that_wait_are_sent_once_after_a_restart(
    url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that were not begun come once from two processes; the one under way again, by its number, after its lease."""
    monkeypatch.setattr(delivery, "GRACE_S", 0.0)
    with serving(url):
        begun = receiver.next()
    assert {state for _, state in sent(url)} == {"waiting"}
    receiver.answers.set()
    with serving(url, processes=2):
        until_sent(url, MESSAGES - 1)
        rest = [receiver.next() for _ in range(MESSAGES - 1)]
        assert sorted([begun, *rest]) == [number for number, _ in sent(url)]
        assert receiver.is_done()
        with Store.open(url) as store, store.engine.begin() as connection:
            row = DeliveryRow
            leased = update(row).where(row.id == begun, row.due > datetime.now(UTC)).values(due=row.created)
            assert connection.execute(leased).rowcount == 1
        until_sent(url, MESSAGES)
        assert receiver.next() == begun
    assert receiver.is_done()
    assert LEASE.total_seconds() > delivery.TIMEOUT_S


def test_a_message_that_is_taken_while_the_service_ends_is_not_sent_again(
    url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end waits a little for answers, and records them; nothing further is begun."""
    monkeypatch.setattr(delivery, "GRACE_S", PATIENCE_S)
    monkeypatch.setattr(service, "END_S", PATIENCE_S)

    def answer_at_the_end(reader: Reader, stop: Signal, every_s: float, base: str) -> None:
        def answer() -> None:
            stop.wait()
            sleep(10 * delivery.POLL_S)  # the end has been noticed
            receiver.answers.set()

        Thread(target=answer, daemon=True).start()
        notify.follow(reader, stop, every_s, base)

    monkeypatch.setattr(service, "follow", answer_at_the_end)
    with serving(url):
        begun = receiver.next()
    assert [number for number, state in sent(url) if state == "sent"] == [begun]
    with serving(url):
        until_sent(url, MESSAGES)
    assert sorted([begun, *(receiver.next() for _ in range(MESSAGES - 1))]) == [number for number, _ in sent(url)]
    assert receiver.is_done()
