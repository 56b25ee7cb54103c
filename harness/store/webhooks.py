"""Webhooks: their addresses, and the messages that wait for them, each event once per webhook."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.store.tables import DeliveryRow, WebhookRow

TRIES = 8
"""Most attempts per message."""
FIRST_PAUSE = timedelta(seconds=30)
"""Pause after the first failed attempt; it doubles each time."""
LEASE = timedelta(minutes=2)
"""Time that a process has for a delivery before another may try it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Form(StrEnum):
    """Form of the messages."""

    JSON = "json"
    SLACK = "slack"


class Event(StrEnum):
    """Kind of an event, which webhooks select."""

    BROKEN = "broken"
    SLOWER = "slower"
    SUSPECTED = "suspected"
    SILENT = "silent"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. project: project whose events are sent. secret: key of the signatures."""

    key: int
    name: str
    project: str
    url: str
    form: Form
    events: frozenset[Event]
    secret: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to be sent. tries: number of failed attempts."""

    key: int
    webhook: Webhook
    event: str
    payload: Mapping[str, Any]
    tries: int


def add_webhook(engine: Engine, name: str, url: str, *, project: str, form: Form, events: frozenset[Event]) -> str:
    """Store a webhook; returns the secret that signs its messages. Raises StoreError for a bad name or address."""
    if not _NAME.fullmatch(name):
        msg = f"a webhook's name has letters, digits, dots, dashes and underscores, at most 64: not {name!r}"
        raise StoreError(msg)
    if not _is_address(url):
        msg = f"{url!r} is not the address of a webhook; for example https://hooks.example/x"
        raise StoreError(msg)
    secret = secrets.token_hex(32)
    values = {"name": name, "project": project, "url": url, "form": str(form), "secret": secret}
    values |= {"events": ",".join(sorted(events))}
    try:
        with engine.begin() as connection:
            connection.execute(insert(WebhookRow).values(**values, created=datetime.now(UTC)))
    except IntegrityError as error:
        msg = f"a webhook called {name} exists already"
        raise StoreError(msg) from error
    return secret


def _is_address(url: str) -> bool:
    """Whether messages can be sent there at all: by HTTP, to a host, to a port that exists."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        return False


def list_webhooks(engine: Engine) -> list[Webhook]:
    """All webhooks by name."""
    with engine.connect() as connection:
        return [_webhook(row) for row in connection.execute(select(WebhookRow.__table__).order_by(WebhookRow.name))]


def remove_webhook(engine: Engine, name: str) -> None:
    """Remove a webhook and its waiting messages; raises NothingError without one."""
    with engine.begin() as connection:
        if not connection.execute(delete(WebhookRow).where(WebhookRow.name == name)).rowcount:
            msg = f"no webhook {name}; `opgauge webhook list` shows all"
            raise NothingError(msg)


def queue_event(engine: Engine, webhook: Webhook, event: str, payload: Mapping[str, Any]) -> bool:
    """Queue a message; False if this webhook had the event before."""
    now = datetime.now(UTC)
    values = {"webhook_id": webhook.key, "event": event[:128], "payload": dict(payload), "created": now, "due": now}
    known = select(DeliveryRow.id).where(DeliveryRow.webhook_id == webhook.key, DeliveryRow.event == event[:128])
    try:
        with engine.begin() as connection:
            if connection.execute(known).first() is not None:
                return False
            connection.execute(insert(DeliveryRow).values(**values, tries=0, state="waiting", detail=""))
    except IntegrityError:
        return False
    return True


def take_due(engine: Engine, hook: Webhook, now: datetime | None = None) -> Delivery | None:
    """The next message that is due for a webhook, leased so that no other process sends it; None without one."""
    now = now or datetime.now(UTC)
    row = DeliveryRow
    query = select(row.id, row.event, row.payload, row.tries, row.due)
    query = query.where(row.webhook_id == hook.key, row.state == "waiting", row.due <= now).order_by(row.due).limit(1)
    with engine.begin() as connection:
        found = connection.execute(query).first()
        if found is None:
            return None
        lease = update(row).where(row.id == found.id, row.state == "waiting", row.due == found.due)
        if not connection.execute(lease.values(due=now + LEASE)).rowcount:
            return None
    return Delivery(found.id, hook, found.event, found.payload, found.tries)


def finish_delivery(engine: Engine, delivery: Delivery, fault: str = "", now: datetime | None = None) -> str:
    """Record the outcome of an attempt, and return it: sent, waiting for the next after a growing pause, or failed."""
    now = now or datetime.now(UTC)
    tries = delivery.tries + 1
    state = "sent" if not fault else "failed" if tries >= TRIES else "waiting"
    values = {"state": state, "tries": tries, "detail": fault[:500], "due": now + FIRST_PAUSE * 2 ** (tries - 1)}
    with engine.begin() as connection:
        connection.execute(update(DeliveryRow).where(DeliveryRow.id == delivery.key).values(values))
    return state


def _webhook(row: Any) -> Webhook:
    events = frozenset(Event(name) for name in row.events.split(",") if name)
    return Webhook(row.id, row.name, row.project, row.url, Form(row.form), events, row.secret)
