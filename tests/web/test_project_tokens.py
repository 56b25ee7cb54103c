"""A token of one project, on every route of a guarded service: nothing tells of another project."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
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
from tests.web.reading_pages import routes_of
from tests.web.submissions import API, a_run

NAMES = ("alpha", "beta")
QUERIES = (
    "",
    *("?q=beta", "?q=of", "?device=cpu", "?project=beta", "?last=9", "?csv=history", "?commit=b"),
    *(f"?{name}=nothing" for name in ("op", "implementation", "device", "dtype", "tag", "case", "state")),
)
"""Queries of each route: none, searches, and values that nothing has, to which answers list those that there are."""


@dataclass
class Two:
    """A database of two projects. runs, cases, numbers: of each. secrets: tokens of the first, by scope."""

    url: str
    runs: dict[str, str]
    cases: dict[str, dict[str, Any]]
    numbers: dict[str, int]
    secrets: dict[Scope, str]

    def address(self, path: str, of: str) -> str:
        """The address of a route for things of a project."""
        values = {"run_id": self.runs[of], "case_id": self.cases[of]["id"], "number": self.numbers[of]}
        values |= {"op": self.cases[of]["op"], "name": self.cases[of]["op"], "kind": "json", "key": "0" * 16}
        return re.sub(r"\{(\w+)(:\w+)?\}", lambda found: str(values.get(found[1], "x")), path)

    def told(self, text: str) -> list[str]:
        """Marks of the second project in an answer."""
        marks = ("-of-beta", "of_beta", "b" * 10, "/p/beta", self.runs["beta"], self.cases["beta"]["id"])
        return [mark for mark in marks if mark in text]


def _run_of(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """A run whose every name is its project's."""
    run = copy.deepcopy(a_run(1) | {"results": results})
    run["run"]["command"] = f"command-of-{name}"
    soft = {"project": name, "branch": "main", "commit": name[0] * 40, "host": f"host-of-{name}"}
    run["run"]["environment"] = {
        "hard": {"cpu.model": f"cpu-of-{name}", "cuda:0.model": f"gpu-of-{name}"},
        "soft": soft,
    }
    for result in run["results"]:
        result["trial"]["case"] |= {"name": f"case-of-{name}", "tags": [f"tag-of-{name}"]}
        result["trial"]["implementation"] += f"_of_{name}"
    return run


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """Two projects; the other one was measured last."""
    by_op: dict[str, list[dict[str, Any]]] = {}
    for one in a_run(60)["results"]:
        by_op.setdefault(one["trial"]["case"]["op"], []).append(one)
    with database(tmp_path) as url:
        runs = {}
        with Store.open(url) as store:
            for day, (name, results) in enumerate(zip(NAMES, by_op.values(), strict=False)):
                run = _run_of(name, results)
                run["run"]["started"] = run["run"]["finished"] = f"2026-02-0{day + 1}T09:00:00+00:00"
                add_run(store.engine, read_submission(run), f"sender-of-{name}")
                runs[name] = run["run"]["id"]
            scopes = (Scope.READ, Scope.SUBMIT, Scope.ACK)
            secrets = {one: create_token(store.engine, f"t-{one}", one, project=NAMES[0]) for one in scopes}
        with TestClient(create_app(Settings(database=url))) as client:
            cases = {name: client.get(f"/p/{name}{API}/cases").json()["items"][0] for name in NAMES}
            found = {one["run"]: one["number"] for one in client.get(f"{API}/results?limit=500").json()["items"]}
        yield Two(url, runs, cases, {name: found[run] for name, run in runs.items()}, secrets)


def test_no_route_tells_of_another_project(two: Two) -> None:
    """Neither bodies nor headers, with or without the project in the address; what was asked for may be repeated."""
    with TestClient(create_app(Settings(database=two.url), guarded=True)) as client:
        routes = sorted(path for method, path in routes_of(client.app) if method == "GET")
        assert len(routes) > 30
        for path in routes:
            for of in NAMES:
                for query in QUERIES:
                    asked = two.address(path, of) + query
                    for root in ("",) if query else ("", "/p/alpha", "/p/beta"):
                        headers = {"Authorization": f"Bearer {two.secrets[Scope.READ]}"}
                        answer = client.get(root + asked, headers=headers, follow_redirects=False)
                        given = f"{answer.text} {answer.headers}"
                        for known in (root + asked, two.runs["beta"], two.cases["beta"]["id"]) if of == "beta" else ():
                            given = given.replace(known, "")
                        assert answer.status_code < 500, root + asked
                        assert not two.told(given), root + asked
                        if root == "/p/beta" and path != "/healthz":
                            assert answer.status_code == 403, asked


