"""Projects in one service, and a service below a path of a proxy."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.submission import read_submission
from opgauge.harness.scope import Scope
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.tokens import create_token
from opgauge.web.app import create_app
from tests.databases import database
from tests.web.reading_pages import PLAIN
from tests.web.submissions import a_run
from tests.web.test_known_regressions import measure

LINK = re.compile(r'(?:href|src|action)="([^"]*)"')


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A database with a run of each of two projects, whose cases have different notes."""
    with database(tmp_path) as made, Store.open(made) as store:
        for name in ("alpha", "beta/2"):
            run = copy.deepcopy(a_run(4))
            run["run"]["environment"]["soft"] |= {"project": name, "branch": "main"}
            for result in run["results"]:
                result["trial"]["case"]["note"] = f"note of {name}"
            add_run(store.engine, read_submission(run))
        yield made


def test_a_service_of_several_projects_lists_them(url: str) -> None:
    """The first page lists them; pages of one have its runs, its notes and its links only."""
    with TestClient(create_app(Settings(database=url))) as client:
        assert {"/p/alpha/", "/p/beta%2F2/"} <= set(LINK.findall(client.get("/").text))
        for name, other in (("alpha", "beta/2"), ("beta%2F2", "alpha")):
            runs = client.get(f"/p/{name}/api/v1/runs").json()["items"]
            assert len(runs) == 1
            assert runs[0]["project"] != other
            for page in ("/", "/ops", "/runs", "/regressions", f"/runs/{runs[0]['id']}"):
                answer = client.get(f"/p/{name}{page}")
                assert answer.status_code == 200, page
                links = [link for link in LINK.findall(answer.text) if not link.startswith("#")]
                assert all(link.startswith(f"/p/{name}/") for link in links), (page, links)
            case = client.get(f"/p/{name}/api/v1/cases").json()["items"][0]["id"]
            text = client.get(f"/p/{name}/cases/{case}").text
            assert f"note of {runs[0]['project']}" in text
            assert f"note of {other}" not in text
        assert len(client.get("/api/v1/runs").json()["items"]) == 2
        there = client.get("/ops?device=cpu", follow_redirects=False)
        assert there.status_code == 307
        assert there.headers["location"].endswith("/ops?device=cpu")


def test_a_run_of_another_project_is_not_found(url: str) -> None:
    """Neither its page nor its comparison."""
    with TestClient(create_app(Settings(database=url))) as client:
        run = client.get("/p/alpha/api/v1/runs").json()["items"][0]["id"]
        assert client.get(f"/p/beta%2F2/runs/{run}").status_code == 404
        assert client.get(f"/p/beta%2F2/api/v1/runs/{run}").status_code == 404
        assert client.get(f"/p/beta%2F2/api/v1/compare?base={run}&head={run}").status_code == 404


def test_lists_of_a_project_have_its_results_only(url: str) -> None:
    """Results, one of them, and the series of a case that both projects measured."""
    with TestClient(create_app(Settings(database=url))) as client:
        runs = {run["project"]: run["id"] for run in client.get("/api/v1/runs").json()["items"]}
        other = client.get("/api/v1/results").json()["items"]
        case = other[0]["case_id"]
        for path in ("/results", f"/results?case_id={case}", f"/cases/{case}/series"):
            assert {one["run"] for one in client.get(f"/api/v1{path}").json()["items"]} == set(runs.values())
            assert {one["run"] for one in client.get(f"/p/alpha/api/v1{path}").json()["items"]} == {runs["alpha"]}
        for one in other:
            is_own = one["run"] == runs["alpha"]
            assert client.get(f"/p/alpha/api/v1/results/{one['number']}").status_code == (200 if is_own else 404)


def test_cases_of_a_project_are_those_that_it_measured(tmp_path: Path) -> None:
    """Not those of others: neither in lists nor by their number; without a project all are."""
    by_case: dict[str, list[dict[str, Any]]] = {}
    for one in a_run(60)["results"]:
        by_case.setdefault(one["trial"]["case"]["name"], []).append(one)
    measured = dict(zip(("alpha", "beta"), by_case.values(), strict=False))
    with database(tmp_path) as made:
        with Store.open(made) as store:
            for name, results in measured.items():
                run = a_run(1) | {"results": results}
                run["run"]["environment"]["soft"] |= {"project": name, "branch": "main"}
                add_run(store.engine, read_submission(run))
        with TestClient(create_app(Settings(database=made))) as client:
            every = [one["id"] for one in client.get("/api/v1/cases").json()["items"]]
            own = {name: client.get(f"/p/{name}/api/v1/cases").json()["items"] for name in measured}
            assert [[one["id"] for one in found] for found in own.values()] == [[one] for one in every]
            for (name, found), other in zip(own.items(), reversed(every), strict=True):
                assert client.get(f"/p/{name}/api/v1/ops").json()["items"] == [{"op": found[0]["op"], "cases": 1}]
                for path in ("", "/series", "/badge.svg"):
                    assert client.get(f"/p/{name}/api/v1/cases/{found[0]['id']}{path}").status_code == 200
                assert client.get(f"/p/{name}/api/v1/cases/{other}").status_code == 404
                assert client.get(f"/p/{name}/api/v1/cases/{other}/series").status_code == 404
                assert client.get(f"/p/{name}/cases/{other}").status_code == 404
                assert "no such case" in client.get(f"/p/{name}/api/v1/cases/{other}/badge.svg").text


