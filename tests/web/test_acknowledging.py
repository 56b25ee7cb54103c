"""Acknowledging regressions: by the form, by a token, by the waiver file."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.gate.waiver import load_waivers
from opgauge.harness.scope import Scope
from opgauge.harness.settings import Settings
from opgauge.harness.store import acknowledgements
from opgauge.harness.store.tokens import create_token
from opgauge.web.app import create_app
from opgauge.web.known_regressions import known_regressions
from tests.web.dataset import HARD, HOSTILE, START
from tests.web.histories import add_history
from tests.web.reading_pages import reader_of, regression_key, text_of
from tests.web.submissions import store_of


def acknowledgement(**changed: str) -> str:
    """A filled form."""
    until = (datetime.now(UTC).date() + timedelta(days=9)).isoformat()
    form = {"owner": "Ada", "reason": f"wider: {HOSTILE}", "until": until, "expected": "1.25", "token": ""}
    return urlencode({**form, **changed})


def post(client: TestClient, key: str, body: str) -> tuple[int, str]:
    """Send the form."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post(f"/regressions/{key}", content=body, headers=headers)
    return answer.status_code, answer.text


def test_acknowledging_without_a_token_only_writes_the_waiver(
    writable: TestClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The YAML is one that the gate reads; nothing is stored."""
    key = regression_key(writable, "slower")
    status, body = post(writable, key, acknowledgement())
    assert status == 200
    found = re.search(r'<pre[^>]*id="waiver"><code>(.*?)</code>', body, flags=re.DOTALL)
    assert found is not None
    path = tmp_path_factory.mktemp("waivers") / "waivers.yaml"
    path.write_text("waivers:\n" + unescape(found.group(1)), encoding="utf-8")
    (waiver,) = load_waivers(path)
    assert (waiver.owner, waiver.reason, waiver.expected_ratio) == ("Ada", f"wider: {HOSTILE}", 1.25)
    assert acknowledgements.list_acknowledgements(reader_of(writable).engine) == []


def test_acknowledging_with_a_token_is_seen_by_all(writable: TestClient) -> None:
    """The regression is acknowledged, with name, reason and day; a second look says so."""
    key = regression_key(writable, "slower")
    secret = create_token(reader_of(writable).engine, "ada", Scope.ACK)
    status, body = post(writable, key, acknowledgement(token=secret))
    assert status == 200
    assert "acknowledged" in text_of(body)
    assert writable.get("/regressions?state=acknowledged").text.count('<th scope="row">') == 1
    assert "confirmed regression" in text_of(writable.get("/").text)


WAIVERS = """
waivers:
  - {cases: "p_norm/*", device: "cuda*", owner: Grace, until: 2999-12-31, expected_ratio: 1.3,
     reason: "wider <b>sums</b>"}
  - {cases: lerp, owner: Ada, reason: long ago, until: 2020-01-01, verdicts: [slower, broken]}
"""


def test_the_waiver_file_counts_and_is_shown(filled_file: Path, tmp_path: Path) -> None:
    """What it excuses is acknowledged, by its owner; what has expired says so and excuses nothing; a change is seen."""
    path = tmp_path / "waivers.yaml"
    path.write_text(WAIVERS, encoding="utf-8")
    with TestClient(create_app(Settings(database=f"sqlite:///{filled_file}"), waivers=path)) as client:
        found = {one.kind: one.state for one in known_regressions(reader_of(client)) if one.state != "fixed"}
        assert found == {"slower": "acknowledged", "broken": "open"}
        page = client.get("/regressions").text
        assert "wider &lt;b&gt;sums" in page
        for word in ("Grace, until 2999-12-31", "waiver file", "expired", "+30.0 %"):
            assert word in text_of(page)
        key = next(one.key for one in known_regressions(reader_of(client)) if one.state == "acknowledged")
        assert "Grace" in text_of(client.get(f"/regressions/{key}").text)
        path.write_text("waivers: [{cases: x}]", encoding="utf-8")
        assert "has no owner" in text_of(client.get("/regressions").text)
        assert {one.state for one in known_regressions(reader_of(client))} == {"open", "fixed"}


def test_acknowledging_needs_a_good_token_and_a_good_form(writable: TestClient) -> None:
    """Wrong tokens, tokens of another scope, days that have passed, odd ratios and other bodies change nothing."""
    key = regression_key(writable, "slower")
    engine = reader_of(writable).engine
    submit = create_token(engine, "ci", Scope.SUBMIT)
    assert post(writable, key, acknowledgement(token="opg_wrong"))[0] == 401  # noqa: S106
    assert post(writable, key, acknowledgement(token=submit))[0] == 403
    for changed in (
        {"until": "2020-01-01"},
        {"until": "soon"},
        {"owner": " "},
        {"expected": "-1"},
        {"expected": "inf"},
    ):
        assert post(writable, key, acknowledgement(**changed))[0] == 422
    assert writable.post(f"/regressions/{key}", json={}).status_code == 415
    assert post(writable, key, "owner=" + "x" * 20_000)[0] == 413
    assert acknowledgements.list_acknowledgements(engine) == []


def test_an_acknowledgement_is_of_one_regression(empty_copy: TestClient) -> None:
    """Neither of the same step on another model of that name, nor of a further step, nor of one after a repair."""
    store, url = store_of(empty_copy), "/api/v1/regressions?state="

    def count(state: str) -> int:
        return int(empty_copy.get(url + state).json()["total"])

    step = [100] * 10 + [120] * 10
    add_history(store, {"x": step, "y": step})
    add_history(store, {"x": step}, hard={**HARD, "cuda:0.model": "Tesla V100"})
    assert count("open") == 3
    secret = create_token(store.engine, "ada", Scope.ACK)
    for one in known_regressions(reader_of(empty_copy)):
        if one.device.model == "NVIDIA H200":
            assert post(empty_copy, one.key, acknowledgement(token=secret))[0] == 200
    assert (count("open"), count("acknowledged")) == (1, 2)
    later = START + timedelta(days=20)
    add_history(store, {"x": [140] * 6 + [None] * 6, "y": [100] * 6 + [120] * 6}, first=later)
    found: dict[tuple[str, str], list[str]] = {}
    for one in known_regressions(reader_of(empty_copy)):
        found.setdefault((one.case.name, one.device.model), []).append(one.state)
    assert found == {
        ("x", "NVIDIA H200"): ["open", "acknowledged"],
        ("y", "NVIDIA H200"): ["open", "fixed"],
        ("x", "Tesla V100"): ["open"],
    }
