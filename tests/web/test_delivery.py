"""Delivery to receivers that are slow, fail, never answer, or answer without end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event as Signal
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from opgauge.harness.store import Store
from opgauge.harness.store.tables import DeliveryRow, WebhookRow
from opgauge.harness.store.webhooks import Event, Form, add_webhook, list_webhooks, queue_event
from opgauge.web import delivery
from opgauge.web.delivery import Sender
from tests.databases import database

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with database(tmp_path) as url, Store.open(url) as made:
        yield made


def queue(store: Store, count: int = 1, **urls: str) -> None:
    """Queue messages for webhooks, by name and address."""
    for name, url in urls.items():
        add_webhook(store.engine, name, url, project="", form=Form.JSON, events=frozenset(Event))
    for hook in list_webhooks(store.engine):
        for number in range(count):
            queue_event(store.engine, hook, f"regression {number}", {"text": "slow"})


def send(store: Store, answer: Answer | None = None, stop: Signal | None = None) -> None:
    """One turn, in a thread as in the service."""

    def turn() -> None:
        transport = httpx.MockTransport(answer) if answer else None  # type: ignore[arg-type]
        with Sender(store.engine, stop=stop, transport=transport) as sender:
            sender.send_due()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(turn).result()


def outcomes(store: Store) -> dict[str, list[tuple[str, int, str]]]:
    """State, tries and fault of each message, by webhook."""
    row = DeliveryRow
    query = select(WebhookRow.name, row.state, row.tries, row.detail).where(WebhookRow.id == row.webhook_id)
    found: dict[str, list[tuple[str, int, str]]] = {}
    with store.engine.connect() as connection:
        for name, state, tries, detail in connection.execute(query.order_by(row.id)):
            found.setdefault(name, []).append((state, tries, detail))
    return found


async def forever(_: httpx.Request) -> httpx.Response:
    """No answer."""
    await asyncio.Event().wait()
    raise AssertionError


def test_the_body_of_an_answer_is_not_read(store: Store) -> None:
    """However large it is: the message counts as taken once the head has come."""
    read = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(1000):
            read.append(number)
            yield bytes(1 << 20)

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body())

    queue(store, large="https://large.example/")
    send(store, answer)
    assert outcomes(store) == {"large": [("sent", 1, "")]}
    assert read == []


def test_a_receiver_that_never_answers_delays_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempt ends in time and counts as failed, and it gets no second message; all others are sent."""
    asked: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return await forever(request) if request.url.host == "never.example" else httpx.Response(200)

    queue(store, 3, never="https://never.example/", good="https://good.example/")
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.2)
    send(store, answer)
    found = outcomes(store)
    assert found["good"] == [("sent", 1, "")] * 3
    assert found["never"] == [("waiting", 1, "no answer within 0.2 s"), *[("waiting", 0, "")] * 2]
    assert asked.count("never.example") == 1


def test_the_end_of_the_service_waits_for_no_receiver(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way is left as not sent; nothing further is begun."""
    stop, asked = Signal(), []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        stop.set()
        return await forever(request)

    queue(store, 2, never="https://never.example/")
    monkeypatch.setattr(delivery, "TIMEOUT_S", 3600.0)
    monkeypatch.setattr(delivery, "GRACE_S", 0.0)
    send(store, answer, stop)
    assert len(asked) == 1
    assert outcomes(store)["never"] == [("waiting", 0, "")] * 2


@pytest.mark.parametrize("code", [301, 302, 307, 404, 500])
def test_only_success_counts(store: Store, code: int) -> None:
    """Redirects are not followed: they would lead a message to where nobody sent it."""
    asked: list[Any] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(code, headers={"Location": "https://other.example/"})

    queue(store, moved="https://moved.example/")
    send(store, answer)
    assert outcomes(store)["moved"] == [("waiting", 1, f"answered {code}")]
    assert len(asked) == 1


def test_an_address_without_a_host_counts_as_a_failed_attempt(store: Store) -> None:
    """A name that no host can have, a port that none has: other messages are sent all the same, in the same turn."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    queue(store, long=f"http://{'a' * 70}.example/", port="http://127.0.0.1/", shut=f"http://127.0.0.1:{port}/")
    with store.engine.begin() as connection:  # as earlier versions took it
        connection.execute(update(WebhookRow).where(WebhookRow.name == "port").values(url="http://127.0.0.1:99999/"))
    send(store)
    found = outcomes(store)
    assert [(state, tries) for ((state, tries, _),) in found.values()] == [("waiting", 1)] * 3
    assert all(fault for ((_, _, fault),) in found.values())


def test_a_look_up_without_end_keeps_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer: the attempt ends in time, and so do the sender and the process."""
    release = Signal()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait() and [])
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.2)
    queue(store, lost="http://lost.example/")
    send(store)
    release.set()
    assert outcomes(store)["lost"] == [("waiting", 1, "no answer within 0.2 s")]
