"""Runs that take the place of deleted ones, whose numbers SQLite reuses."""

from __future__ import annotations

import uuid
from copy import deepcopy
from datetime import timedelta
from typing import Any

from fastapi.testclient import TestClient

from opgauge.harness.settings import Settings
from opgauge.harness.store.deleting import delete_runs
from opgauge.harness.store.maintenance import prune_samples
from opgauge.web.app import create_app
from tests.web.reading_pages import case_id
from tests.web.submissions import a_run, bearer, put, store_of


def pages_of(client: TestClient, run: dict[str, Any]) -> dict[str, str]:
    """Pages that show a run, and the cases of its results."""
    listed = client.get("/api/v1/cases?limit=100").json()["items"]
    cases = [f"/cases/{case['id']}?csv=history" for case in listed]
    ops = [f"/ops/{op}" for op in sorted({case["op"] for case in listed})]
    found = {}
    for address in ("/", "/runs", f"/runs/{run['run']['id']}", "/devices", *ops, *cases):
        answer = client.get(address)
        assert answer.status_code == 200, (address, answer.text[:200])
        found[address] = answer.text
    return found


def expect_pages_of_a_fresh_service(client: TestClient, run: dict[str, Any]) -> None:
    """What a service shows that was there before is what one shows that has just been started."""
    url = store_of(client).engine.url.render_as_string(hide_password=False)
    with TestClient(create_app(Settings(database=url))) as fresh:
        assert pages_of(client, run) == pages_of(fresh, run)


def test_a_run_in_the_place_of_a_deleted_one_is_itself(empty_copy: TestClient) -> None:
    """It has as many results, of other cases in another order, and three times as long."""
    headers, first = bearer(empty_copy), a_run(12)
    first["results"] = first["results"][:6]
    put(empty_copy, first, headers)
    pages_of(empty_copy, first)
    delete_runs(store_of(empty_copy).engine, [first["run"]["id"]])
    second = deepcopy(a_run(12))
    second["run"]["id"] = str(uuid.uuid4())
    second["results"] = second["results"][:2:-1][:6]
    for result in second["results"]:
        if result["measurement"] is not None:
            result["measurement"]["samples_ns"] = [3 * time for time in result["measurement"]["samples_ns"]]
    put(empty_copy, second, headers)
    expect_pages_of_a_fresh_service(empty_copy, second)


def test_a_continued_run_is_shown_whole(empty_copy: TestClient) -> None:
    """Its first part had ended as interrupted, and was seen."""
    headers, whole = bearer(empty_copy), a_run(6)
    begun = deepcopy(whole)
    begun["run"]["status"], begun["results"] = "interrupted", begun["results"][:3]
    put(empty_copy, begun, headers)
    assert "interrupted" in pages_of(empty_copy, begun)["/runs"]
    put(empty_copy, whole, headers)
    expect_pages_of_a_fresh_service(empty_copy, whole)
    assert "interrupted" not in empty_copy.get(f"/runs/{whole['run']['id']}").text.partition("<main")[2]


def test_dropped_samples_are_shown_no_more(writable: TestClient) -> None:
    """A page that has drawn them draws them no longer; the table of the same page stays as it was."""
    address = f"/cases/{case_id(writable, 'rows-256')}"
    before = writable.get(address).text
    assert "Raw samples by process" in before
    prune_samples(store_of(writable).engine, timedelta(0))
    after = writable.get(address).text
    assert "Raw samples by process" not in after
    tables = [page.partition("<tbody>")[2].partition("</table>")[0] for page in (before, after)]
    assert tables[0] == tables[1]