def test_a_token_of_a_project_reads_that_project_only(url: str) -> None:
    """Another project is refused, and an address without a project shows the token's, with its links."""
    with Store.open(url) as store:
        secret = create_token(store.engine, "reader", Scope.READ, project="alpha")
    reading = {"Authorization": f"Bearer {secret}"}
    with TestClient(create_app(Settings(database=url), guarded=True), headers=reading) as client:
        own = client.get("/p/alpha/api/v1/runs").json()
        assert [run["project"] for run in own["items"]] == ["alpha"]
        assert client.get("/api/v1/runs").json() == own
        assert {one["run"] for one in client.get("/api/v1/results").json()["items"]} == {own["items"][0]["id"]}
        for path in ("/", "/runs", "/regressions", "/api/v1/runs", "/api/v1/results", "/metrics"):
            assert client.get(f"/p/beta%2F2{path}").status_code == client.head(f"/p/beta%2F2{path}").status_code == 403
        for path in ("/api/v1/runs", "/p/alpha/api/v1/runs"):
            assert client.get(f"{path}?project=alpha").json() == own
            assert client.get(path, params={"project": "beta/2"}).status_code in {404, 422}
            assert client.get(f"{path}?project=beta").status_code == 404
        page = client.get("/").text
        assert "beta" not in page.partition("<main")[2]
        assert {link for link in LINK.findall(page) if link.startswith("/")} >= {"/p/alpha/runs"}


def test_links_lead_below_a_root_path(filled: str) -> None:
    """Pages, files, the feed and redirects name the path of the proxy."""
    app = create_app(Settings(database=filled))
    with TestClient(app, root_path="/tools/opgauge") as client:
        for page in ("/", "/runs", "/regressions", "/compare"):
            answer = client.get(page)
            assert answer.status_code == 200, page
            assert all(link.startswith(("/tools/opgauge/", "#")) for link in LINK.findall(answer.text)), page
        asset = re.search(r'href="/tools/opgauge(/static/style[^"]*)"', client.get("/").text)
        assert asset
        assert client.get(asset[1]).status_code == 200
        feed = client.get("/regressions.atom").text
        assert "<id>http://testserver/tools/opgauge/regressions.atom</id>" in feed


def test_pages_below_a_root_path_differ_in_addresses_only(filled: str) -> None:
    """Every element and attribute is that of the page at the root: browsers read no links from others."""
    with (
        TestClient(create_app(Settings(database=filled))) as client,
        TestClient(create_app(Settings(database=filled)), root_path="/tools/opgauge") as below,
    ):
        for page in PLAIN:
            moved = re.sub("([\"'])/tools/opgauge/", r"\1/", below.get(page).text)
            assert moved.replace("/tools/opgauge/", "/") == client.get(page).text, page


def test_projects_with_equal_cases_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression of one project, whose branch has another name, is in all that is said of all projects."""
    with database(tmp_path) as made:
        measure(made, list(range(10)), 99, "broken", monkeypatch, {"project": "alpha", "branch": "main"})
        measure(made, list(range(10)), 6, "broken", monkeypatch, {"project": "beta", "branch": "develop"})
        with TestClient(create_app(Settings(database=made))) as client:
            for root, names in (("", {"alpha", "beta"}), ("/p/alpha", {"alpha"}), ("/p/beta", {"beta"})):
                text = client.get(f"{root}/metrics").text
                counts = dict(re.findall(r'opgauge_regressions\{project="(\w+)",state="open"\} (\S+)', text))
                assert counts == {name: "1.0" if name == "beta" else "0.0" for name in names}
                assert set(re.findall(r'opgauge_\w+\{project="(\w+)"', text)) == names
                found = client.get(f"{root}/api/v1/regressions").json()["items"]
                assert [one["project"] for one in found] == [name for name in names if name == "beta"]
                case = "broken" if "beta" in names else "baseline"
                assert case in client.get(f"{root}/api/v1/ops/lerp/badge.svg").text
            (entry,) = re.findall(r"<id>([^<]*/regressions/\w+)</id>", client.get("/regressions.atom").text)
            assert "/p/beta/regressions/" in entry
            assert client.get(entry).status_code == 200
            for run in client.get("/api/v1/runs").json()["items"]:
                before = re.search(r"/compare\?base=(\w{8})&amp;head", client.get(f"/runs/{run['id']}").text)
                assert before is None or before[1] in {
                    one["id"][:8] for one in client.get(f"/p/{run['project']}/api/v1/runs").json()["items"]
                }
