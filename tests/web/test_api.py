"""The API's reading half: pages, filters, limits, hostile texts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient
from sqlalchemy import event

from opgauge.harness.result.submission import read_submission
from opgauge.harness.store.bulk import add_run
from tests.web.dataset import RUNS
from tests.web.submissions import a_run, store_of

API = "/api/v1"


def get(client: TestClient, path: str, code: int = 200, **params: Any) -> Any:
    """The JSON at a path."""
    answer = client.get(f"{API}{path}", params=params or None)
    assert answer.status_code == code, answer.text[:300]
    found = answer.json()
    if code >= 400:
        assert set(found) == {"detail"}
        assert isinstance(found["detail"], str)
        assert "Traceback" not in found["detail"]
    return found


def every(client: TestClient, path: str, key: str, **params: Any) -> list[Any]:
    """The items of all pages, which follow each other by `next`."""
    items: list[Any] = []
    here: dict[str, Any] = {}
    for _ in range(200):
        found = get(client, path, **params, **here)
        items += found["items"]
        if found["next"] is None:
            return items
        here = {key: found["next"]}
    raise AssertionError("pages without end")


def test_runs_are_paged_newest_first(client: TestClient) -> None:
    """Pages follow each other without gap or repetition; filters keep what they say."""
    runs = every(client, "/runs", "offset", limit=5)
    assert len(runs) == RUNS
    assert [run["started"] for run in runs] == sorted((run["started"] for run in runs), reverse=True)
    assert len({run["id"] for run in runs}) == RUNS
    assert all(run["results"] == sum(run["statuses"].values()) > 0 for run in runs)
    assert get(client, "/runs", status="interrupted")["items"] == []
    assert "finished" in get(client, "/runs", 422, status="finnished")["detail"]
    assert len(get(client, "/runs", commit=runs[0]["commit"][:6])["items"]) == 2
    assert len(get(client, "/runs", before=runs[5]["started"])["items"]) == RUNS - 6
    assert get(client, f"/runs/{runs[3]['id'][:8]}") == runs[3] | {
        "ceilings": get(client, f"/runs/{runs[3]['id']}")["ceilings"]
    }


def test_results_are_paged_latest_first(client: TestClient) -> None:
    """All results come once, over pages of any size, of all runs and of one."""
    everything = every(client, "/results", "before", limit=500)
    numbers = [one["number"] for one in everything]
    assert numbers == sorted(set(numbers), reverse=True)
    some = every(client, "/results", "before", limit=37, op="lerp", implementation="optimized", device="cuda:0")
    expected = [
        one
        for one in everything
        if (one["op"], one["implementation"], one["device"]) == ("lerp", "optimized", "cuda:0")
    ]
    assert some == expected
    run = everything[0]["run"]
    of_run = every(client, f"/runs/{run}/results", "before", limit=100)
    assert of_run == [one for one in everything if one["run"] == run]
    assert every(client, "/results", "before", status="wrong") == [
        one for one in everything if one["status"] == "wrong"
    ]
    case = everything[0]["case_id"]
    assert every(client, "/results", "before", case_id=case, limit=100) == [
        one for one in everything if one["case_id"] == case
    ]


def test_what_a_page_leaves_out_is_found_further_on(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small windows and no patience: pages hold fewer results than asked for, and all of them are found."""
    expected = every(client, "/results", "before", implementation="torch")
    monkeypatch.setattr("opgauge.harness.store.listing.WINDOW", 50)
    monkeypatch.setattr("opgauge.harness.store.listing.PATIENCE_S", 0.0)
    assert len(get(client, "/results", implementation="torch")["items"]) < 100
    assert every(client, "/results", "before", implementation="torch") == expected


def test_filters_that_fit_no_result_together_find_nothing(client: TestClient) -> None:
    """Each value is one that results have: an empty list is the answer, not an unknown name."""
    assert get(client, "/results", op="lerp", implementation="warp_rows")["items"] == []
    assert get(client, "/cases", op="lerp", dtype="float16")["items"] == []


def test_a_name_is_known_from_its_first_result_on(writable: TestClient) -> None:
    """Names that are remembered are extended when results come."""
    get(writable, "/results", 404, implementation="later")
    run = a_run(6)
    for one in run["results"]:
        one["trial"]["implementation"] = one["trial"]["implementation"].replace("torch", "later")
    add_run(store_of(writable).engine, read_submission(run))
    assert get(writable, "/results", implementation="later")["items"]
    assert get(writable, "/results", implementation="later", device="cuda:0")["items"] == []


def test_one_result_has_its_samples(client: TestClient) -> None:
    """Raw samples come with a single result only, in order."""
    number = get(client, "/results", limit=1)["items"][0]["number"]
    found = get(client, f"/results/{number}")
    assert len(found["samples_ns"]) == found["samples"] == 20
    ordered = sorted(found["samples_ns"])
    assert found["median_ns"] == (ordered[9] + ordered[10]) / 2
    assert get(client, "/results/999999999", 404)