def test_a_page_of_who_reads_all_is_not_for_who_reads_one(two: Two) -> None:
    """Pages are cached by address: the same one lists other projects for an open token only."""
    with Store.open(two.url) as store:
        every = create_token(store.engine, "every", Scope.READ)
    with TestClient(create_app(Settings(database=two.url), guarded=True)) as client:
        for path in ("/p/alpha/search?q=beta", "/p/alpha/search/hits?q=beta"):
            for secret, is_told in ((every, True), (two.secrets[Scope.READ], False), (every, True)):
                text = client.get(path, headers={"Authorization": f"Bearer {secret}"}).text
                assert ("/p/beta" in text) == is_told, path


def test_a_page_without_a_project_is_the_token_s(two: Two) -> None:
    """Not that of the project that was measured last; who has no token is not even told its name."""
    with TestClient(create_app(Settings(database=two.url), guarded=True)) as client:
        for path in ("/ops", "/compare", "/search?q=alpha", f"/cases/{two.cases['alpha']['id']}"):
            bare = client.get(path, follow_redirects=False)
            assert (bare.status_code, bare.headers.get("location")) == (401, None)
            headers = {"Authorization": f"Bearer {two.secrets[Scope.READ]}"}
            assert client.get(path, headers=headers, follow_redirects=False).status_code == 200


def test_a_token_of_a_project_writes_there_only(two: Two) -> None:
    """A run is sent with or without the project in the address; below another project every method is refused."""
    headers = {"Authorization": f"Bearer {two.secrets[Scope.SUBMIT]}"}
    with TestClient(create_app(Settings(database=two.url), guarded=True), headers=headers) as client:
        for root, code in (("", 201), ("/p/alpha", 201), ("/p/beta", 403)):
            for name in NAMES:
                run = _run_of(name, a_run(2)["results"])
                answer = client.put(f"{root}{API}/runs/{run['run']['id']}", json=run)
                assert answer.status_code == (code if name == "alpha" else 403), (root, name)
        for path in ("/regressions/0", "/regressions/0/withdraw"):
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            assert client.post(f"/p/beta{path}", content="", headers=form).status_code == 403


def test_parts_of_a_run_are_those_of_their_token(two: Two) -> None:
    """Whoever knows the id of a run that another token sends may not list, drop, complete or add to its parts."""
    with Store.open(two.url) as store:
        engine = store.engine
        secrets = {
            "other": create_token(engine, "other", Scope.SUBMIT),
            "all": create_token(engine, "all", Scope.ADMIN),
        }
        secrets |= {"own": create_token(engine, "own", Scope.SUBMIT, project="beta")}
        secrets |= {"theirs": create_token(engine, "theirs", Scope.ADMIN, project="alpha")}
    run = _run_of("beta", a_run(2)["results"])
    parts = f"{API}/runs/{run['run']['id']}/parts"
    with TestClient(create_app(Settings(database=two.url), guarded=True)) as client:

        def ask(who: str, method: str, path: str = parts, **given: Any) -> int:
            secret = secrets.get(who, two.secrets[Scope.SUBMIT])
            answer = client.request(method, path, headers={"Authorization": f"Bearer {secret}"}, **given)
            assert who in {"own", "all"} or "digest" not in answer.text
            return int(answer.status_code)

        assert ask("own", "PUT", f"{parts}/0", json=run) == 201
        for who in ("other", "theirs", "alpha's"):
            assert (ask(who, "GET"), ask(who, "DELETE")) == (409, 409), who
            assert ask(who, "POST", parts.replace("parts", "finish"), json={"parts": 1}) == 409, who
        assert (ask("own", "GET"), ask("all", "GET"), ask("all", "DELETE")) == (200, 200, 204)


def test_a_run_of_another_project_is_not_continued_nor_told_of(two: Two) -> None:
    """It was interrupted, and imported without a token: as long as its project is another one, it stays."""
    with Store.open(two.url) as store:
        run = _run_of("beta", a_run(2)["results"])
        run["run"]["status"] = "interrupted"
        add_run(store.engine, read_submission(run))
    headers = {"Authorization": f"Bearer {two.secrets[Scope.SUBMIT]}"}
    address = f"{API}/runs/{run['run']['id']}"
    sent = copy.deepcopy(run)
    sent["run"] |= {"status": "finished"}
    sent["run"]["environment"]["soft"]["project"] = "alpha"
    with TestClient(create_app(Settings(database=two.url)), headers=headers) as client:
        answer = client.put(address, json=sent)
        assert (answer.status_code, "another project" in answer.text) == (409, True)
        assert client.get(address).json()["status"] == "interrupted"
        for known in (address, f"{API}/runs/00000000-0000-0000-0000-000000000000"):
            assert client.post(f"{known}/finish", json={"parts": 1}).status_code == 409
