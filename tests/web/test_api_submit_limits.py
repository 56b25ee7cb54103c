"""Limits of sending runs: bodies that are compressed, malformed or unauthorized, too large or too many."""

from __future__ import annotations

import gzip
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator
from importlib import import_module

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from opgauge.web import body
from tests.web.dataset import RUNS
from tests.web.submissions import API, a_run, bearer, put, seen, store_of


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
