"""Badges: pictures without scripts, whatever the names."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from fastapi.testclient import TestClient

from tests.web.dataset import HOSTILE
from tests.web.test_api import API, get


def _badges(client: TestClient) -> Iterator[tuple[str, str]]:
    for case in get(client, "/cases")["items"]:
        yield case["name"], f"{API}/cases/{case['id']}/badge.svg"
    yield "lerp", f"{API}/ops/lerp/badge.svg"
    yield "nothing", f"{API}/ops/nothing/badge.svg"
    yield "no such case", f"{API}/cases/0123456789abcdef/badge.svg"


def test_badges_are_harmless_pictures(client: TestClient) -> None:
    """Every badge is well-formed SVG of known elements, whatever the case is called."""
    for _, path in _badges(client):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("image/svg+xml")
        picture = ET.fromstring(answer.text)  # noqa: S314  our own
        tags = {element.tag.rpartition("}")[2] for element in picture.iter()}
        assert tags == {"svg", "title", "rect", "g", "text"}
        assert "<script" not in answer.text
        assert not [name for element in picture.iter() for name in element.attrib if name.startswith("on")]
    assert "broken" in client.get(f"{API}/ops/lerp/badge.svg").text
    assert "no data" in client.get(f"{API}/ops/nothing/badge.svg").text


def test_badges_show_no_control_characters() -> None:
    """XML knows no NUL, and a badge is short."""
    from opgauge.web.api.badge import draw

    picture = draw("a\x00b\x1b[0m\u202e" + "x" * 500, HOSTILE, "#fff")
    ET.fromstring(picture)  # noqa: S314  our own
    assert "\x00" not in picture
    assert "\u202e" not in picture
    assert len(picture) < 1500
