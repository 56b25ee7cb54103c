"""Delivery of queued messages to webhooks: signed, at most `TIMEOUT_S` each, to all webhooks at once.

A receiver that is slow, fails or never ends its answer delays no other and does not keep the service from ending.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event as Signal
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any, Self

import httpx
from sqlalchemy import Engine

from opgauge.harness.store.webhooks import Delivery, Form, Webhook, finish_delivery, list_webhooks, take_due
from opgauge.web.observe import DELIVERIES, log

TIMEOUT_S = 10.0
"""Seconds that a receiver may take for all of its answer's head; the rest is not read."""
TURN_S = 30.0
"""Seconds after which a webhook gets no further message in a turn, so that new events wait for nobody."""
GRACE_S = 1.5
"""Seconds that begun messages have when the service ends; the next one to start sends them again."""
POLL_S = 0.05
"""Interval at which the end of the service is noticed."""
SIGNATURE = "X-Opgauge-Signature"
"""Header of the signature."""


class Sender:
    """Sends messages in the thread that uses it, in a `with` statement. stop: ends a turn early.

    base: address of the service, for links. transport: for tests.
    """

    def __init__(
        self,
        engine: Engine,
        base: str = "",
        stop: Signal | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._engine = engine
        self._base = base
        self._stop = stop or Signal()
        self._runner = asyncio.Runner(loop_factory=_NamesApart)
        self._client = httpx.AsyncClient(follow_redirects=False, timeout=TIMEOUT_S, transport=transport)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.run(self._client.aclose())
        self._runner.__exit__(kind, error, at)

    def send_due(self) -> int:
        """Send what is due; returns how many messages were tried."""
        return self._runner.run(self._turn())

    async def _turn(self) -> int:
        turns = [asyncio.create_task(self._send_to(hook)) for hook in list_webhooks(self._engine)]
        ends = float("inf")
        while (waiting := [task for task in turns if not task.done()]) and monotonic() < ends:
            if self._stop.is_set():
                ends = min(ends, monotonic() + GRACE_S)
            await asyncio.wait(waiting, timeout=POLL_S)
        for task in turns:
            task.cancel()
        found = await asyncio.gather(*turns, return_exceptions=True)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return sum(one for one in found if isinstance(one, int))

    async def _send_to(self, hook: Webhook) -> int:
        """Send what is due to a webhook, until one message fails: the others would, too."""
        tried, ends, fault = 0, monotonic() + TURN_S, ""
        while not (fault or self._stop.is_set() or monotonic() > ends):
            delivery = take_due(self._engine, hook)
            if delivery is None:
                break
            fault = await self._send(delivery)
            outcome = finish_delivery(self._engine, delivery, fault)
            DELIVERIES.labels(outcome).inc()
            log.info("webhook", name=hook.name, event_key=delivery.event, outcome=outcome, fault=fault)
            tried += 1
        return tried

    async def _send(self, delivery: Delivery) -> str:
        """Send one message; returns what went wrong, empty if it was taken."""
        body = body_of(delivery, self._base)
        stamp = str(int(datetime.now(UTC).timestamp()))
        headers = {"Content-Type": "application/json", "X-Opgauge-Timestamp": stamp}
        headers |= {"X-Opgauge-Delivery": str(delivery.key), SIGNATURE: signature(delivery.webhook.secret, stamp, body)}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # the body of the answer may be of any size and is not read
                async with self._client.stream("POST", delivery.webhook.url, content=body, headers=headers) as answer:
                    return "" if answer.is_success else f"answered {answer.status_code}"
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:g} s"
        except Exception as error:  # noqa: BLE001  whatever an address leads to is a failed attempt, not an end
            return f"{type(error).__name__}: {error}"


class _NamesApart(asyncio.SelectorEventLoop):
    """A loop that looks names up in threads that do not keep the process from ending."""

    async def getaddrinfo(self, host: Any, port: Any, **given: Any) -> Any:
        """Addresses of a host."""
        found: asyncio.Future[Any] = self.create_future()

        def tell(enter: Callable[[Any], None], what: Any) -> None:
            if not found.done():
                enter(what)

        def look_up() -> None:
            enter: Callable[[Any], None] = found.set_result
            try:
                what: Any = socket.getaddrinfo(host, port, **given)
            except (OSError, UnicodeError) as error:
                enter, what = found.set_exception, error
            with suppress(RuntimeError):  # the loop may have ended
                self.call_soon_threadsafe(tell, enter, what)

        Thread(target=look_up, daemon=True).start()
        return await found


def is_path(key: str) -> bool:
    """Whether a field of a message is an address on the service."""
    return key == "path" or key.endswith("_path")


def body_of(delivery: Delivery, base: str) -> bytes:
    """The message in the form of its webhook."""
    given = delivery.payload
    links = {key.removesuffix("path") + "link": f"{base}{given[key]}" for key in given if base and is_path(key)}
    link = links.get("link", "")
    if delivery.webhook.form is Form.SLACK:
        text = _slack_text(str(given["text"]))
        compare = f", <{_slack_text(links['compare_link'])}|compare>" if "compare_link" in links else ""
        data = {"text": f"{text} (<{link}|details>{compare})" if link else text}
    else:
        data = {key: value for key, value in given.items() if not (base and is_path(key))} | links
    return json.dumps(data, ensure_ascii=False).encode()


def _slack_text(text: str) -> str:
    """Text in which Slack sees no markup: names of cases come from outside."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def signature(secret: str, stamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp and the body: a receiver can tell forged and repeated messages."""
    return "sha256=" + hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
