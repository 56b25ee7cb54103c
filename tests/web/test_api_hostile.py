"""Runs that are taken though their fields are strange: nothing that shows them breaks."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.errors import HarnessError
from opgauge.harness.result.submission import parse, read_submission
from tests.hostile import HOSTILE, KEYS, laden, places, put
from tests.web.submissions import a_run, bearer

API = "/api/v1"


def strange(seed: int) -> dict[str, Any]:
    """A run with as many hostile values as it is still taken with."""
    chance = random.Random(seed)  # noqa: S311  no secret
    text = json.dumps(laden(a_run(3)))  # `places` are of the first three of every list
    everywhere = list(places(json.loads(text)))
    chance.shuffle(everywhere)
    for path in everywhere:
        changed = json.loads(text)
        with contextlib.suppress(KeyError, IndexError, TypeError):
            place = (*path, chance.choice(KEYS)) if chance.random() < 0.1 else path
            put(changed, place, chance.choice(HOSTILE))
        with contextlib.suppress(HarnessError, UnicodeEncodeError):
            sent = json.dumps(changed, ensure_ascii=False)
            read_submission(parse(sent.encode()))
            text = sent
    found: dict[str, Any] = json.loads(text)
    return found


def addresses(client: TestClient, run: str, other: str) -> list[str]:
    """What shows a run, and what shows everything."""
    results = client.get(f"{API}/runs/{run}/results").json()["items"]
    cases = sorted({one["case_id"] for one in results})
    found = [f"{API}/{name}" for name in ("runs", "results", "cases", "ops", "regressions", "ops/p_norm/badge.svg")]
    found += [f"{API}/runs/{run}", f"{API}/compare?base={other}&head={run}", f"{API}/compare?base={run}&head={other}"]
    found += [f"{API}/results/{one['number']}" for one in results]
    for case in cases:
        found += [
            f"{API}/cases/{case}",
            f"{API}/cases/{case}/series",
            f"{API}/cases/{case}/badge.svg",
            f"/cases/{case}",
        ]
    found += ["/", "/runs", f"/runs/{run}", "/regressions", "/regressions.atom", "/trust", "/ops/p_norm", "/metrics"]
    found += [f"/compare?base={other}&head={run}", f"/compare?base={run}&head={other}"]
    return found + [f"/runs/{run}/export.{form}" for form in ("json", "csv")]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_breaks_over_a_strange_run(writable: TestClient, seed: int) -> None:
    """A run whose every field is as odd as is allowed has pages, records, pictures and comparisons like any other."""
    run = strange(seed)
    other = writable.get(f"{API}/runs", params={"limit": 1}).json()["items"][0]["id"]
    address = f"{API}/runs/{run['run']['id']}"
    answer = writable.put(address, content=json.dumps(run, ensure_ascii=False).encode(), headers=bearer(writable))
    assert answer.status_code == 201, answer.text
    for path in addresses(writable, run["run"]["id"], other):
        answer = writable.get(path)
        assert answer.status_code in {200, 404}, (path, answer.text[:300])
        if answer.headers["content-type"] == "application/json":
            json.loads(answer.text, parse_constant=pytest.fail)
    assert read_submission(run).id == run["run"]["id"]
