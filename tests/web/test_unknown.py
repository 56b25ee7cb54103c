"""Addresses with names of what does not exist: 404 with what there is, never an all clear or an empty success."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.submission import read_submission
from opgauge.harness.scope import Scope
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.projects import ProjectSettings, save_project
from opgauge.harness.store.tokens import create_token
from opgauge.web.app import create_app
from tests.databases import database
from tests.web.reading_pages import PLAIN, addresses, case_id, reader_of, text_of
from tests.web.submissions import a_run, store_of

CASE = "seed-1[float32,porder=2]"
DEVICE = ("device", "cuda0-000000")
UNKNOWN = (
    ("/", DEVICE),
    ("/ops/p_norm", DEVICE),
    ("/ops/p_norm", ("run", "nothing")),
    ("/ops/nothing", ()),
    ("/ops/p_norm", ("dtype", "flaot32")),
    ("/ops/p_norm", ("tag", "nothing")),
    ("/roofline", DEVICE),
    ("/roofline", ("run", "nothing")),
    ("/coverage", DEVICE),
    ("/coverage", ("op", "nothing")),
    ("/coverage", ("run", "nothing")),
    ("/devices", ("against", "cuda0-000000")),
    ("/devices", ("op", "nothing")),
    ("/regressions", DEVICE),
    ("/regressions", ("op", "nothing")),
    ("/regressions", ("state", "nothing")),
    ("/trust", ("op", "nothing")),
    ("CASE", DEVICE),
    ("CASE", ("run", "nothing")),
    ("RUN", ("op", "nothing")),
    ("COMPARE", ("op", "nothing")),
    ("COMPARE", ("implementation", "nothing")),
    ("COMPARE", ("verdict", "slwoer")),
    ("COMPARE", ("base_device", "cuda:7")),
    ("COMPARE", ("head_device", "cuda:7")),
    ("SEVERAL", ("op", "nothing")),
    ("SEVERAL", ("verdict", "slwoer")),
    ("/compare?base=nothing&head=main", ()),
    ("/compare?base=main&head=main&head=nothing", ()),
    ("/api/v1/runs", ("project", "nothing")),
    ("/api/v1/results", ("case_id", "0123456789abcdef")),
    ("/api/v1/results", ("op", "nothing")),
    ("/api/v1/results", ("dtype", "flaot32")),
    ("/api/v1/results", ("implementation", "nothing")),
    ("/api/v1/results", ("device", "cuda:7")),
    ("/api/v1RUN/results", ("op", "nothing")),
    ("/api/v1RUN/results", ("implementation", "nothing")),
    ("/api/v1/cases", ("op", "nothing")),
    ("/api/v1/cases", ("dtype", "flaot32")),
    ("/api/v1CASE/series", ("implementation", "nothing")),
    ("/api/v1CASE/series", ("device", "cuda:7")),
    ("/api/v1/regressions", DEVICE),
    ("/api/v1/regressions", ("op", "nothing")),
    ("/api/v1COMPARE", ("op", "nothing")),
    ("/api/v1COMPARE", ("implementation", "nothing")),
    ("/api/v1COMPARE", ("verdict", "slwoer")),
    ("/api/v1COMPARE", ("head_device", "cuda:7")),
    ("/api/v1/compare?base=nothing&head=main", ()),
)
"""Addresses, each with a parameter that names nothing."""


@pytest.mark.parametrize(("path", "given"), UNKNOWN)
def test_an_unknown_name_is_refused(client: TestClient, path: str, given: tuple[str, str]) -> None:
    """The answer names it, and without it the address has a page."""
    newest, before, *_ = [run.id for run in reader_of(client).runs()]
    compare = f"/compare?base={before}&head={newest}"
    words = {"SEVERAL": f"{compare}&head={before}", "COMPARE": compare, "RUN": f"/runs/{newest}"}
    for word, address in {**words, "CASE": f"/cases/{case_id(client, CASE)}"}.items():
        path = path.replace(word, address)
    if given:
        assert client.get(path).status_code == 200
    answer = client.get(f"{path}{'&' if '?' in path else '?'}{'='.join(given)}")
    assert answer.status_code == 404
    assert (given[1] if given else "nothing") in answer.text
    assert 'class="good"' not in answer.text


def test_a_filter_that_leaves_nothing_says_so(client: TestClient) -> None:
    """A verdict that no comparison has."""
    newest, before, *_ = [run.id for run in reader_of(client).runs()]
    for heads in (newest, f"{newest}&head={before}"):
        page = client.get(f"/compare?base={before}&head={heads}&verdict=faster&op=flatten")
        assert page.status_code == 200
        assert "No comparison matches these filters." in text_of(page.text)


def test_links_of_the_pages_lead_somewhere(client: TestClient) -> None:
    """Every link that names a device, an op or a run."""
    found = set()
    for address in addresses(client):
        parts = client.get(address).text.split('href="/')[1:]
        found |= {f"/{part.partition(chr(34))[0]}".replace("&amp;", "&") for part in parts}
    wrong = [link for link in sorted(found) if "?" in link and client.get(link).status_code != 200]
    assert wrong == []


def test_a_device_beside_the_history_has_its_case_page(writable: TestClient) -> None:
    """A branch was measured on hardware that the history does not have: its run links to the case there."""
    run = a_run(12)
    run["run"]["environment"] |= {"hard": {"cpu.model": "another"}, "soft": {"commit": "d" * 40, "branch": "try"}}
    run["results"] = [one for one in run["results"] if one["trial"]["device"] == "cpu"]
    add_run(store_of(writable).engine, read_submission(run))
    page = writable.get(f"/runs/{run['run']['id']}").text
    links = [part.partition('"')[0].replace("&amp;", "&") for part in page.split('href="')[1:] if "/cases/" in part]
    with_device = [link for link in links if "device=cpu-" in link]
    assert with_device
    for link in with_device:
        answer = writable.get(link)
        assert answer.status_code == 200
        assert "on another (cpu)" in text_of(answer.text)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over a database with runs of the project alpha, settings of beta and a token of gamma; only read."""
    with database(tmp_path_factory.mktemp("store")) as url, Store.open(url) as store:
        run = deepcopy(a_run(4))
        run["run"]["environment"]["soft"] |= {"project": "alpha", "branch": "main"}
        add_run(store.engine, read_submission(run))
        save_project(store.engine, ProjectSettings("beta"))
        create_token(store.engine, "host", Scope.SUBMIT, project="gamma")
        with TestClient(create_app(Settings(database=url))) as made:
            yield made


