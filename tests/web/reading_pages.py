"""Helpers of tests that read pages: addresses, keys, and the text of HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from opgauge.web.known_regressions import known_regressions
from opgauge.web.reader import Reader

PLAIN = (
    "/",
    "/ops",
    "/devices",
    "/roofline",
    "/coverage",
    "/runs",
    "/compare",
    "/regressions",
    "/regressions.atom",
    "/trust",
)


def reader_of(client: TestClient) -> Reader:
    """The reader of a client's app."""
    app = client.app
    assert isinstance(app, FastAPI)
    found: Reader = app.state.reader
    return found


def routes_of(router: Any, root: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of every route of an app, also of routers that it includes."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield from ((method, root + route.path) for method in route.methods or ())
        elif hasattr(route, "original_router"):
            yield from routes_of(route.original_router, root + route.include_context.prefix)


def case_id(client: TestClient, name: str) -> str:
    """The id of the case called so."""
    return next(case.case_id for case in reader_of(client).recent().cases.values() if case.name == name)


def regression_key(client: TestClient, kind: str) -> str:
    """The key of an open regression."""
    return next(one.key for one in known_regressions(reader_of(client)) if one.kind == kind and one.state == "open")


def addresses(client: TestClient) -> list[str]:
    """A page of each kind, with data."""
    reader = reader_of(client)
    runs = reader.runs()
    return [
        *PLAIN,
        "/ops/p_norm",
        "/ops/flatten",
        *(f"/cases/{one.case_id}" for one in reader.recent().cases.values()),
        *(f"/regressions/{one.key}" for one in known_regressions(reader)),
        f"/runs/{runs[0].id}",
        f"/roofline?run={runs[1].id}",
        f"/compare?base={runs[1].id[:8]}&head={runs[0].id[:8]}",
        f"/compare?base={runs[9].id[:8]}&head={runs[1].id[:8]}&head={runs[0].id[:8]}",
        "/devices?op=lerp",
        f"/compare?base={runs[9].id[:8]}&head={runs[0].id[:8]}&base_device=cpu&head_device=cuda:0",
    ]


def text_of(html: str) -> str:
    """A page without its tags and scripts."""
    bare = re.sub(r"<script.*?</script>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", bare)).split())
