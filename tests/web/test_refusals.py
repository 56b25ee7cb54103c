"""Floods of refused requests: they fill neither the log nor the audit log, and JSON of an error waits for no page."""

from __future__ import annotations

import logging
import re
import uuid
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread
from fastapi.testclient import TestClient

from opgauge.harness.scope import Scope
from opgauge.harness.store.audit import list_audit
from opgauge.web.observe import Observer
from opgauge.web.rate import RateLimit, RateLimits
from tests.web.submissions import API, bearer, store_of


def test_a_flood_of_refusals_leaves_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few have a line each, then one in ten seconds has, with the number of the others; good requests all have."""
    now, status = [100.0], [401]
    monkeypatch.setattr("opgauge.web.rate.monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, "opgauge")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": status[0], "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = TestClient(Observer(app))
    for status[0] in (401, 403, 429) * 70:
        client.get("/")
    assert len(caplog.records) == 20
    caplog.clear()
    now[0] += 10.0
    client.get("/")
    client.get("/")
    (line,) = caplog.messages
    assert re.search(r"unlogged\W+190\b", line)
    caplog.clear()
    status[0] = 200
    client.get("/")
    client.get("/")
    assert len(caplog.records) == 2


def test_a_flood_of_refusals_leaves_few_audit_entries(writable: TestClient) -> None:
    """A token that may not write is audited a few times, not as often as it tries; another one still is."""
    writable.app.state.limits = RateLimits(refusal=RateLimit(0.001, 3))  # type: ignore[attr-defined]
    path = f"{API}/runs/{uuid.uuid4()}/parts"
    for name, tries in (("nosy", 10), ("other", 1)):
        headers = bearer(writable, Scope.READ, name=name)
        assert {writable.get(path, headers=headers).status_code for _ in range(tries)} == {403}
    actors = [one.actor for one in list_audit(store_of(writable).engine)]
    assert (actors.count("nosy"), actors.count("other")) == (3, 1)


@pytest.mark.parametrize(("path", "code"), [(f"{API}/nothing", 404), (f"{API}/runs?nothing=1", 422)])
def test_json_of_an_error_waits_for_no_page(writable: TestClient, path: str, code: int) -> None:
    """Answers that read no data come while pages take every thread."""

    async def ask() -> int:
        limiter = to_thread.current_default_thread_limiter()
        pages = [object() for _ in range(int(limiter.available_tokens))]
        for one in pages:
            limiter.acquire_on_behalf_of_nowait(one)
        transport = httpx.ASGITransport(writable.app)
        try:
            with anyio.fail_after(60):
                async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                    return (await client.get(path)).status_code
        finally:
            for one in pages:
                limiter.release_on_behalf_of(one)

    assert writable.portal is not None
    assert writable.portal.call(ask) == code