def test_lists_never_load_samples(client: TestClient) -> None:
    """No statement of a list names the table of samples."""
    seen: list[str] = []
    engine = client.app.state.store.engine  # type: ignore[attr-defined]

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        runs = get(client, "/runs")["items"]
        case = get(client, "/results")["items"][0]["case_id"]
        for path in (f"/runs/{runs[0]['id']}/results", f"/cases/{case}/series", "/cases", "/regressions"):
            get(client, path)
        get(client, "/compare", base=runs[1]["id"], head=runs[0]["id"])
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert seen
    assert not [statement for statement in seen if "samples_ns" in statement]


def test_a_series_goes_through_all_runs(client: TestClient) -> None:
    """A case has a point per run and block, latest run first, each with its fingerprint."""
    case = next(one for one in get(client, "/cases")["items"] if one["name"] == "rows-256")
    assert get(client, f"/cases/{case['id']}") == case
    points = every(
        client, f"/cases/{case['id']}/series", "offset", limit=7, implementation="optimized", device="cuda:0"
    )
    assert len(points) == RUNS - 2 + 2 * 8
    assert [point["started"] for point in points] == sorted((point["started"] for point in points), reverse=True)
    assert len({point["fingerprint"] for point in points}) == 1
    assert get(client, "/cases/0123456789abcdef/series", 404)
    assert get(client, "/cases/0123456789abcdef", 404)


def test_cases_and_ops_are_listed(client: TestClient) -> None:
    """Every case once, on pages; ops with their number of cases."""
    cases = every(client, "/cases", "after", limit=3)
    assert len({case["id"] for case in cases}) == len(cases) == 7
    assert {one["op"]: one["cases"] for one in get(client, "/ops")["items"]} == {"flatten": 1, "lerp": 2, "p_norm": 4}
    assert {case["op"] for case in every(client, "/cases", "after", op="lerp")} == {"lerp"}
    infinite = [case for case in cases if case["data"]["params"].get("porder") == "inf"]
    assert len(infinite) == 2


def test_two_runs_are_compared(client: TestClient) -> None:
    """The last two runs differ in one broken case, which comes first; counts and pages agree."""
    runs = get(client, "/runs", limit=2)["items"]
    found = get(client, "/compare", base=runs[1]["id"], head=runs[0]["id"], limit=10)
    assert found["items"][0]["verdict"] == "broken"
    assert found["counts"]["broken"] == 1
    assert sum(found["counts"].values()) == found["total"]
    everything = every(client, "/compare", "offset", base=runs[1]["id"], head=runs[0]["id"], limit=10)
    assert len(everything) == found["total"]
    only = get(client, "/compare", base=runs[1]["id"], head=runs[0]["id"], verdict="broken", op="lerp")
    assert [one["case"] for one in only["items"]] == ["rows-64"]
    assert get(client, "/compare", 404, base="zzz", head=runs[0]["id"])
    assert get(client, "/compare", 422, base=runs[0]["id"])


def test_regressions_are_listed(client: TestClient) -> None:
    """The step is open, the repaired one fixed, the broken case there too."""
    found = every(client, "/regressions", "offset", limit=1)
    by_case = {one["case"]: one for one in found if one["device"] == "cuda:0"}
    assert by_case["seed-1[float32,porder=2]"]["state"] == "open"
    assert 1.15 < by_case["seed-1[float32,porder=2]"]["ratio"] < 1.21
    assert by_case["rows-256"]["state"] == "fixed"
    assert by_case["rows-64"]["kind"] == "broken"
    assert {one["state"] for one in every(client, "/regressions", "offset", state="fixed")} == {"fixed"}


SAMPLE = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)+\})? [0-9.e+-]+')


def test_metrics_are_prometheus_text(client: TestClient, empty: TestClient) -> None:
    """Every line is a comment or a sample with well-escaped labels; an empty store has metrics too."""
    for one in (client, empty):
        answer = one.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        for line in answer.text.splitlines():
            assert line.startswith("# ") or SAMPLE.fullmatch(line), line
    text = client.get("/metrics").text
    assert f'opgauge_runs{{project=""}} {float(RUNS)}\n' in text
    assert 'opgauge_regressions{project="",state="open"}' in text


def test_labels_are_escaped() -> None:
    """A name cannot end its label or its line."""
    from opgauge.web.api.health import _family

    line = "".join(_family("x", "X.", [({"case": 'a"b\\c\nd\re'}, 1.0)])).splitlines()[-1]
    assert line == 'x{case="a\\"b\\\\c\\nd e"} 1.0'


def test_health(client: TestClient) -> None:
    """The service says that it is well."""
    assert client.get("/healthz").json()["status"] == "ok"