@pytest.mark.parametrize("page", [*PLAIN, "/ops/p_norm", "/runs/x", "/search?q=a", "/cluster", "/?csv=history"])
def test_a_project_that_does_not_exist_has_no_pages(several: TestClient, page: str) -> None:
    """The error page links to what exists; the address of the unnamed project is none while there is another."""
    for name in ("nothing", "Alpha", "alpha%2F", "-", "%00"):
        answer = several.get(f"/p/{name}{page}")
        assert answer.status_code == 404, name
        assert f'href="/p/{name}' not in answer.text
    assert "there is no project nothing" in several.get(f"/p/nothing{page}").text


@pytest.mark.parametrize("route", ["runs", "ops", "cases", "results", "regressions", "compare?base=main&head=main"])
def test_a_project_that_does_not_exist_has_no_routes(several: TestClient, route: str) -> None:
    """As JSON."""
    answer = several.get(f"/p/nothing/api/v1/{route}")
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is no project nothing"})


@pytest.mark.parametrize("name", ["beta", "gamma"])
def test_a_project_without_runs_has_its_page(several: TestClient, name: str) -> None:
    """It has settings, or a token that may submit to it."""
    assert "No results yet" in several.get(f"/p/{name}/").text
    assert several.get(f"/p/{name}/api/v1/runs").json()["items"] == []


def test_an_empty_service_has_the_unnamed_project_only(empty: TestClient) -> None:
    """Runs without a project will be shown there."""
    assert "No results yet" in empty.get("/").text
    assert "No results yet" in empty.get("/p/-/").text
    assert empty.get("/p/alpha/").status_code == 404
