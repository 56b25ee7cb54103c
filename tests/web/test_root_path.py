"""A service below a path of a proxy, which passes the path on whole or cut off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.settings import Settings
from opgauge.web.app import create_app

ROOT = "/tools/opgauge"
Message = MutableMapping[str, Any]


def below_root(app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The app as uvicorn calls it: the root path comes before whatever path was sent."""

    async def call(scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[..., Any]) -> None:
        if scope["type"] == "http":
            raw = scope["raw_path"].partition(b"?")[0]
            scope.update(root_path=ROOT, path=ROOT + scope["path"], raw_path=ROOT.encode() + raw)
        await app(scope, receive, send)

    return call


@pytest.mark.parametrize("guarded", [False, True])
def test_a_path_that_is_passed_on_whole_is_the_one_that_is_cut_off(filled: str, *, guarded: bool) -> None:
    """The same answers, with the same links; another path is not found."""
    app = create_app(Settings(database=filled), guarded=guarded)
    with TestClient(app), TestClient(below_root(app)) as client:
        assert client.get("/healthz").status_code == client.get(f"{ROOT}/healthz").status_code == 200
        for path in ("/", "/ops/lerp", "/p/-/ops", "/api/v1/runs", "/static/icon.svg"):
            cut, whole = client.get(path), client.get(ROOT + path)
            assert (cut.status_code, cut.content) == (whole.status_code, whole.content)
            assert cut.status_code == (401 if guarded else 200)
        assert client.get(ROOT).status_code == (401 if guarded else 200)
        if not guarded:
            assert client.get(f"{ROOT}s/ops").status_code == client.get(f"{ROOT}{ROOT}/ops").status_code == 404