@pytest.mark.parametrize("path", ["/", "/runs", "/healthz", "/metrics", f"{API}/runs", f"{API}/ops/lerp/badge.svg"])
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    """Status and headers are those of GET; a route that only writes has none."""
    answer, whole = client.head(path), client.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == whole.headers["content-type"]
    assert answer.headers["content-security-policy"] == whole.headers["content-security-policy"]
    assert client.head(f"{API}/nothing").status_code == 404
    assert client.options(path).status_code == 405


def test_head_sends_no_body(client: TestClient) -> None:
    """Nothing but the head leaves the service, however the server that runs it would treat a body."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "HEAD",
        "path": "/healthz",
        "query_string": b"",
        "headers": [],
        "client": None,
    }
    scope |= {"root_path": "", "scheme": "http", "server": ("x", 80)}
    with start_blocking_portal() as portal:  # a loop of its own: the browser tests leave one running in this thread
        portal.call(client.app, scope, receive, send)
    assert sent[0]["status"] == 200
    assert b"".join(message.get("body", b"") for message in sent) == b""


def test_an_empty_store_has_empty_lists(empty: TestClient) -> None:
    """Nothing stored is no error."""
    for path in ("/runs", "/results", "/cases", "/ops", "/regressions"):
        assert get(empty, path)["items"] == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/runs?limit=0", 422),
        ("/runs?limit=501", 422),
        ("/runs?limit=x", 422),
        ("/runs?offset=-1", 422),
        ("/runs?offset=99999999999999999999", 422),
        ("/runs?before=0001-01-01T00:00:00%2B14:00", 422),
        ("/runs?before=yesterday", 422),
        ("/runs?before=0", 422),
        ("/runs?before=1e9", 422),
        ("/runs?before=2026-13-01T00:00:00Z", 422),
        ("/runs?status=%00", 422),
        ("/runs?commit=%25", 422),
        ("/runs/..%2f..%2fetc%2fpasswd", 404),
        ("/runs/' OR 1=1", 422),
        ("/runs/none", 404),
        ("/runs/none/results", 404),
        ("/results?before=0", 422),
        ("/results?before=9223372036854775808", 422),
        ("/results?status=fine", 422),
        ("/results?case_id=xyz", 422),
        ("/results/0", 422),
        ("/results/9223372036854775808", 422),
        ("/results/1e3", 422),
        ("/cases/UPPERCASE0000000", 422),
        ("/ops/a%00b/badge.svg", 422),
        ("/compare?base=%00&head=x", 422),
        ("/nothing", 404),
        ("/results?implementaton=torch", 422),
    ],
)
def test_wrong_questions_have_one_message(client: TestClient, path: str, code: int) -> None:
    """No question is answered by a 500: the message says what is wrong with it."""
    get(client, path, code)


def test_a_misspelt_filter_is_an_error(client: TestClient) -> None:
    """What a route does not know is refused with the nearest name, and not passed over."""
    found = get(client, "/results", 422, implementaton="torch")
    assert "did you mean 'implementation'" in found["detail"]


def test_every_route_is_described(client: TestClient) -> None:
    """OpenAPI has a summary and a description of each route, and of each answer's form."""
    described = client.get(f"{API}/openapi.json").json()
    routes = [(path, verb, route) for path, verbs in described["paths"].items() for verb, route in verbs.items()]
    assert len(routes) >= 19
    for path, verb, route in routes:
        assert route.get("description"), (path, verb)
        success = [code for code in route["responses"] if code.startswith("2")]
        assert success, (path, verb)
        assert all("content" in route["responses"][code] or code == "204" for code in success), (path, verb)
    writing = [verb for path, verb, route in routes if verb != "get"]
    assert all(route.get("security") for _, verb, route in routes if verb != "get")
    assert len(writing) == 4


def test_answers_have_the_described_form(client: TestClient) -> None:
    """Each answer fits the model that OpenAPI shows, to the last field."""
    from opgauge.web.api import models

    runs = get(client, "/runs")
    models.RunPage.model_validate(runs, strict=True)
    run, other = runs["items"][0]["id"], runs["items"][1]["id"]
    models.WholeRunModel.model_validate(get(client, f"/runs/{run}"), strict=True)
    results = get(client, "/results", limit=500)
    models.ResultPage.model_validate(results, strict=True)
    models.WholeResultModel.model_validate(get(client, f"/results/{results['items'][0]['number']}"), strict=True)
    models.CasePage.model_validate(get(client, "/cases"), strict=True)
    models.OpPage.model_validate(get(client, "/ops"), strict=True)
    case = results["items"][0]["case_id"]
    models.PointPage.model_validate(get(client, f"/cases/{case}/series"), strict=True)
    models.ComparisonPage.model_validate(get(client, "/compare", base=other, head=run), strict=True)
    models.RegressionPage.model_validate(get(client, "/regressions"), strict=True)
    models.HealthModel.model_validate(client.get("/healthz").json(), strict=True)
